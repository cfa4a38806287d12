"""Event sequences: marked point processes in time, sampled or read from the user's own files."""
