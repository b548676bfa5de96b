"""Roles of one project: engineer in one, viewer in another, nobody in the rest; also in jobs, lists and sign-ins."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.backends.oidc_identity import OidcIdentityProvider
from falaj.core.context import Actor
from falaj.core.errors import Denied, FalajError, Invalid, NotFound
from falaj.core.label import ANY_VALUE, Label
from falaj.core.policy_scope import PolicyScope
from falaj.core.project_roles import PROJECT_ROLES, check_group_roles, limit_to_projects, read_group_roles
from falaj.govern.authorizer import Authorizer, PolicyFacts
from falaj.jobs.records import JobSpec
from falaj.server import LocalClient
from tests.conformance.test_identity import settings_for
from tests.jobs.lab import Lab
from tests.people import enroll
from tests.servers.oidc import OidcServer
from tests.town import Town, refusal

ROLES = frozenset({"ml-engineer@fraud", "viewer@risk"})
LABEL = "open"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    town = Town(tmp_path_factory.mktemp("project-roles") / "town")
    town.as_("admin").clusters.change("local", {"tenants": "bank"})
    rows = tmp_path_factory.mktemp("rows")
    (rows / "rows.csv").write_text("1\n2\n")
    for project in ("fraud", "risk", "payroll"):
        town.as_("mona").catalog.publish(f"dataset:{project}/rows", str(rows), label=LABEL)
    yield town
    town.close()


def engineer(town: Town, name: str, roles: frozenset[str] = ROLES) -> Any:
    """A client of somebody whom the identity provider gives these roles."""
    actor = replace(
        town.actor("amal"), id=f"oidc.{name}", credential="", subject=f"https://login.example#{name}",
        roles=roles, projects=frozenset({"fraud", "risk"}), makers=(),
    )  # fmt: skip
    town.house._sign_ins.note(actor, time.time())
    return LocalClient(town.house, actor, "test")


def refused(act: Any) -> FalajError:
    return refusal(act)


def test_engineer_in_one_project_and_viewer_in_another(town: Town, tmp_path: Path) -> None:
    amal, folder = engineer(town, "one"), tmp_path / "rows"
    folder.mkdir()
    (folder / "rows.csv").write_text("3\n")
    amal.catalog.publish("dataset:fraud/more", str(folder), label=LABEL)
    assert b"".join(amal.catalog.cat("dataset:risk/rows", "rows.csv")) == b"1\n2\n"
    assert isinstance(refused(lambda: amal.catalog.publish("dataset:risk/more", str(folder), label=LABEL)), Denied)
    assert isinstance(refused(lambda: amal.jobs.add("job:risk/mine", JobSpec(("true",)))), Denied)
    assert isinstance(refused(lambda: amal.catalog.show("dataset:payroll/rows")), (Denied, NotFound))
    assert {version.ref.project for version in amal.catalog.list(kind="dataset").versions} == {"fraud", "risk"}
    assert isinstance(refused(lambda: amal.people.add("eve", ("ml-engineer",))), Denied)
    assert amal.clusters.list()
    listed = {person.name: person for person in town.as_("fatima").people.list(prefix="oidc.")}
    assert (set(listed["oidc.one"].roles), set(listed["oidc.one"].projects)) == (set(ROLES), {"fraud", "risk"})


def test_a_job_has_the_roles_of_each_project(town: Town, tmp_path: Path) -> None:
    lab = Lab(tmp_path, engineer(town, "two"))
    script = "import os; print(open(os.environ['FALAJ_INPUT_ROWS'] + '/rows.csv').read().split())"
    with town.house.working():
        job = lab.done(lab.submit(script, "reads", project="fraud", inputs={"rows": "dataset:risk/rows"}))
    assert (job.state, lab.lines(job)) == ("succeeded", ("['1', '2']",)), job


def test_a_job_of_a_person_who_only_views_its_project_any_more_is_held(town: Town, tmp_path: Path) -> None:
    lab = Lab(tmp_path, engineer(town, "three"))
    job = lab.submit("print('ran')", "held", project="fraud")
    engineer(town, "three", frozenset({"viewer@fraud", "ml-engineer@risk"}))
    shown = town.as_("mona").jobs.show(job.ref)
    assert (shown.state, "holds no role any more" in shown.note) == ("held", True), shown
    town.as_("mona").jobs.cancel(job.ref)


def test_a_viewer_reads_and_changes_nothing(town: Town, tmp_path: Path) -> None:
    town.tokens["vera"] = enroll(town.as_("fatima"), "vera", ("viewer",), jurisdiction="AE", projects=("risk",))
    vera = town.as_("vera")
    (tmp_path / "rows.csv").write_text("1\n")
    assert b"".join(vera.catalog.cat("dataset:risk/rows", "rows.csv")) == b"1\n2\n"
    assert isinstance(refused(lambda: vera.catalog.publish("dataset:risk/x", str(tmp_path), label=LABEL)), Denied)
    assert isinstance(refused(lambda: vera.jobs.add("job:risk/x", JobSpec(("true",)))), Denied)
    assert isinstance(refused(lambda: vera.catalog.show("dataset:fraud/rows")), (Denied, NotFound))


ACTIONS = {"catalog.show": "see", "catalog.open": "read", "catalog.begin": "write", "people.add": "govern"}
KINDS, PROJECTS = ("dataset", "job", "person", "queue", "approval"), ("fraud", "risk", "house", "approvals")
GOOD = PolicyFacts("bank", True, True, True, True, False, False, "")
AUTHORIZER = Authorizer(ACTIONS)
grants = st.builds(
    lambda role, project: f"{role}@{project}",
    st.sampled_from(sorted(PROJECT_ROLES)),
    st.sampled_from(("fraud", "risk")),
)


@given(st.frozensets(grants, min_size=1, max_size=4), st.sampled_from(sorted(ACTIONS)))
def test_lists_show_what_single_questions_allow_and_nothing_beyond_the_roles_of_the_project(
    roles: frozenset[str], action: str
) -> None:
    actor = Actor("oidc.x", "bank", roles=roles, projects=frozenset({"fraud", "risk"}), jurisdiction="AE")
    universe = [
        replace(PolicyScope.of(kind, project, "dubai", Label()), kind=kind) for kind in KINDS for project in PROJECTS
    ]
    listed = AUTHORIZER.cells(actor, action, frozenset(cell.encode() for cell in universe), GOOD)
    for cell in universe:
        allowed = AUTHORIZER.decide(actor, action, cell, GOOD).allowed
        assert allowed is (cell.encode() in listed)
        own = frozenset(role.partition("@")[0] for role in roles if role.endswith(f"@{cell.project}"))
        if cell.project in ("fraud", "risk") and cell.kind != "approval":
            plain = replace(actor, roles=own)
            assert allowed is AUTHORIZER.decide(plain, action, cell, GOOD).allowed
        elif cell.kind != "approval":
            assert not allowed or ACTIONS[action] == "see"


def test_groups_of_the_provider_become_roles_of_projects(oidc_provider: OidcServer) -> None:
    rules = {"data-*s": "ml-engineer@*, viewer@risk"}
    identity = OidcIdentityProvider("oidc:", settings_for(oidc_provider, roles=rules))
    actor = identity.whois(oidc_provider.sign_in("alice")["access_token"], time.time())
    identity.close()
    assert actor is not None
    assert (actor.roles, actor.projects) == ({"ml-engineer@scientist", "viewer@risk"}, {"scientist", "risk"})


def test_rules_of_groups() -> None:
    rules = {"team-*-eng": "ml-engineer@*", "team-*-view": "viewer@*", "risk": "approver", "all": "viewer"}
    groups = ("team-fraud-eng", "team-a/b-eng", "team-eng", "team--view", "risk")
    assert read_group_roles(groups, rules) == {"ml-engineer@fraud", "approver"}
    roles = frozenset({"ml-engineer@a", "viewer", "approver"})
    assert limit_to_projects(roles, ANY_VALUE, ANY_VALUE) == (roles, ANY_VALUE)
    limited = frozenset({"ml-engineer@a", "viewer@b", "approver"})
    assert limit_to_projects(roles, frozenset({"b"}), ANY_VALUE) == (limited, {"a", "b"})
    assert limit_to_projects(frozenset({"viewer@a"}), ANY_VALUE, ANY_VALUE) == ({"viewer@a"}, {"a"})
    assert limit_to_projects(frozenset({"viewer"}), ANY_VALUE, ANY_VALUE) == ({"viewer"}, ANY_VALUE)


@pytest.mark.parametrize("rules", [{"a": "approver@x"}, {"a": "viewer@*"}, {"a*b*": "viewer@*"}, {"a": "viewer@X y"}])
def test_rules_that_cannot_be_are_refused(rules: dict[str, str]) -> None:
    with pytest.raises(Invalid, match=r"oidc\.roles"):
        check_group_roles(rules)
