"""Answers of a model to a prompt set: candidate scores, greedy generation, and passes over the demonstrations."""
