"""One worker at a time: who may write to a session, and until when."""
