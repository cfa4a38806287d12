"""Render the README, the guide and the findings from templates: `python -m docs.render [--check] [PAGE...]`.

`docs/templates/NAME.md` is rendered to `docs/NAME.md`, except for the templates in `PLACES`. Templates are Jinja.
`{{ number(score("mamba", "linear"), 2) }}` computes a number with the functions of `docs/quantities.py`. A sentence
that depends on the results is in a block with its condition, and rendering fails if the condition is false:

    {% call when(lead("mamba", "s4d", "linear").low > 0) %}Mamba is ahead of S4D.{% endcall %}

Every digit in a sentence is computed or marked as given, `{{ given(95) }}`, except in code, links, names (GPT-2, S4),
numbers of figures and tables, and years. Fenced blocks are copied unchanged; `tests/pages` runs them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined, TemplateError
from jinja2.meta import find_undeclared_variables

from iclbench.core.errors import IclbenchError

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "docs" / "templates"
PLACES = {"README.md": "README.md", "reference-results.md": "results/reference/README.md"}

_FENCED = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
# Matches either text in which digits need no mark, or a digit.
_DIGIT = re.compile(
    r"""(?P<exempt>^\ *(?P<fence>```+).*?^\ *(?P=fence)\ *$|^\ {4}[^\n]*$
    |\{\{(?P<expression>.*?)\}\}|\{%.*?%\}|\{\#.*?\#\}|`[^`]*`|\$\$.*?\$\$|\$[^$\s](?:[^$]*[^$\s])?\$(?!\d)
    |\]\([^)]*\)|<[!/A-Za-z][^>]*>|https?://\S+
    |\b(?:[Ff]igure|[Tt]able|[Ee]quation|[Ss]ection|[Aa]ppendix)\s\w?\.?\d+(?:\.\d+)*
    |\b(?:[Ff]igures|[Tt]ables|[Ee]quations|[Ss]ections)\s\w?\.?\d+(?:\.\d+)*(?:(?:,|\sand|\sto)\s\d+)*
    |\b(?:19\d\d|20[0-3]\d)\b
    |(?<![\w.])[A-Za-z][A-Za-z+-]*-?\d[\w-]*(?:\.\d+)*)
    |(?P<digit>\d[\d.,]*)""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_WORDS = [
    *("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
]


class StatementError(Exception):
    """Raised if a statement no longer holds, or if a digit is not computed and not marked as given."""


def unmarked(template: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every digit that is not computed and not marked as given."""
    for match in _DIGIT.finditer(template):
        if digit := match["digit"] or _typed(match["expression"] or ""):
            yield template.count("\n", 0, match.start()) + 1, digit


def _typed(expression: str) -> str:
    """Return the number if an expression only formats a literal, or "" if it computes a value or marks a number as
    given.
    """
    names = set(re.findall(r"[A-Za-z_]\w*", expression)) - (FORMATS.keys() - {"given"})
    return expression.strip() if not names and re.search(r"\d", expression) else ""


def render(template: str, functions: Mapping[str, Any], name: str = "template") -> str:
    """Return the Markdown of a template.

    Args:
        template: the text of the template.
        functions: the names that expressions may use.
        name: the name of the file in errors.

    Raises:
        StatementError: a statement no longer holds, a value cannot be computed, or a digit is not computed and not
            marked as given.
    """
    problems = [f"{name}:{line}: {digit} is neither computed nor given" for line, digit in unmarked(template)]
    if problems:
        raise StatementError("\n".join(problems))
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    source = _FENCED.sub(lambda match: "{% raw %}" + match[0] + "{% endraw +%}", template)
    place = name
    try:
        for quantity in sorted(find_undeclared_variables(environment.parse(source)).intersection(functions)):
            place = f"{name}: {quantity}"
            environment.globals[quantity] = functions[quantity]
        place = name
        environment.globals |= FORMATS
        return environment.from_string(source).render()
    except LookupError as error:
        raise StatementError(f"{_place(place, error)}: {error}; restore the results or change the template") from error
    except (IclbenchError, TemplateError, StatementError, TypeError, ValueError, AttributeError) as error:
        raise StatementError(f"{_place(place, error)}: {error}") from error


def _place(place: str, error: BaseException) -> str:
    """Return a place in a template, with the line at which an error was raised if there is one."""
    lines = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    line = lines[-1] if lines else getattr(error, "lineno", None)
    return place if line is None else f"{place}:{line}"


def number(value: float, decimals: int = 0) -> str:
    """Format a number with commas between thousands and a true minus sign.

    >>> number(-1234.567, 1)
    '−1,234.6'
    """
    return f"{round(float(value), decimals) + 0.0:,.{decimals}f}".replace("-", "−")


def interval(difference: Any, decimals: int = 3) -> str:
    """Format a value with its interval: `0.064 [0.029, 0.099]`."""
    value, low, high = (number(part, decimals) for part in (difference.value, difference.low, difference.high))
    return f"{value} [{low}, {high}]"


def between(values: Any, decimals: int = 2) -> str:
    """Format the lowest and the highest of several numbers, as `0.71 to 0.81`, or as one number if both are equal."""
    low, high = number(min(values), decimals), number(max(values), decimals)
    return low if low == high else f"{low} to {high}"


def both(values: Any, decimals: int = 2) -> str:
    """Format the first two of several numbers, separated by a comma and a non-breaking space.

    >>> both([0.9712, 0.9633, 0.95]).split()
    ['0.97,', '0.96']
    """
    return ",\u00a0".join(number(value, decimals) for value in values[:2])


def word(count: int) -> str:
    """Format a count in words from one to twenty, and in digits above.

    >>> word(9), word(21)
    ('nine', '21')
    """
    return _WORDS[count] if 0 < count < len(_WORDS) else number(count)


def power(value: float, decimals: int = 0) -> str:
    """Format a number as `1e-2`."""
    return re.sub(r"e([+-])0*(\d)", lambda match: f"e{match[1].strip('+')}{match[2]}", f"{float(value):.{decimals}e}")


def given(value: float | str) -> str:
    """Mark a number that is not computed: a definition, a setting in the text, or a number from a paper."""
    return value if isinstance(value, str) else f"{value:,}".replace("-", "−")


def when(condition: object, caller: Callable[[], str]) -> str:
    """Return the text of a block if its condition holds.

    Raises:
        StatementError: the condition is False, or is not a Boolean (a list, NaN, a function that is not called).
    """
    text = caller()
    if not isinstance(condition, bool | np.bool_):
        raise StatementError(f"expected True or False, got {condition!r}: {' '.join(text.split())[:200]}")
    if not condition:
        raise StatementError(
            f"no longer holds; change the statement or restore the results: {' '.join(text.split())[:200]}"
        )
    return text


def code(names: Any) -> str:
    """Format names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


FORMATS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (number, interval, between, both, word, power, given, when, code)
} | {each.__name__: each for each in (abs, all, any, float, len, list, max, min, set, sorted, sum)}


def page(template: Path) -> Path:
    """Return the page to which a template is rendered."""
    return ROOT / PLACES.get(template.name, f"docs/{template.name}")


def template(path: Path) -> Path:
    """Return the template from which a page is rendered."""
    relative = path.resolve().relative_to(ROOT).as_posix()
    names = {place: name for name, place in PLACES.items()}
    return TEMPLATES / names.get(relative, path.name)


def main(*arguments: str) -> int:
    """Render the pages or, with `--check`, print the names of pages that differ from their templates."""
    from docs.quantities import Reference
    from iclbench.tables import TableError

    templates = sorted(TEMPLATES.glob("*.md"))
    wanted = [Path(word).name for word in arguments if not word.startswith("-")]
    if unknown := set(wanted).difference(*({template.name, page(template).name} for template in templates)):
        sys.stderr.write(f"no template for {', '.join(sorted(unknown))}; a name ends with .md\n")
        return 1
    functions = Reference().quantities
    failed = False
    for template in templates:
        path = page(template)
        if wanted and template.name not in wanted and path.name not in wanted:
            continue
        try:
            text = render(template.read_text(), functions, str(template.relative_to(ROOT)))
        except StatementError as error:
            sys.stderr.write(f"{error}\n")
            failed = True
            if isinstance(error.__cause__, TableError):
                break  # all pages with results have the same error
            continue
        if "--check" not in arguments:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            sys.stderr.write(f"{path.relative_to(ROOT)} differs from its template; run python -m docs.render\n")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
