"""What the commands `iclbench lm ...` do."""
