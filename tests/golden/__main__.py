"""Write the generated files: `python -m tests.golden` adds the golden answers, defaults, names and cards that are
missing.

Entries are missing after a class, shift, test or card is added, or after the code version of a class is increased.
Changed answers of an unchanged code version are not stored, so the tests of this folder fail.
"""

import torch

from tests.golden import answers, cards, defaults, stub


def main() -> None:
    torch.set_num_threads(1)
    written = cards.write_missing()
    written += [f"{kind} {name}" for kind in answers.KINDS for name in answers.write_missing(kind)]
    for name in [*written, *defaults.write_missing(), *stub.write_missing()]:
        print(name)  # noqa: T201


if __name__ == "__main__":
    main()
