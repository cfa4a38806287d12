"""Structured state spaces: their mathematics, and modules."""
