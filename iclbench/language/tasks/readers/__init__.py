"""Readers, one file per source of examples, that create a pool from a card's parameters and the user's data files."""
