"""Layers: what architectures are made of."""
