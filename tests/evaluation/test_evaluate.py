"""Evaluation of a run: order of cells, cached and packed cells, identities of contestants, and invalid requests."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from iclbench import tables
from iclbench.config import codes
from iclbench.config.resolution import RunConfig, TaskConfig, resolve_run, resolve_task
from iclbench.core import digests
from iclbench.core.context import Context
from iclbench.core.errors import UsageError
from iclbench.core.files import save_tensors
from iclbench.core.hashing import content_hash
from iclbench.core.predictions import Point
from iclbench.core.predictor import Predictor
from iclbench.deep_thinking.backbones import ThinkingBackbone
from iclbench.deep_thinking.methods import Method
from iclbench.deep_thinking.settings import DeepThinking, PlainICL
from iclbench.estimators.base import FittedPredictor
from iclbench.evaluation import cells, contestants
from iclbench.evaluation import evaluate as evaluation
from iclbench.evaluation.cells import CellResult
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.evaluation.evaluate import (
    PackedCell,
    evaluate_baseline,
    evaluate_cells,
    evaluate_run,
    prompt_sets,
    shifts_of,
    summarise,
)
from iclbench.evaluation.prompt_set_rows import PromptSetRows
from iclbench.evaluation.prompts import PromptSet
from iclbench.store import identity
from iclbench.store.identity import variant_id
from iclbench.store.runs import Run, create
from tests.refusals import refused


class Half(Predictor):
    """Predicts 0.5, and supports sequences of at most nine points."""

    longest = 9

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        mean = torch.full_like(points.y, 0.5)
        return Point(mean if prefixes is None else mean[:, list(prefixes)])


@pytest.fixture
def config(card_path: Path) -> RunConfig:
    return resolve_run(str(card_path), "gpt2", "smoke", 0)


@pytest.fixture
def load_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Load `Half` instead of the model of any run, and record the arguments of each call."""
    calls: list[tuple[object, ...]] = []

    def backbone(run: Run, device: str, data_dir: Path | None) -> PredictorContestant:
        calls.append((run.name, device, data_dir))
        return PredictorContestant("gpt2", run.name, "backbone", "identity", device=device, predictor=Half())

    monkeypatch.setattr(contestants, "backbone", backbone)
    return calls


def facts(results: list[CellResult]) -> list[tuple[str, str, int, bool]]:
    return [(cell.contestant.name, cell.prompts.shift, cell.prompts.seed, cell.cached) for cell in results]


def test_options_of_evaluate_run_apply_to_all_cells(config: RunConfig, load_calls: list, tmp_path: Path) -> None:
    run = create(tmp_path / "runs", config)
    started_cells: list[tuple[str, str]] = []
    options = {"seed": 7, "baseline_names": ["mean"], "summaries": False}
    on_start = lambda one, prompts: started_cells.append((one.name, prompts.shift))  # noqa: E731
    results = []
    for cell in evaluate_run(Context(tmp_path, tmp_path), run, ("none", "orthants"), **options, on_start=on_start):
        results.append(cell)
        assert len(started_cells) == len(results), "`on_start` is called before each cell"
        assert cell.reason is None and cell.pack_name == "" and cell.prompts.data_dir == tmp_path
    assert facts(results) == [(name, shift, 7, False) for shift in ("none", "orthants") for name in ("gpt2", "mean")]
    assert started_cells == [(name, shift) for name, shift, _, _ in facts(results)]
    assert load_calls == [(run.name, "cpu", tmp_path)]
    assert results[0].prompts.family is results[-1].prompts.family, "all prompt sets share the family and its data"
    assert not list(tmp_path.rglob("summary")), "a sweep writes the summaries at its end"
    assert all(cell.cached for cell in evaluate_run(Context(tmp_path, tmp_path), run, ("none", "orthants"), **options))


def test_a_run_can_be_evaluated_on_another_task_with_a_given_family(
    config: RunConfig, task: TaskConfig, load_calls: list, tmp_path: Path
) -> None:
    run = create(tmp_path / "runs", config)
    other = task.model_copy(update={"name": "other", "episodes": 5, "baselines": ["mean", "zero"], "oracles": []})
    family = other.build()
    results = list(evaluate_run(Context(tmp_path), run, task=other, family=family))
    assert facts(results) == [(name, "none", 0, False) for name in ("gpt2", "mean", "zero")]
    assert all(cell.prompts.task is other and cell.prompts.family is family for cell in results)
    assert list(tmp_path.rglob("summary/scores.values.parquet")), "the scores are written"
    (home_cell,) = evaluate_run(Context(tmp_path), run, baseline_names=[])
    assert home_cell.prompts.task == run.config.task and home_cell.prompts.family is not family


