"""Prompts: drawing examples, writing them as text, tokenising them and checking that they fit into a model."""
