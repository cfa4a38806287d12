"""Prompts: which examples are shown, written down, tokenised and fitted into a model."""
