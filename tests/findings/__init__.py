"""Every number in a sentence is computed from the packed results.

In Markdown a comment below a paragraph says what its numbers are: one line per sentence that has any, in order, in the
words of `quantities`. The text is what a reader sees and edits; each number in it is held against its quantity, with as
many decimals as the text has, and a sentence that no longer holds is named.

    Mamba is ahead of GPT-2 on all nine classes, by 0.14 [0.05, 0.24] (`tabular`) or more.
    <!-- numbers
    len(ahead("mamba", "gpt2")), lead("mamba", "gpt2", "tabular"), least("mamba", "gpt2") == "tabular"
    -->

The comment of a single sentence may stand in one line: `<!-- numbers: score("mamba", "linear") -->`.

`python -m tests.findings` says which sentences do not hold; `--write` puts the computed numbers into the text. What
commands print is the business of `tests.pages`.
"""

from pathlib import Path

_GUIDE = sorted(path for path in (Path(__file__).parents[2] / "docs").glob("*.md"))

# The texts, and from which count on number words in them are quantities, too, as all numbers are: "two" and "three" are
# words of the language in the README and the guide.
DOCUMENTS = {
    "README.md": 4,
    "results/reference/README.md": 2,
    **{f"docs/{path.name}": 4 for path in _GUIDE},
}
