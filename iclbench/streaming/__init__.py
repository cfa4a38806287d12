"""Streaming: points come line by line, queries among them are answered at once."""
