"""Validation of Vega-Lite with a cached validator, which is much faster than `from_dict` of Altair."""

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
    """Raise `jsonschema.ValidationError` unless the figure is valid."""
    _validator().validate(figure)
