"""What every family, estimator and backbone of ours answers to a few fixed questions, kept beside its number."""
