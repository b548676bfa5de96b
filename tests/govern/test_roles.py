"""The table of roles: what it must never say, and that documentation and permits say the same."""

from pathlib import Path

import pytest

from falaj.core.operation import PERMISSION_GROUPS
from falaj.govern.roles import (
    GROUPS_BY_ROLE,
    KINDS_BY_FAMILY,
    PERSON_ROLES,
    ROLES,
    build_markdown_table,
    build_permits,
    find_family,
    list_granting_roles,
)

DOC = Path(__file__).parents[2] / "docs" / "policy.md"


def test_documentation_prints_the_table_as_it_is() -> None:
    assert build_markdown_table() in DOC.read_text(encoding="utf-8"), (
        "paste the output of falaj.govern.roles.build_markdown_table()"
    )


def test_every_group_in_the_table_exists() -> None:
    assert {group for row in GROUPS_BY_ROLE.values() for groups in row.values() for group in groups} <= set(
        PERMISSION_GROUPS
    )


def test_an_administrator_has_no_access_to_data() -> None:
    assert GROUPS_BY_ROLE["tenant-admin"]["work"].isdisjoint({"read", "move", "write", "erase", "operate"})
    assert "read" not in GROUPS_BY_ROLE["tenant-admin"]["secrets"]


def test_who_runs_the_machine_does_not_read_what_is_on_it() -> None:
    assert all(
        groups.isdisjoint({"read", "write", "move"})
        for f, groups in GROUPS_BY_ROLE["operator"].items()
        if f != "approvals"
    )
    assert list_granting_roles("operate", "store") == ("operator",)


def test_an_auditor_only_looks() -> None:
    assert {group for groups in GROUPS_BY_ROLE["auditor"].values() for group in groups} == {"see", "audit", "read"}
    assert [family for family, groups in GROUPS_BY_ROLE["auditor"].items() if "read" in groups] == ["approvals"]


@pytest.mark.parametrize("role", ["service", "tenant-admin", "data-scientist", "ml-engineer", "operator", "auditor"])
def test_who_never_approves(role: str) -> None:
    assert all("approve" not in groups for groups in GROUPS_BY_ROLE[role].values())


def test_no_role_may_do_everything() -> None:
    for role in ROLES:
        assert any(set(PERMISSION_GROUPS) - groups for groups in GROUPS_BY_ROLE[role].values())
    assert "owner" not in ROLES
    assert frozenset(ROLES) - {"service"} == PERSON_ROLES


def test_a_kind_nobody_has_named_is_work() -> None:
    assert find_family("something-new") == "work"
    assert [find_family(kind) for kinds in KINDS_BY_FAMILY.values() for kind in kinds] == [
        family for family, kinds in KINDS_BY_FAMILY.items() for _ in kinds
    ]


def test_hints_name_exactly_the_roles_of_the_table() -> None:
    assert list_granting_roles("govern", "person") == ("tenant-admin", "security-officer")
    assert list_granting_roles("read", "secret") == ("security-officer", "service")


def test_there_is_a_permit_for_each_role_and_group_and_none_for_absent_verbs() -> None:
    text = build_permits({"people.whoami"})
    for role in ROLES:
        for group in PERMISSION_GROUPS:
            granted = any(group in groups for groups in GROUPS_BY_ROLE[role].values())
            assert (f'@id("role-{role}-{group}")' in text) is granted
    assert "people.whoami" in text
    assert "people.exchange" not in text
