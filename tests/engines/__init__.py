"""Tests of engines on a real SLURM cluster and a two-node Ray cluster on this machine (`make test-engines`)."""
