"""Generated files: golden answers of every family, estimator and backbone of iclbench, each with its code, and the
defaults that identities leave out. `python -m tests.golden` adds what is missing."""
