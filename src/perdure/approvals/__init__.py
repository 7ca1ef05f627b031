"""Calls that wait for a person: asked for, decided, used up."""
