"""Titles of experiments: unique within a project, and nobody learns those of a project they may not see."""

from typing import Any

import pytest

from falaj.core.errors import Conflict
from tests.people import enroll
from tests.town import Town


def test_two_projects_use_the_same_title(town: Town, amal: Any) -> None:
    town.tokens["hind"] = enroll(town.as_("fatima"), "hind", ("data-scientist",), projects=("risk",), jurisdiction="AE")
    made = town.as_("hind").track.create("experiment:risk/scoring", title="Scoring")
    assert made.title == "Scoring"
    with pytest.raises(Conflict, match="the project fraud has an experiment"):
        amal.track.create("experiment:fraud/second", title="Scoring")
