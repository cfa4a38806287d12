"""`python -m iclbench` is the same as `iclbench`."""

from iclbench.cli.main import run

if __name__ == "__main__":
    run()
