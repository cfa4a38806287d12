"""What tables of before schema 3 say in strings only, read off them into the columns that say it since.

The one place where names and sentences of the tables are taken apart. A column that a row has is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import pandas as pd

# How the backbones of version 0.1.0 read their context, by the beginning of a contestant's name.
_ORDERS = {
    **dict.fromkeys(("gpt2", "transformer", "coqe", "mamba", "s4d", "s4"), "causal"),
    **dict.fromkeys(("cnp", "tnp", "pt-tnp", "lbanp", "cmanp", "icicl-cnp", "icicl-tnp"), "set"),
}
_METHOD = re.compile(r"^.+?(\+(?:deep-thinking|repeat).*)$")
_NUMBER = re.compile(r"-\d.*$")
_EXTRAPOLATED = re.compile(r"(?:(.+)\+)?points-(\d+)")
_DEMONSTRATIONS = re.compile(r"-d(\d+)(?:-o(\d+))?-q?[0-9a-f]+$")
_MEAN_OF = re.compile(r"; mean over ([^;]+)$")
_RELATED_FROM = re.compile(r"(?:^|\+)mismatch-([a-z]+)")
_SCORE = ": 1 is "
_STRATUM = "stratum:"
_COARSE = "/coarse"
# What is measured since 0.2.0; rows of before are whole without.
LATER_METRICS = ("log_likelihood_joint", "log_likelihood_teacher_forced")


def filled(values: pd.DataFrame) -> pd.DataFrame:
    """Rows of `values`, with their exact types, with the columns of schema 3 filled in rows without a model: those that
    were written since have one."""
    older = values["model"].isna()
    if not older.any():
        return values
    if older.all():
        return _filled(values)
    return pd.concat([values[~older], _filled(values[older])]).loc[values.index]


def _filled(v: pd.DataFrame) -> pd.DataFrame:
    score, language = v["metric"].eq("score"), v["preset"].eq("language")
    method = _else(v["method"], _of_each(v["contestant"], _method))
    model = _else(v["model"], _models(v, method))
    distribution = _else(v["distribution"], _of_each(v["shift"], lambda name: _shift(name)[0]))
    extrapolated = _else(v["extrapolated_to"], _of_each(v["shift"], lambda name: _shift(name)[1], "Int64"))
    said = v["reason"].where(score)
    score_of = _else(v["score_of"], _of_each(said, lambda text: text.partition(_SCORE)[0]))
    score_one = _else(v["score_one"], _of_each(said, lambda text: text.partition(_SCORE)[2]))
    prompts = v["prompt_set"].where(language & v["demo_seed"].isna())
    of_axis = v["axis_value"].where(v["axis"].eq("demo_seed").fillna(False)).astype("Int64")
    demo_seed = _else(v["demo_seed"], _of_each(prompts, lambda name: _demonstrations(name)[0], "Int64"))
    demo_order = _else(v["demo_order"], _of_each(prompts, lambda name: _demonstrations(name)[1], "Int64"))
    return v.assign(
        method=method,
        model=model,
        distribution=distribution,
        extrapolated_to=extrapolated,
        related_from=_else(v["related_from"], _of_each(v["shift"], _related_from)),
        stratum=_else(v["stratum"], _of_each(v["axis"], _stratum)),
        score_of=score_of,
        score_one=score_one,
        demo_seed=_else(demo_seed, of_axis),
        demo_order=demo_order,
        mean_of=_else(v["mean_of"], _of_each(v["reason"].where(v["kind"].eq("published")), _mean_of)),
    )


def _else(known: pd.Series, found: pd.Series) -> pd.Series:
    """`known.fillna(found)` of one type, at once where nothing is missing or all of it is."""
    missing = known.isna()
    if not missing.any():
        return known
    return found if missing.all() else known.fillna(found)


def errors_filled(errors: pd.DataFrame) -> pd.DataFrame:
    """Rows of `errors` with the column of schema 3, `coarse`, which tables that lack it say behind the metric."""
    coarse = [str(name) for name in errors["metric"].unique() if str(name).endswith(_COARSE)]
    at_few = pd.Series(True, index=errors.index, dtype="boolean").where(errors["metric"].isin(coarse))
    plain = {name: name.removesuffix(_COARSE) for name in coarse}
    return errors.assign(metric=errors["metric"].replace(plain) if plain else errors["metric"], coarse=at_few)


def context_orders(values: pd.DataFrame) -> dict[str, str]:
    """How the backbones of these rows read their context, causal or set: as rows say, or as those of version 0.1.0 did,
    by contestant; without those of which it is not known."""
    own = values[values["kind"].eq("backbone")]
    each = own.drop_duplicates("contestant")
    known = {str(name): _order(str(model)) for name, model in zip(each["contestant"], each["model"], strict=True)}
    said = own.dropna(subset="context_order").drop_duplicates("contestant")
    recorded = {str(name): str(order) for name, order in zip(said["contestant"], said["context_order"], strict=True)}
    return {name: order for name, order in known.items() if order is not None} | recorded


def _of_each(
    texts: pd.Series, read: Callable[[str], object], dtype: Literal["string", "Int64"] = "string"
) -> pd.Series:
    """What is read off every text, each of them once; missing where there is none."""
    # By a list: `Series.map` takes four times as long, and thousands of tables are small.
    each = texts.tolist()
    known = {text: read(text) for text in set(each) if isinstance(text, str)}
    return pd.Series([known.get(text) for text in each], index=texts.index, dtype=dtype)


def _models(values: pd.DataFrame, method: pd.Series) -> pd.Series:
    """Contestants without the method that is applied to them and the task that they were trained on, and baselines
    without their number."""
    without, trained_on = method.fillna("").tolist(), values["trained_on"].fillna("").tolist()
    rows = zip(values["contestant"].tolist(), without, trained_on, strict=True)
    whole = list(zip(rows, values["kind"].isin(["baseline", "oracle"]).tolist(), strict=True))
    known = {each: _model(*each[0], each[1]) for each in set(whole)}
    return pd.Series([known[each] for each in whole], index=values.index, dtype="string")


def _model(name: str, method: str, trained_on: str, fitted: bool) -> str:
    """
    >>> _model("gpt2@linear+deep-thinking", "+deep-thinking", "linear", False), _model("lasso-1e-2", "", "", True)
    ('gpt2', 'lasso')
    """
    plain = name.removesuffix(method)
    plain = plain.removesuffix(f"@{trained_on}") if trained_on else plain
    return _NUMBER.sub("", plain) if fitted else plain


def _method(name: str) -> str | None:
    """
    >>> _method("demo-lm+deep-thinking-t5"), _method("gpt2")
    ('+deep-thinking-t5', None)
    """
    found = _METHOD.match(name)
    return found[1] if found else None


def _order(model: str) -> str | None:
    """
    >>> _order("mamba"), _order("icicl-tnp"), _order("gpt2-wide"), _order("my-net")
    ('causal', 'set', 'causal', None)
    """
    stem = max((name for name in _ORDERS if f"{model}-".startswith(f"{name}-")), key=len, default="")
    return _ORDERS.get(stem)


def _shift(name: str) -> tuple[str, int | None]:
    """
    >>> _shift("none"), _shift("points-64"), _shift("isotropic+points-64"), _shift("noisy-1")
    (('none', None), ('none', 64), ('isotropic', 64), ('noisy-1', None))
    """
    found = _EXTRAPOLATED.fullmatch(name)
    return (found[1] or "none", int(found[2])) if found else (name, None)


def _related_from(shift: str) -> str | None:
    """
    >>> _related_from("mismatch-far"), _related_from("mismatch-rbf+points-4"), _related_from("none")
    ('far', 'rbf', None)
    """
    found = _RELATED_FROM.search(shift)
    return found[1] if found else None


def _stratum(axis: str) -> str | None:
    """
    >>> _stratum("stratum:rbf"), _stratum("n_context")
    ('rbf', None)
    """
    return axis.removeprefix(_STRATUM) if axis.startswith(_STRATUM) else None


def _demonstrations(prompt_set: str) -> tuple[int | None, int | None]:
    """
    >>> _demonstrations("sst2-language-none-4shot-d1-o2-0a1b2c3d"), _demonstrations("sst2-language-none-4shot-d1-0a1b")
    ((1, 2), (1, 0))
    """
    found = _DEMONSTRATIONS.search(prompt_set)
    return (int(found[1]), int(found[2] or 0)) if found else (None, None)


def _mean_of(reason: str) -> str | None:
    """
    >>> _mean_of("table 1; printed; mean over sst2, trec")
    'sst2, trec'
    """
    found = _MEAN_OF.search(reason)
    return found[1] if found else None
