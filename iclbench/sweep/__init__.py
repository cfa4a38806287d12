"""Grids of cells and the engines that run them.

`cells` says what a grid card asks for, `store` what of it is there already, `plan` what is left to do and in which
order; `work` does one cell in a process of its own; `engine` hands cells to an `Executor`, of which `local` has one.
"""
