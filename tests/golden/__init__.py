"""Generated files: golden answers of all families, estimators and backbones of iclbench, each with its code, and the
defaults of settings in identities. `python -m tests.golden` adds missing entries."""
