"""Engines on a real SLURM and a two-node Ray cluster on this machine (`make test-engines`)."""
