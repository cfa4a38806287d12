"""Prompts: draw examples, write them as text, tokenise them and check that they fit into a model."""
