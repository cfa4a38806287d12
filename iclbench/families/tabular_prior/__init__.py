"""Synthetic tables: a prior of structural causal models, Bayesian networks, tree ensembles and Gaussian processes."""
