"""Procedural handwritten characters, which replace Omniglot and require no download.

A class is a motor program of one to five strokes, as Lake, Salakhutdinov and Tenenbaum (2015, Human-level concept
learning through probabilistic program induction) describe characters. The alphabets, the stroke library and all numbers
were chosen so that the characters resemble real Omniglot, both by eye and in difficulty for a 1-nearest-neighbour
classifier (`benchmarks/glyphs.md`).

- `programs`: the strokes of a class and the joints between them;
- `strokes`: computation of points in the plane from the parameters of strokes;
- `drawing`: variation between drawers and drawings;
- `raster`: computation of images from points;
- `counters`: random numbers as functions of (seed, purpose, class, drawer, stroke).

All computations are NumPy additions, multiplications and square roots in a fixed order (sines are from a rounded
table), so every subset of classes and drawings is bit-identical to the same part of the full set on all machines.
"""

from iclbench.families.images.glyphs.drawing import glyphs

__all__ = ["glyphs"]
