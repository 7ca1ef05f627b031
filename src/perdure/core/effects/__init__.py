"""Effects: tool and model calls, each recorded before it runs and after."""
