"""Families: distributions over functions, one file each, with their samplers and, where it exists, their oracle."""
