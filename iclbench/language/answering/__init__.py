"""Answers: candidate scores, greedy generation, methods that read demonstrations."""
