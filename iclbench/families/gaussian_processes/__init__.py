"""Mixtures of Gaussian processes, with exact posteriors, evidence and oracles."""
