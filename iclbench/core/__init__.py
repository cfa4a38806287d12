"""The base of all packages: episodes, predictions, the predictor interface, records, seeds, files and errors."""
