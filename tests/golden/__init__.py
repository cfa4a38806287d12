"""Generated files: golden answers of all families, estimators and backbones, each with its code version, and the
defaults of the settings that identities contain. `python -m tests.golden` adds missing entries."""
