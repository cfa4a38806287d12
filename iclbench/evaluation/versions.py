"""Numbers that stand in hashes, so that a sweep is planned without loading what computes the answers."""

# Raised whenever a change of an estimator gives other answers for the same settings.
ESTIMATORS = 1
# Raised whenever a change of the samplers gives other episodes for the same configuration.
PROMPTS = 1
