"""Real regression tables, and the files they come in."""
