"""Real tables and their file formats."""
