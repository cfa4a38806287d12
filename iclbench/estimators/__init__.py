"""Estimators: classical methods that are fitted in each episode. Their common base classes are in `base`."""
