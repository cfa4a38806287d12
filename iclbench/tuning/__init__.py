"""The search for learning rates.

`trials` trains and scores one choice of settings, `search` selects the settings to try next, `curves` stores the trials
and writes the table that `iclbench.config.rates` reads, and `tune` runs the search on worker processes.
"""
