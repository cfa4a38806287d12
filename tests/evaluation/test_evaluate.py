"""Evaluating a run: what is asked of whom, in which order, what is kept, taken from elsewhere or refused."""

from collections.abc import Callable
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
    Shipped,
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


class Half(Predictor):
    """Half, whatever it is shown; takes in sequences of nine points at most."""

    longest = 9

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        mean = torch.full_like(points.y, 0.5)
        return Point(mean if prefixes is None else mean[:, list(prefixes)])


@pytest.fixture
def config(card_path: Path) -> RunConfig:
    return resolve_run(str(card_path), "gpt2", "smoke", 0)


@pytest.fixture
def task(card_path: Path) -> TaskConfig:
    return resolve_task(str(card_path), "smoke")[0]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """A hand-made model in place of every run's; what it was asked for."""
    found: list[tuple[object, ...]] = []

    def backbone(run: Run, device: str, data_dir: Path | None) -> PredictorContestant:
        found.append((run.name, device, data_dir))
        return PredictorContestant("gpt2", run.name, "backbone", "who", device=device, predictor=Half())

    monkeypatch.setattr(contestants, "backbone", backbone)
    return found


def told(found: list[CellResult]) -> list[tuple[str, str, int, bool]]:
    return [(cell.contestant.name, cell.prompts.shift, cell.prompts.seed, cell.cached) for cell in found]


def test_what_is_asked_for_reaches_everybody(config: RunConfig, loaded: list, tmp_path: Path) -> None:
    run = create(tmp_path / "runs", config)
    begun: list[tuple[str, str]] = []
    options = {"seed": 7, "baseline_names": ["mean"], "summaries": False}
    begins = lambda one, prompts: begun.append((one.name, prompts.shift))  # noqa: E731
    found = []
    for cell in evaluate_run(Context(tmp_path, tmp_path), run, ("none", "orthants"), **options, begins=begins):
        found.append(cell)
        assert len(begun) == len(found), "told of every cell before it is worked on"
        assert cell.reason is None and cell.shipped == "" and cell.prompts.data_dir == tmp_path
    assert told(found) == [(name, shift, 7, False) for shift in ("none", "orthants") for name in ("gpt2", "mean")]
    assert begun == [(name, shift) for name, shift, _, _ in told(found)]
    assert loaded == [(run.name, "cpu", tmp_path)]
    assert found[0].prompts.family is found[-1].prompts.family, "one for all: it holds the data"
    assert not list(tmp_path.rglob("summary")), "a sweep writes them when all are done"
    assert all(cell.cached for cell in evaluate_run(Context(tmp_path, tmp_path), run, ("none", "orthants"), **options))


def test_a_run_is_evaluated_on_another_task_whose_episodes_a_family_gives(
    config: RunConfig, task: TaskConfig, loaded: list, tmp_path: Path
) -> None:
    run = create(tmp_path / "runs", config)
    other = task.model_copy(update={"name": "other", "episodes": 5, "baselines": ["mean", "zero"], "oracles": []})
    family = other.build()
    found = list(evaluate_run(Context(tmp_path), run, task=other, family=family))
    assert told(found) == [(name, "none", 0, False) for name in ("gpt2", "mean", "zero")]
    assert all(cell.prompts.task is other and cell.prompts.family is family for cell in found)
    assert list(tmp_path.rglob("summary/scores.values.parquet")), "what follows from all of them is written"
    (alone,) = evaluate_run(Context(tmp_path), run, baseline_names=[])
    assert alone.prompts.task == run.config.task and alone.prompts.family is not family


