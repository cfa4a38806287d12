"""Estimators: classical methods fitted inside each episode, one file each; what they share is in `base`."""
