"""Core: episodes, predictions, the predictor contract, records, seeds, files, errors: the base of all packages."""
