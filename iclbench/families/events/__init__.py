"""Event sequences: marked temporal point processes, synthetic or from files of the user."""
