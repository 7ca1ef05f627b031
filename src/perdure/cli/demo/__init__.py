"""`perdure demo`: an assistant that is killed mid-turn and resumes."""
