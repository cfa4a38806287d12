"""The Python API: what the commands do, without folders where none are needed. Its names are those of `iclbench`."""
