"""Estimators: classical methods fitted in each episode, one method per file; `base` has their base classes."""
