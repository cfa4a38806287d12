"""The base of all other packages: episodes, predictions, the predictor interface, records, seeds, files and errors."""
