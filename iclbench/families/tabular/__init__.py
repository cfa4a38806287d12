"""Real regression tables and their file formats."""