def test_scores_are_those_of_everybody_though_another_process_evaluates_on_the_same_prompts(
    task: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one ends between this one's reading and writing: what it wrote is written over, and then mended."""
    prompts = PromptSet(task, "smoke")
    every = contestants.baselines(prompts, ["zero", "mean", "knn-3"])
    write, others = evaluation.scores.write_scores, [every[2]]

    def late(everybody: PromptSetRows) -> None:
        assert len(everybody.values)  # read
        if others:
            list(evaluate_cells(tmp_path, prompts, [others.pop()]))
            summarise(tmp_path, prompts)
        write(everybody)

    monkeypatch.setattr(evaluation.scores, "write_scores", late)
    list(evaluate_cells(tmp_path, prompts, every[:2]))
    summarise(tmp_path, prompts)
    scored = tables.read("values", tmp_path / "tables" / prompts.id / "summary" / "scores.values.parquet")
    assert set(scored["contestant"]) == {"zero", "mean", "knn-3"}


def test_data_methods_and_lookups_reach_those_who_need_them(
    config: RunConfig, loaded: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "runs", config)
    thought: list[tuple[object, ...]] = []
    asked: list[tuple[object, ...]] = []
    told_of: list[tuple[object, ...]] = []
    built: list[object] = []

    def thinking(*arguments: object) -> PredictorContestant:
        thought.append(arguments)
        return PredictorContestant("thinking", "thinking", "backbone", "thinking", predictor=Half())

    build = TaskConfig.build
    monkeypatch.setattr(TaskConfig, "build", lambda self, data_dir=None: (built.append(data_dir), build(self))[1])
    monkeypatch.setattr(contestants, "thinking", thinking)
    monkeypatch.setattr(evaluation, "evaluate_cells", lambda *arguments: asked.append(arguments) or iter(()))
    monkeypatch.setattr(evaluation, "write_published", lambda *arguments: told_of.append(arguments))
    method, lookup, begins = Method("deep-thinking", DeepThinking(passes=2)), lambda *_: None, lambda *_: None
    assert not list(evaluate_run(Context(tmp_path, tmp_path), run, ("none", "points-3"), baseline_names=["zero"]))
    assert built[0] == tmp_path and told_of == [(tmp_path, config.task)]
    options = {"baseline_names": ["zero"], "summaries": False, "lookup": lookup, "begins": begins, "method": method}
    assert not list(evaluate_run(Context(tmp_path), run, ("none", "points-3"), fresh=True, **options))  # type: ignore[arg-type]
    assert [(one.name, asked_of) for one, asked_of in thought] == [("gpt2", method)]  # type: ignore[attr-defined]
    assert [[one.name for one in field] for _, _, field, *_ in asked] == [["gpt2", "zero"]] * 2 + [
        ["gpt2", "thinking", "zero"]
    ] * 2  # type: ignore[attr-defined]
    assert [(results, *more) for results, _, _, *more in asked] == [(tmp_path, None, False, None)] * 2 + [
        (tmp_path, lookup, True, begins)
    ] * 2
    built.clear()
    assert not list(evaluate_baseline(Context(tmp_path, tmp_path), config.task, "smoke", "zero", ["none"], []))
    assert built[0] == tmp_path and asked[-1][1].seed == 0  # type: ignore[attr-defined]


def test_there_is_a_prompt_set_for_every_shift_and_every_test(task: TaskConfig, tmp_path: Path) -> None:
    family = task.build()
    found = prompt_sets(task, "smoke", ["none", "noisy-1"], ["icl"], 3, tmp_path, family)
    assert [(each.shift, each.evaluator) for each in found] == [("none", ""), ("noisy-1", ""), ("none", "icl")]
    for each in found:
        assert each.task is task and each.given is family
        assert (each.preset, each.seed, each.data_dir) == ("smoke", 3, tmp_path)
    plain = prompt_sets(task, "smoke", ["none"], ["icl"])
    assert [(each.seed, each.data_dir, each.given) for each in plain] == [(0, None, None)] * 2


def test_shifts_are_told_once_and_in_one_spelling(config: RunConfig, tmp_path: Path) -> None:
    run = create(tmp_path, config)
    assert shifts_of(run, ["noisy", "none", "orthogonal_query", "noisy"], None) == [
        "none",
        "noisy-1",
        "orthogonal-query",
    ]
    assert shifts_of(run, ["all"], 9) == ["none", "orthants", "noisy-1", "points-9"]
    with pytest.raises(UsageError) as refused:
        shifts_of(run, [], 8)
    assert str(refused.value) == (
        f"--extrapolate 8 is not beyond the trained length of run '{run.name}' (8 examples); give a larger number, or "
        "none for 4x"
    )


def test_one_baseline_is_evaluated_without_a_run(task: TaskConfig, tmp_path: Path) -> None:
    found = list(
        evaluate_baseline(Context(tmp_path, tmp_path), task, "smoke", "knn-3", ["none", "noisy-1"], [], seed=2)
    )
    assert told(found) == [("knn-3", "none", 2, False), ("knn-3", "noisy-1", 2, False)]
    assert {(cell.prompts.preset, cell.prompts.data_dir) for cell in found} == {("smoke", tmp_path)}
    assert found[0].prompts.family is found[1].prompts.family
    assert not list(tmp_path.rglob("summary"))


def shipped(prompts: PromptSet, one: PredictorContestant) -> Shipped:
    row = cells.row(one, prompts, "next") | {"metric": "squared_error", "n_context": 1, "value": 7.0}
    return Shipped("the pack", {"values": [row], "errors": tables.frame("errors", [])}, {"torch": "9"})


def test_cells_are_taken_from_packed_results_and_computed_when_asked(task: TaskConfig, tmp_path: Path) -> None:
    prompts = PromptSet(task, "smoke")
    one, other = (PredictorContestant(name, name, "baseline", name, predictor=Half()) for name in ("one", "other"))
    asked: list[tuple[str, str]] = []

    def lookup(contestant: PredictorContestant, of: PromptSet) -> Shipped | None:
        asked.append((contestant.name, of.id))
        return shipped(of, contestant) if contestant is one else None

    def again(**options: object) -> list[tuple[str, bool, str]]:
        found = evaluate_cells(tmp_path, prompts, [one, other], **options)  # type: ignore[arg-type]
        return [(cell.contestant.name, cell.cached, cell.shipped) for cell in found]

    assert again(lookup=lookup) == [("one", False, "the pack"), ("other", False, "")]
    assert asked == [("one", prompts.id), ("other", prompts.id)]
    path = cells.cell_path(tmp_path, one, prompts)
    assert tables.read("values", path)["value"].tolist() == [7]
    about = tables.metadata(path)
    assert (about["from"], about["library.torch"], cells.is_done(tmp_path, one, prompts)) == ("the pack", "9", True)
    assert again(lookup=lookup) == [("one", True, "the pack"), ("other", True, "")]
    assert len(asked) == 2, "what is there is not looked for"
    assert again(fresh=True) == [("one", False, ""), ("other", True, "")]
    assert 7 not in tables.read("values", path)["value"].tolist()
    assert cells.shipped_from(tmp_path, one, prompts) == ""


def test_the_question_decides_who_asks(task: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(question: str, one: PredictorContestant, prompts: PromptSet) -> cells.Tables:
        return {"values": [{"status": "failed", "reason": question}]}

    monkeypatch.setattr(evaluation, "_SCORED_BY", {name: partial(failed, name) for name in ("targets", "next")})
    monkeypatch.setattr(cells, "write", lambda *arguments: None)
    for question in ("targets", "next"):
        prompts = PromptSet(task.model_copy(update={"question": question}), "smoke")
        one = PredictorContestant("one", "one", "baseline", "one", predictor=Half())
        (cell,) = evaluate_cells(tmp_path, prompts, [one])
        assert cell.reason == question


def test_the_identity_of_a_run_is_that_of_its_configuration_and_weights(config: RunConfig, tmp_path: Path) -> None:
    run = create(tmp_path, config)
    model = contestants.untrained(run.name, config)
    assert (model.name, model.run, model.kind, model.seed) == ("gpt2", run.name, "backbone", 0)
    assert (model.variant, model.device) == (variant_id(config), "cpu") and model.libraries == {
        "torch": torch.__version__
    }
    assert model.order == "causal" and not model.predictor.training
    assert model.identity == content_hash({"config": identity.training(config)})
    other = config.model_copy(update={"seed": 1})
    assert contestants.untrained(run.name, other).identity != model.identity
    found = []
    for weight in (0.0, 0.0, 1.0):
        tensors = {name: torch.full_like(t, weight) for name, t in model.predictor.state_dict().items()}
        save_tensors(run.weights, tensors, run.signature, digest=True)
        found.append(contestants.backbone(run))
    assert found[0].identity == found[1].identity
    assert len({model.identity, found[0].identity, found[2].identity}) == 3
    expected = content_hash({"config": run.hash, "weights": digests.of_file(run.weights)})
    assert found[2].identity == expected
    assert all(float(t.detach().abs().max()) == 1 for t in found[2].predictor.parameters())


@pytest.mark.parametrize(("chosen", "tuned"), [("gpt2", True), ("gpt2-rotary", False)])
@pytest.mark.parametrize(("rate", "equal"), [("1e-3", True), ("2e-3", False)])
def test_a_run_is_tuned_if_its_rate_is_the_one_chosen_for_its_backbone(
    tmp_path: Path, chosen: str, tuned: bool, rate: str, equal: bool
) -> None:
    (tmp_path / "rates").mkdir()
    (tmp_path / "rates" / "smoke.toml").write_text(
        f'[[tuned]]\ntasks = ["linear"]\nsteps = 100\nseeds = 3\n[tuned.train]\n{chosen} = {{ lr = 1e-3 }}\n'
    )
    config = resolve_run("linear", "gpt2", "smoke", overrides=[f"train.lr={rate}"])
    run = create(tmp_path, config)
    model = contestants.untrained(run.name, config).predictor
    save_tensors(run.weights, model.state_dict(), run.signature, digest=True)  # type: ignore[attr-defined]
    row = cells.row(contestants.backbone(run), PromptSet(config.task, "smoke"), "next")
    assert row["tuned"] is (tuned and equal)


def test_a_baseline_is_known_by_all_that_its_answers_depend_on(task: TaskConfig) -> None:
    def one(name: str, preset: str = "smoke", of: TaskConfig = task, **about: int) -> PredictorContestant:
        (found,) = contestants.baselines(PromptSet(of, preset, **about), [name])
        return found

    tree, knn = one("decision-tree-2"), one("knn-3")
    assert (knn.name, knn.run, knn.kind, knn.episodes) == ("knn-3", "knn-3", "baseline", None)
    assert knn.order is None and {"torch", "scikit-learn", "xgboost"} == set(knn.libraries)
    assert one("least-squares").kind == "oracle"
    longer = task.model_copy(update={"points": 30})
    assert one("knn-3", of=longer).identity == knn.identity
    noisy = task.model_copy(update={"family": "noisy-linear", "parameters": {"dim": 3, "noise": 0.5}})
    ridge = one("ridge", of=noisy)
    assert ridge.identity != one("ridge", of=task).identity, "it is told how much noise there is"
    names = ("decision-tree-2", "decision-tree-4", "knn-3", "zero", "mean")
    assert len({one(name).identity for name in names}) == 5
    assert one("decision-tree-2", "paper").identity == tree.identity
    facts = [0.0, 100]
    expected = {
        "estimator": "knn",
        "settings": {},  # k is 3 by default
        "facts": facts,
        "code": codes.of_estimator("knn"),
        "libraries": {},
    }
    assert knn.identity == content_hash(expected)
    of_tree = {"estimator": "decision-tree", "settings": {"max_depth": 2}}
    of_library = {"scikit-learn": tree.libraries["scikit-learn"]}
    of_tree |= {"code": codes.of_estimator("decision-tree"), "libraries": of_library}
    assert tree.identity == content_hash(expected | of_tree)


def test_a_run_that_thinks_is_another_contestant(config: RunConfig, tmp_path: Path) -> None:
    plain = replace(contestants.untrained("a-run", config), variant="as trained")
    method = Method("deep-thinking", DeepThinking(passes=2))
    found = contestants.thinking(plain, method)
    assert isinstance(found.predictor, ThinkingBackbone)
    assert (found.name, found.run) == ("gpt2" + method.suffix, "a-run" + method.suffix)
    other = contestants.thinking(plain, Method("deep-thinking", DeepThinking(passes=3)))
    assert len({plain.identity, found.identity, other.identity}) == 3
    assert len({plain.variant, found.variant, other.variant}) == 3
    hashed = content_hash
    assert found.identity == hashed({"run": plain.identity, "method": method.hash})
    assert found.variant == hashed({"run": "as trained", "method": method.hash}, 8)
    twin = contestants.thinking(replace(plain, identity="other weights"), method)
    assert twin.identity != found.identity and twin.variant == found.variant
    refused: list[tuple[Callable[[], object], str]] = [
        (
            lambda: contestants.thinking(plain, Method("icl", PlainICL())),
            r"^--method icl is for language models \(iclbench lm eval\); runs take deep-thinking$",
        ),
        (lambda: contestants.thinking(replace(plain, predictor=Half()), method), "is for language models"),
        (lambda: contestants.thinking(plain, Method("dt", DeepThinking(passes="dev"))), "run 'a-run': passes"),
    ]
    for work, why in refused:
        with pytest.raises(UsageError, match=why):
            work()


def test_a_baseline_is_told_its_settings_the_seed_and_what_it_may_know(task: TaskConfig) -> None:
    prompts = PromptSet(task.model_copy(update={"parameters": {"dim": 3}}), "smoke", "noisy-1", seed=5)
    (found,) = contestants.baselines(prompts, ["knn-3"])
    knn = found.predictor
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
    few = resolve_task("gp-mixture", "smoke")[0]
    asked = {one.name: one.episodes for one in contestants.baselines(PromptSet(few, "smoke"))}
    assert asked["oracle-bayes"] == 128 and asked["zero"] is None


def test_a_baseline_that_does_not_fit_is_refused_with_those_that_do(task: TaskConfig, tmp_path: Path) -> None:
    asked = PromptSet(task.model_copy(update={"baselines": ["zero", "majority", "mean"]}), "smoke")
    with pytest.raises(UsageError) as refused:
        contestants.baselines(asked, ["majority"])
    assert str(refused.value) == (
        "baseline 'majority' predicts class labels, task 'tiny-linear' asks for numbers; its baselines: zero, mean"
    )
    with pytest.raises(UsageError, match=r"its baselines: none$"):
        contestants.baselines(PromptSet(task.model_copy(update={"baselines": ["majority"]}), "smoke"))
    card = tmp_path / "own.toml"
    for estimator in ("pathlib:Path", "math:sqrt"):
        card.write_text(f'estimator = "{estimator}"\nsummary = "no predictor"\n')
        with pytest.raises(UsageError) as refused:
            contestants.baselines(PromptSet(task, "smoke"), [str(card)])
        assert str(refused.value) == (
            f"baseline 'own': '{estimator}' is no estimator: it must be a subclass of "
            "iclbench.estimators.base.FittedPredictor"
        )
    card.write_text('estimator = "knn"\nsummary = "a typing error"\n[settings]\nkay = 3\n')
    with pytest.raises(UsageError, match=r"^baseline 'own': settings\b.*kay"):
        contestants.baselines(PromptSet(task, "smoke"), [str(card)])


def test_data_and_device_reach_the_family_and_the_model(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[object, ...]] = []
    build = TaskConfig.build
    monkeypatch.setattr(TaskConfig, "build", lambda self, data_dir=None: (found.append((data_dir,)), build(self))[1])
    model = contestants.untrained("a-run", config, "meta", tmp_path)
    assert model.device == "meta" and {p.device.type for p in model.predictor.parameters()} == {"meta"}  # type: ignore[attr-defined]
    loaded = contestants.untrained("a-run", config).predictor
    monkeypatch.setattr(Run, "load", lambda self, device, data_dir: (found.append((device, data_dir)), loaded)[1])
    run = create(tmp_path, config)
    run.weights.write_bytes(b"anything")
    assert contestants.backbone(run, "cpu", tmp_path).predictor is loaded
    assert (found[0], found[-1]) == ((tmp_path,), ("cpu", tmp_path))
