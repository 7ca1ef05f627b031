"""What an agent did: tools and models, each call recorded before and after."""
