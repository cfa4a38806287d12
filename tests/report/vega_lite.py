"""Whether a figure is valid Vega-Lite, in one pass over its schema: Altair's `from_dict` makes one at every level."""

from functools import cache
from typing import Any

from altair.vegalite.v6.schema.core import load_schema
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for


@cache
def _validator() -> Validator:
    schema = load_schema()
    return validator_for(schema)(schema)


def validate(figure: dict[str, Any]) -> None:
    """Raises `jsonschema.ValidationError`."""
    _validator().validate(figure)
