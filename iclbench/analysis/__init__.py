"""Scores, intervals, ranks and significant differences from result tables. Imports neither torch nor figures."""
