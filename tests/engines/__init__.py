"""Engines against the real thing: a SLURM and a two-node Ray cluster on this machine (`make test-engines`)."""
