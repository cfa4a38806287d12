"""Families: distributions over episodes, with their samplers and, where one exists, an exact oracle."""
