"""The base class of predictors that are specific to a family, such as its oracles."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, cast

from iclbench.core.errors import UsageError
from iclbench.core.predictor import Predictor
from iclbench.core.settings import BaseSettings, NoSettings
from iclbench.core.task import TaskFacts
from iclbench.families.base import Family

_Settings = TypeVar("_Settings", bound=BaseSettings)


class FamilyPredictor(Predictor, Generic[_Settings], abstract=True):
    """A predictor for the tasks of one family.

    Attributes:
        Settings: class of the settings on a baseline card.
        libraries: libraries on whose versions the answers may depend.
        family_class: the class of the family.
        family_name: its name in the registry, for messages.
        family: the family of the task.

    Raises:
        UsageError: the task is of another family.
    """

    Settings: ClassVar[type[BaseSettings]] = NoSettings
    libraries: ClassVar[tuple[str, ...]] = ()
    family_class: ClassVar[type[Family]]
    family_name: ClassVar[str]
    family: Any

    def __init__(self, settings: _Settings | None = None, facts: TaskFacts | None = None, seed: int = 0) -> None:
        self.settings: _Settings = cast(_Settings, self.Settings()) if settings is None else settings
        self.facts = facts or TaskFacts()
        if not isinstance(self.facts.family, self.family_class):
            raise UsageError(
                f"{type(self).__name__} requires a task of the family {self.family_name}; choose another oracle",
                code="not-applicable",
            )
        self.family = self.facts.family
