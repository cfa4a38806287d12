"""The search for learning rates: `trials` trains and scores one choice, `search` says which to try next, `curves`
stores the trials and writes the table that `iclbench.config.rates` reads, `tune` runs the search on worker processes.
"""
