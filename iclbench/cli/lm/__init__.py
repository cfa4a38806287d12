"""The commands `iclbench lm ...`."""
