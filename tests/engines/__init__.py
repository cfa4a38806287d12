"""Tests of engines with a real SLURM cluster and a two-node Ray cluster on this machine (`make test-engines`)."""
