"""Procedural handwritten characters: an Omniglot without a download.

A class is a motor program of one to five strokes, as Lake, Salakhutdinov and Tenenbaum (2015, Human-level concept
learning through probabilistic program induction) describe characters; the alphabets, the stroke library and all
numbers here are ours, set by eye against real Omniglot and by its 1-nearest-neighbour difficulty
(`benchmarks/glyphs.md`).

- `programs`: which strokes a class is made of and how they hang together;
- `strokes`: from a stroke's parameters to points in the plane;
- `drawing`: what a drawer's hand makes of a program;
- `raster`: from points to ink;
- `counters`: random numbers that are functions of (seed, what they are for, class, drawer, stroke).

Everything is NumPy with additions, multiplications and square roots in a fixed order (sines come from a rounded
table), so that any subset of classes and drawings has the same bits as within the full set, on every machine.
"""

from iclbench.families.images.glyphs.drawing import glyphs

__all__ = ["glyphs"]
