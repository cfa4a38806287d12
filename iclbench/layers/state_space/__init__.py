"""Structured state spaces: their equations, and modules."""
