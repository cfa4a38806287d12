"""Run the `iclbench` command with `python -m iclbench`."""

from iclbench.cli.main import run

if __name__ == "__main__":
    run()
