"""Answers of a model to a prompt set: scores of candidates, greedy generation, and passes over the demonstrations."""