def test_scores_include_contestants_that_a_concurrent_process_evaluates(
    task: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process writes its results after this process has read the tables, so this process must recompute the
    scores."""
    prompts = PromptSet(task, "smoke")
    all_contestants = contestants.baselines(prompts, ["zero", "mean", "knn-3"])
    write, others = evaluation.scores.write_scores, [all_contestants[2]]

    def write_late(prompt_rows: PromptSetRows) -> None:
        assert len(prompt_rows.values)  # accessing `values` reads the tables
        if others:
            list(evaluate_cells(tmp_path, prompts, [others.pop()]))
            summarise(tmp_path, prompts)
        write(prompt_rows)

    monkeypatch.setattr(evaluation.scores, "write_scores", write_late)
    list(evaluate_cells(tmp_path, prompts, all_contestants[:2]))
    summarise(tmp_path, prompts)
    scored = tables.read("values", tmp_path / "tables" / prompts.id / "summary" / "scores.values.parquet")
    assert set(scored["contestant"]) == {"zero", "mean", "knn-3"}


def test_the_data_folder_method_and_lookup_are_passed_to_all_cells(
    config: RunConfig, load_calls: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "runs", config)
    thinking_calls: list[tuple[object, ...]] = []
    cells_calls: list[tuple[object, ...]] = []
    published_calls: list[tuple[object, ...]] = []
    data_dirs: list[object] = []

    def thinking(*arguments: object) -> PredictorContestant:
        thinking_calls.append(arguments)
        return PredictorContestant("thinking", "thinking", "backbone", "thinking", predictor=Half())

    build = TaskConfig.build
    monkeypatch.setattr(TaskConfig, "build", lambda self, data_dir=None: (data_dirs.append(data_dir), build(self))[1])
    monkeypatch.setattr(contestants, "with_deep_thinking", thinking)
    monkeypatch.setattr(evaluation, "evaluate_cells", lambda *arguments: cells_calls.append(arguments) or iter(()))
    monkeypatch.setattr(evaluation, "write_published", lambda *arguments: published_calls.append(arguments))
    method, lookup, on_start = Method("deep-thinking", DeepThinking(passes=2)), lambda *_: None, lambda *_: None
    assert not list(evaluate_run(Context(tmp_path, tmp_path), run, ("none", "points-3"), baseline_names=["zero"]))
    assert data_dirs[0] == tmp_path and published_calls == [(tmp_path, config.task)]
    options = {"baseline_names": ["zero"], "summaries": False, "lookup": lookup, "on_start": on_start, "method": method}
    assert not list(evaluate_run(Context(tmp_path), run, ("none", "points-3"), fresh=True, **options))  # type: ignore[arg-type]
    assert [(one.name, used_method) for one, used_method in thinking_calls] == [("gpt2", method)]  # type: ignore[attr-defined]
    names = [[one.name for one in models] for _, _, models, *_ in cells_calls]  # type: ignore[attr-defined]
    assert names == [["gpt2", "zero"]] * 2 + [["gpt2", "thinking", "zero"]] * 2
    plain, with_options = (tmp_path, None, False, None), (tmp_path, lookup, True, on_start)
    assert [(results, *extra) for results, _, _, *extra in cells_calls] == [plain] * 2 + [with_options] * 2
    data_dirs.clear()
    assert not list(evaluate_baseline(Context(tmp_path, tmp_path), config.task, "smoke", "zero", ["none"], []))
    assert data_dirs[0] == tmp_path and cells_calls[-1][1].seed == 0  # type: ignore[attr-defined]


def test_each_shift_and_each_test_has_a_prompt_set(task: TaskConfig, tmp_path: Path) -> None:
    family = task.build()
    sets = prompt_sets(task, "smoke", ["none", "noisy-1"], ["icl"], 3, tmp_path, family)
    assert [(prompts.shift, prompts.evaluator) for prompts in sets] == [("none", ""), ("noisy-1", ""), ("none", "icl")]
    for prompts in sets:
        assert prompts.task is task and prompts.built_family is family
        assert (prompts.preset, prompts.seed, prompts.data_dir) == ("smoke", 3, tmp_path)
    defaults = prompt_sets(task, "smoke", ["none"], ["icl"])
    assert [(prompts.seed, prompts.data_dir, prompts.built_family) for prompts in defaults] == [(0, None, None)] * 2


def test_repeated_shifts_are_evaluated_once_under_their_canonical_name(config: RunConfig, tmp_path: Path) -> None:
    run = create(tmp_path, config)
    assert shifts_of(run, ["noisy", "none", "orthogonal_query", "noisy"], None) == [
        "none",
        "noisy-1",
        "orthogonal-query",
    ]
    assert shifts_of(run, ["all"], 9) == ["none", "orthants", "noisy-1", "points-9"]
    with refused("bad-value", "--extrapolate 8", f"'{run.name}'", "(8 examples)"):
        shifts_of(run, [], 8)


def test_a_baseline_can_be_evaluated_without_a_run(task: TaskConfig, tmp_path: Path) -> None:
    results = list(
        evaluate_baseline(Context(tmp_path, tmp_path), task, "smoke", "knn-3", ["none", "noisy-1"], [], seed=2)
    )
    assert facts(results) == [("knn-3", "none", 2, False), ("knn-3", "noisy-1", 2, False)]
    assert {(cell.prompts.preset, cell.prompts.data_dir) for cell in results} == {("smoke", tmp_path)}
    assert results[0].prompts.family is results[1].prompts.family
    assert not list(tmp_path.rglob("summary"))


def packed_cell(prompts: PromptSet, one: PredictorContestant) -> PackedCell:
    row = cells.shared_columns(one, prompts, "next") | {"metric": "squared_error", "n_context": 1, "value": 7.0}
    return PackedCell("the pack", {"values": [row], "errors": tables.frame("errors", [])}, {"torch": "9"})


def test_cells_are_copied_from_packed_results_unless_fresh(task: TaskConfig, tmp_path: Path) -> None:
    prompts = PromptSet(task, "smoke")
    one, other = (PredictorContestant(name, name, "baseline", name, predictor=Half()) for name in ("one", "other"))
    lookups: list[tuple[str, str]] = []

    def lookup(contestant: PredictorContestant, prompt_set: PromptSet) -> PackedCell | None:
        lookups.append((contestant.name, prompt_set.id))
        return packed_cell(prompt_set, contestant) if contestant is one else None

    def evaluate_both(**options: object) -> list[tuple[str, bool, str]]:
        results = evaluate_cells(tmp_path, prompts, [one, other], **options)  # type: ignore[arg-type]
        return [(cell.contestant.name, cell.cached, cell.pack_name) for cell in results]

    assert evaluate_both(lookup=lookup) == [("one", False, "the pack"), ("other", False, "")]
    assert lookups == [("one", prompts.id), ("other", prompts.id)]
    path = cells.cell_path(tmp_path, one, prompts)
    assert tables.read("values", path)["value"].tolist() == [7]
    metadata = tables.metadata(path)
    assert (metadata["pack"], metadata["library.torch"]) == ("the pack", "9") and cells.is_done(tmp_path, one, prompts)
    assert evaluate_both(lookup=lookup) == [("one", True, "the pack"), ("other", True, "")]
    assert len(lookups) == 2, "cached cells are not looked up"
    assert evaluate_both(fresh=True) == [("one", False, ""), ("other", True, "")]
    assert 7 not in tables.read("values", path)["value"].tolist()
    assert cells.pack_name_of(tmp_path, one, prompts) == ""


def test_the_question_of_the_task_selects_the_scoring_function(
    task: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(question: str, one: PredictorContestant, prompts: PromptSet) -> cells.Tables:
        return {"values": [{"status": "failed", "reason": question}]}

    monkeypatch.setattr(evaluation, "_SCORERS", {name: partial(fail, name) for name in ("targets", "next")})
    monkeypatch.setattr(cells, "write", lambda *arguments: None)
    for question in ("targets", "next"):
        prompts = PromptSet(task.model_copy(update={"question": question}), "smoke")
        one = PredictorContestant("one", "one", "baseline", "one", predictor=Half())
        (cell,) = evaluate_cells(tmp_path, prompts, [one])
        assert cell.reason == question


def test_the_identity_of_a_run_depends_on_its_configuration_and_weights(config: RunConfig, tmp_path: Path) -> None:
    run = create(tmp_path, config)
    model = contestants.untrained(run.name, config)
    assert (model.name, model.run, model.kind, model.seed) == ("gpt2", run.name, "backbone", 0)
    assert (model.variant, model.device) == (variant_id(config), "cpu") and model.libraries == {
        "torch": torch.__version__
    }
    assert model.order == "causal" and not model.predictor.training
    assert model.identity == content_hash({"config": identity.training_settings(config)})
    other = config.model_copy(update={"seed": 1})
    assert contestants.untrained(run.name, other).identity != model.identity
    loaded_runs = []
    for weight in (0.0, 0.0, 1.0):
        tensors = {name: torch.full_like(t, weight) for name, t in model.predictor.state_dict().items()}
        save_tensors(run.weights, tensors, run.signature, digest=True)
        loaded_runs.append(contestants.backbone(run))
    assert loaded_runs[0].identity == loaded_runs[1].identity
    assert len({model.identity, loaded_runs[0].identity, loaded_runs[2].identity}) == 3
    expected = content_hash({"config": run.hash, "weights": digests.file_digest(run.weights)})
    assert loaded_runs[2].identity == expected
    assert all(float(t.detach().abs().max()) == 1 for t in loaded_runs[2].predictor.parameters())


@pytest.mark.parametrize(("backbone", "is_same_backbone"), [("gpt2", True), ("gpt2-rotary", False)])
@pytest.mark.parametrize(("rate", "is_same_rate"), [("1e-3", True), ("2e-3", False)])
def test_a_run_is_tuned_if_it_has_the_learning_rate_selected_for_its_backbone(
    tmp_path: Path, backbone: str, is_same_backbone: bool, rate: str, is_same_rate: bool
) -> None:
    (tmp_path / "rates").mkdir()
    (tmp_path / "rates" / "smoke.toml").write_text(
        f'[[tuned]]\ntasks = ["linear"]\nsteps = 100\nseeds = 3\n[tuned.train]\n{backbone} = {{ lr = 1e-3 }}\n'
    )
    config = resolve_run("linear", "gpt2", "smoke", overrides=[f"train.lr={rate}"])
    run = create(tmp_path, config)
    model = contestants.untrained(run.name, config).predictor
    save_tensors(run.weights, model.state_dict(), run.signature, digest=True)  # type: ignore[attr-defined]
    row = cells.shared_columns(contestants.backbone(run), PromptSet(config.task, "smoke"), "next")
    assert row["tuned"] is (is_same_backbone and is_same_rate)


def test_the_identity_of_a_baseline_depends_on_all_settings_that_change_its_predictions(task: TaskConfig) -> None:
    def baseline(
        name: str, preset: str = "smoke", task: TaskConfig = task, **prompt_options: int
    ) -> PredictorContestant:
        (contestant,) = contestants.baselines(PromptSet(task, preset, **prompt_options), [name])
        return contestant

    tree, knn = baseline("decision-tree-2"), baseline("knn-3")
    assert (knn.name, knn.run, knn.kind, knn.episodes) == ("knn-3", "knn-3", "baseline", None)
    assert knn.order is None and {"torch", "scikit-learn", "xgboost"} == set(knn.libraries)
    assert baseline("least-squares").kind == "oracle"
    longer = task.model_copy(update={"points": 30})
    assert baseline("knn-3", task=longer).identity == knn.identity
    noisy = task.model_copy(update={"family": "noisy-linear", "parameters": {"dim": 3, "noise": 0.5}})
    ridge = baseline("ridge", task=noisy)
    assert ridge.identity != baseline("ridge", task=task).identity, "ridge gets the noise level of the task"
    names = ("decision-tree-2", "decision-tree-4", "knn-3", "zero", "mean")
    assert len({baseline(name).identity for name in names}) == 5
    assert baseline("decision-tree-2", "paper").identity == tree.identity
    expected = {
        "estimator": "knn",
        "settings": {},  # k is 3 by default
        "facts": [0.0, 100],
        "code": codes.of_estimator("knn"),
        "libraries": {},
    }
    assert knn.identity == content_hash(expected)
    tree_inputs = {"estimator": "decision-tree", "settings": {"max_depth": 2}}
    library_versions = {"scikit-learn": tree.libraries["scikit-learn"]}
    tree_inputs |= {"code": codes.of_estimator("decision-tree"), "libraries": library_versions}
    assert tree.identity == content_hash(expected | tree_inputs)


def test_a_run_with_deep_thinking_is_a_separate_contestant(config: RunConfig, tmp_path: Path) -> None:
    plain = replace(contestants.untrained("a-run", config), variant="as trained")
    method = Method("deep-thinking", DeepThinking(passes=2))
    thinker = contestants.with_deep_thinking(plain, method)
    assert isinstance(thinker.predictor, ThinkingBackbone)
    assert (thinker.name, thinker.run) == ("gpt2" + method.suffix, "a-run" + method.suffix)
    other = contestants.with_deep_thinking(plain, Method("deep-thinking", DeepThinking(passes=3)))
    assert len({plain.identity, thinker.identity, other.identity}) == 3
    assert len({plain.variant, thinker.variant, other.variant}) == 3
    assert thinker.identity == content_hash({"run": plain.identity, "method": method.hash})
    assert thinker.variant == content_hash({"run": "as trained", "method": method.hash}, 8)
    other_weights = contestants.with_deep_thinking(replace(plain, identity="other weights"), method)
    assert other_weights.identity != thinker.identity and other_weights.variant == thinker.variant


def test_methods_that_do_not_apply_to_a_run_are_refused(config: RunConfig) -> None:
    plain = contestants.untrained("a-run", config)
    with refused("not-applicable", "--method icl", "deep-thinking"):
        contestants.with_deep_thinking(plain, Method("icl", PlainICL()))
    with refused("not-applicable", "--method deep-thinking"):
        contestants.with_deep_thinking(
            replace(plain, predictor=Half()), Method("deep-thinking", DeepThinking(passes=2))
        )
    with pytest.raises(UsageError) as error:
        contestants.with_deep_thinking(plain, Method("dt", DeepThinking(passes="dev")))
    assert "'a-run'" in str(error.value) and "passes" in str(error.value)


def test_a_baseline_gets_its_settings_the_seed_and_the_facts_of_the_task(task: TaskConfig) -> None:
    prompts = PromptSet(task.model_copy(update={"parameters": {"dim": 3}}), "smoke", "noisy-1", seed=5)
    (contestant,) = contestants.baselines(prompts, ["knn-3"])
    knn = contestant.predictor
    assert isinstance(knn, FittedPredictor) and (knn.settings.k, knn.seed) == (3, 5)
    family = prompts.family
    assert (knn.facts.family, knn.facts.shift, knn.facts.classes) == (family, "noisy-1", None)
    assert (knn.facts.noise_to_signal, knn.facts.hidden_width) == (
        family.noise_to_signal("noisy-1"),
        family.hidden_width,
    )
    assert knn.facts.noise_to_signal > 0
    (tree,) = contestants.baselines(prompts, ["decision-tree-2"])
    assert tree.predictor.settings.max_depth == 2  # type: ignore[attr-defined]
    labels = PromptSet(resolve_task("bursty", "smoke")[0], "smoke")
    (majority,) = contestants.baselines(labels, ["majority"])
    assert majority.predictor.facts.classes == labels.family.classes is not None  # type: ignore[attr-defined]
    mixture = resolve_task("gp-mixture", "smoke")[0]
    episodes = {one.name: one.episodes for one in contestants.baselines(PromptSet(mixture, "smoke"))}
    assert episodes["oracle-bayes"] == 128 and episodes["zero"] is None


def test_the_error_for_an_inapplicable_baseline_lists_applicable_ones(task: TaskConfig, tmp_path: Path) -> None:
    prompts = PromptSet(task.model_copy(update={"baselines": ["zero", "majority", "mean"]}), "smoke")
    with refused("not-applicable", "'majority'", "class labels", "'tiny-linear'", "numbers", "zero, mean"):
        contestants.baselines(prompts, ["majority"])
    with refused("not-applicable", "'majority'", "baselines: none"):
        contestants.baselines(PromptSet(task.model_copy(update={"baselines": ["majority"]}), "smoke"))
    card = tmp_path / "own.toml"
    for estimator in ("pathlib:Path", "math:sqrt"):
        card.write_text(f'estimator = "{estimator}"\nsummary = "no predictor"\n')
        with refused("plugin", "'own'", f"'{estimator}'", "iclbench.estimators.base.FittedPredictor"):
            contestants.baselines(PromptSet(task, "smoke"), [str(card)])
    card.write_text('estimator = "knn"\nsummary = "a typing error"\n[settings]\nkay = 3\n')
    with refused("unknown-name", "'own'", "settings", "kay"):
        contestants.baselines(PromptSet(task, "smoke"), [str(card)])


def test_the_data_folder_and_the_device_are_passed_to_family_and_model(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, ...]] = []
    build = TaskConfig.build
    monkeypatch.setattr(TaskConfig, "build", lambda self, data_dir=None: (calls.append((data_dir,)), build(self))[1])
    model = contestants.untrained("a-run", config, "meta", tmp_path)
    assert model.device == "meta" and {p.device.type for p in model.predictor.parameters()} == {"meta"}  # type: ignore[attr-defined]
    loaded = contestants.untrained("a-run", config).predictor
    monkeypatch.setattr(Run, "load", lambda self, device, data_dir: (calls.append((device, data_dir)), loaded)[1])
    run = create(tmp_path, config)
    run.weights.write_bytes(b"anything")
    assert contestants.backbone(run, "cpu", tmp_path).predictor is loaded
    assert (calls[0], calls[-1]) == ((tmp_path,), ("cpu", tmp_path))
