"""Event sequences: marked temporal point processes, synthetic or from the user's files."""
