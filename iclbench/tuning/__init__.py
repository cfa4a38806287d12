"""Learning rates, chosen by trying: `trials` trains and scores one choice, `search` says which to try next, `curves`
keeps what was found and writes the table that `iclbench.config.rates` reads, `tune` does all of it on worker processes.
"""
