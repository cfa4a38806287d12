"""Kinds of evaluators, the column `evaluator` of the table `values`, and the metric that they are compared by."""

QUESTIONS = ("next", "targets")
# Evaluators whose rows are about the inside of a model or the tuning of a method, not answers to a question.
PROBES = ("probe", "gamma_search")
INSIDE = (*PROBES, "rank", "representation")
# The accuracy that papers plot: among the labels that an evaluator admits, not among all units of the head.
HEADLINE = "accuracy_within_choices"
