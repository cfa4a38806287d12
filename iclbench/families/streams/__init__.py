"""Streams: sequences of tokens or vectors without inputs."""
