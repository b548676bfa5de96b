"""Threat: a job goes on with rights that its submitter has lost. Before each attempt starts, the platform asks what the
submitter may do now; of people whom only an identity provider knows, the last sign-in counts, for 30 days."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.core.context import Actor
from falaj.govern.sign_ins import MOST_AGE_S
from falaj.platform import Platform
from tests.jobs.lab import Lab
from tests.town import Town

HASAN = Actor("oidc.hasan", "bank", roles=frozenset({"data-scientist", "approver"}), jurisdiction="AE")


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    prepared = Town(tmp_path / "town")
    prepared.as_("admin").clusters.change("local", {"tenants": "bank", "state": "closed"})
    yield prepared
    prepared.close()


def ended(town: Town, lab: Lab, job: Any) -> Any:
    """The job, once the cluster took it or refused it."""
    town.as_("admin").clusters.change("local", {"state": "open"})
    with town.house.working():
        return lab.done(job)


def test_job_of_a_person_who_lost_their_role_does_not_start(town: Town, tmp_path: Path) -> None:
    lab = Lab(tmp_path, town.as_("amal"))
    job = lab.submit("print('it ran')", project="fraud")
    town.as_("fatima").people.change("amal", roles=("approver",))
    lab.here = town.as_("fatima")
    done = ended(town, lab, job)
    assert done.state == "failed"
    assert "amal holds no role any more that may run jobs" in done.note


def test_job_of_a_suspended_person_does_not_start(town: Town, tmp_path: Path) -> None:
    lab = Lab(tmp_path, town.as_("amal"))
    job = lab.submit("print('it ran')", project="fraud")
    town.as_("fatima").people.suspend("amal")
    lab.here = town.as_("fatima")
    assert ended(town, lab, job).state in ("failed", "cancelled")


@pytest.mark.parametrize(
    ("roles", "age_s", "state"),
    [
        (HASAN.roles, 0.0, "succeeded"),
        (frozenset({"approver"}), 0.0, "failed"),
        (frozenset(), 0.0, "failed"),
        (HASAN.roles, MOST_AGE_S + 1.0, "failed"),
    ],
    ids=["same roles", "role removed", "no role", "long ago"],
)
def test_job_of_a_person_of_the_provider_has_the_roles_of_the_last_sign_in(
    town: Town, tmp_path: Path, roles: frozenset[str], age_s: float, state: str
) -> None:
    town.house._sign_ins.note(HASAN, time.time() - MOST_AGE_S)
    lab = Lab(tmp_path, Platform(town.house, HASAN, "fraud"))
    job = lab.submit("print('it ran')", project="fraud")
    signed = Actor(HASAN.id, HASAN.tenant, roles=roles, jurisdiction="AE")
    town.house._sign_ins.note(signed, time.time() - age_s)
    lab.here = town.as_("fatima")
    done = ended(town, lab, job)
    assert done.state == state, done.note
