"""Groups of evaluators (the column `evaluator` of the table `values`), and the metric that compares classifiers."""

QUESTIONS = ("next", "targets")
# Evaluators that describe the inside of a model or the tuning of a method. Their rows are not scores of predictions.
PROBES = ("probe", "gamma_search")
# Distances from known solutions during training.
SOLUTIONS = "solutions"
DIAGNOSTICS = (*PROBES, "rank", "representation", SOLUTIONS)
# The accuracy that papers plot: among the labels that an evaluator allows, not among all units of the head.
MAIN_ACCURACY = "accuracy_within_choices"
