"""Core: episodes, predictions, the predictor contract, records, seeds, files, errors: what everything stands on."""
