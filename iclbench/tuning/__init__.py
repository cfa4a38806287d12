"""The search for learning rates.

`trials` trains a model with one choice of settings and scores it, `search` and `optuna_search` select the settings to
try next, `validation` defines the score, `curves` stores the trials and writes the table that `iclbench.config.rates`
reads, and `tune` runs the search on worker processes.
"""
