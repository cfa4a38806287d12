"""Language tasks: cards, readers of data sets and published numbers."""
