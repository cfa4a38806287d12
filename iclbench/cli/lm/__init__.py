"""The subcommands of `iclbench lm`."""
