"""An agent run again, with everything it asked and did served from the record."""
