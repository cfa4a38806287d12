"""Groups of evaluators (the column `evaluator` of the table `values`), and the metric that compares classifiers."""

QUESTIONS = ("next", "targets")
# Evaluators that describe the internals of a model or the tuning of a method. Their rows are not scores of predictions.
PROBES = ("probe", "gamma_search")
# Distances between a model and known solutions, during training or by the number of truths in the pool of the training
# task. Distances by the number of truths have the axis `POOL`, whose value is missing for an unlimited pool.
SOLUTIONS = "solutions"
POOL = "pool"
# The axis of rows of models with another number of loops than in training.
LOOPS = "loops"
DIAGNOSTICS = (*PROBES, "rank", "representation", SOLUTIONS)
# The accuracy that papers plot: the predicted label is the most probable one of the labels that an evaluator allows,
# not of all outputs of the head.
MAIN_ACCURACY = "accuracy_within_choices"
