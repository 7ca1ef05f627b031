"""`perdure chat`: a durable assistant in the terminal."""
