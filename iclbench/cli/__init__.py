"""The command-line interface, with one file per command. Large packages are imported only when a command runs."""
