"""Synthetic tables from structural causal models, Bayesian neural networks, tree ensembles and Gaussian processes."""
