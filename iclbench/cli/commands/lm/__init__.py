"""What can be typed after `iclbench lm COMMAND`."""
