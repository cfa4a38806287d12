"""Language tasks: cards, readers of data sets, published numbers."""
