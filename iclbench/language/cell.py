"""One cell of a language-model evaluation: the table rows of one contestant on one prompt set."""

from __future__ import annotations

import numpy as np

from iclbench.core.errors import NonFiniteError
from iclbench.core.measure import Measure
from iclbench.evaluation import cells
from iclbench.evaluation.contestant import Contestant
from iclbench.language.accuracies import balanced_accuracy, summary_columns
from iclbench.language.answering import answers, majority
from iclbench.language.answering.answers import Answers
from iclbench.language.answering.session import LanguageOutcome, Pass, Session
from iclbench.language.contestants import LanguageContestant
from iclbench.language.models.batches import Batches
from iclbench.language.prompting.fitting import Overlength, PromptCache
from iclbench.language.prompting.prompts import LanguagePrompts


def cell_tables(
    contestant: LanguageContestant,
    prompts: LanguagePrompts,
    batches: Batches,
    overlength: Overlength,
    cache: PromptCache,
) -> tuple[cells.Tables, str]:
    """Compute a cell. Return its tables, and the note on its outcome (`LanguageOutcome.reason`).

    Raises:
        UsageError: a prompt is too long. Nothing has been computed.
    """
    prompts.drawn_episodes  # noqa: B018  (drawn before the measurement, because all contestants share the episodes)
    if contestant.model is None or contestant.method is None:
        majority_answers, reason = majority.majority(prompts.task.card, prompts.drawn_episodes)
        inputs = [e.query.x for e in prompts.drawn_episodes]
        return _tables(contestant, prompts, LanguageOutcome(majority_answers, reason, texts=inputs), []), reason
    model, method = contestant.model, contestant.method
    session = Session(model, method, batches, overlength, cache, contestant.compared_methods)
    tokenised = session.tokenise(prompts)
    if method.settings.thinks:
        outcome = session.answer(prompts, tokenised)
        with Measure(model.device) as cost:  # the cost in use, without answers after other numbers of passes
            session.answers_by_passes(prompts, tokenised, {outcome.passes_used})
    else:
        with Measure(model.device) as cost:
            outcome = session.answer(prompts, tokenised)
    costs = cells.evaluation_cost_rows(contestant, prompts, cost, prompts.shots)
    return _tables(contestant, prompts, outcome, costs), outcome.reason


def _tables(
    contestant: LanguageContestant, prompts: LanguagePrompts, outcome: LanguageOutcome, costs: cells.Rows
) -> cells.Tables:
    correct = outcome.answers.scores["accuracy"]
    key_columns: dict[str, object] = {"run": contestant.run, "prompt_set": prompts.id}
    return {
        "errors": cells.error_rows(
            contestant, prompts, {"accuracy": correct[:, None]}, n_context=np.asarray([prompts.shots])
        ),
        "answers": answers.answer_rows(key_columns, prompts.drawn_episodes, outcome.texts, outcome.answers),
        "costs": costs,
        "values": value_rows(contestant, prompts, outcome),
    }


def value_rows(contestant: Contestant, prompts: LanguagePrompts, outcome: LanguageOutcome) -> cells.Rows:
    """Return the rows of the table `values`: all metrics of the final answers, and the metrics after each pass of
    Deep-Thinking.

    Raises:
        NonFiniteError: a log-probability of the final answers is not finite. If this happens only after another number
            of passes, the row for that number has the status `failed`.
    """
    shared = shared_columns(contestant, prompts)
    if bad_count := outcome.answers.nonfinite_count:
        raise NonFiniteError(_nonfinite(bad_count, outcome.answers))
    axis = (
        {"axis": "order", "axis_value": prompts.order}
        if prompts.order
        else {"axis": "demo_seed", "axis_value": prompts.demo_seed}
    )
    final_columns = shared | axis | ({"reason": outcome.reason} if outcome.reason else {})
    targets = [e.query.y for e in prompts.drawn_episodes]
    rows = [
        final_columns | {"metric": metric} | summary_columns(metric, scores, prompts.seed, prompts.repeated_queries)
        for metric, scores in outcome.answers.scores.items()
        if np.isfinite(scores).any()
    ]
    rows.append(
        final_columns
        | {"metric": "balanced_accuracy"}
        | balanced_accuracy(outcome.answers.scores["accuracy"], targets, prompts.seed, prompts.repeated_queries)
    )
    for passes, pass_result in outcome.passes.items():
        rows += _trace_rows(shared, passes, pass_result, prompts.seed, prompts.repeated_queries)
    for passes, pass_result in outcome.development.items():
        rows += _trace_rows(shared | {"evaluator": "development"}, passes, pass_result, prompts.seed)
    return rows


def shared_columns(contestant: Contestant, prompts: LanguagePrompts) -> dict[str, object]:
    """Return the columns that are the same in all rows of a cell."""
    demonstration_columns = {"n_context": prompts.shots, "demo_seed": prompts.demo_seed, "demo_order": prompts.order}
    return cells.shared_columns(contestant, prompts, prompts.task.card.answers) | demonstration_columns


def _nonfinite(bad_count: int, answers: Answers) -> str:
    total = sum(scores is not None for scores in answers.candidates)
    return f"the log-probabilities of candidates are not finite in {bad_count} of {total} questions"


def _trace_rows(
    shared: dict[str, object], passes: int, trace: Pass, seed: int, queries: np.ndarray | None = None
) -> cells.Rows:
    scores = {
        "accuracy": trace.answers.scores["accuracy"],
        "kl_to_icl": trace.divergence,
        "memory_change": trace.change,
    }
    trace_columns = shared | {"axis": "passes", "axis_value": passes}
    if bad_count := trace.answers.nonfinite_count:
        return [
            trace_columns | {"metric": "accuracy", "status": "failed", "reason": _nonfinite(bad_count, trace.answers)}
        ]
    return [
        trace_columns | {"metric": metric} | summary_columns(metric, values, seed, queries)
        for metric, values in scores.items()
        if np.isfinite(values).any()
    ]
