"""Grids of cells and the engines that run them.

`cells` expands a grid card to cells, `plan` compares them with the results folder, `order` sorts the cells to do,
`work` computes one cell in a worker process, and `engine` submits cells to an `Executor`, such as `local.LocalPool`.
"""
