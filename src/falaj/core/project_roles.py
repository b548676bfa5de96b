"""Roles that count in one project only, written `role@project`, as identity providers grant them to groups.

An actor carries them among its roles; policy and workload tokens ask what they amount to in the project of a thing.
"""

import re
from collections.abc import Iterable, Mapping

from falaj.core.errors import Invalid

PROJECT_ROLES = frozenset({"viewer", "data-scientist", "ml-engineer"})
"""Roles that may be limited to a project; the others concern a whole tenant."""
_PROJECT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
_STAR = "*"


def base_role(role: str) -> str:
    """The role itself, without its project."""
    return role.partition("@")[0]


def roles_in_project(roles: Iterable[str], project: str) -> frozenset[str]:
    """The roles that count in a project: those of the tenant, and those of this project."""
    parts = (role.partition("@") for role in roles)
    return frozenset(role for role, at, limit in parts if not at or limit == project)


def list_projects(roles: Iterable[str]) -> frozenset[str]:
    """The projects that roles are limited to."""
    return frozenset(role.partition("@")[2] for role in roles if "@" in role)


def check_group_roles(rules: Mapping[str, str]) -> None:
    """Raise Invalid unless `rules`, from groups to roles, can be read."""
    for group, grants in rules.items():
        for grant in _split(grants):
            role, at, project = grant.partition("@")
            takes_star = project == _STAR and group.count(_STAR) == 1
            if group.count(_STAR) > 1 or (at and not (takes_star or _PROJECT.fullmatch(project))):
                raise Invalid(
                    f"oidc.roles: expected role or role@project, got {group[:60]} = {grant[:60]!r}",
                    'for example { "risk" = "approver", "falaj-*-engineers" = "ml-engineer@*" }',
                )
            if at and role not in PROJECT_ROLES:
                hint = f"these can: {', '.join(sorted(PROJECT_ROLES))}"
                raise Invalid(f"oidc.roles: {role[:40]} cannot be limited to a project", hint)


def read_group_roles(groups: Iterable[str], rules: Mapping[str, str]) -> frozenset[str]:
    """The roles that membership in these groups gives. A star in a rule's group matches any text; `@*` is that text."""
    roles: set[str] = set()
    for group in groups:
        for pattern, grants in rules.items():
            before, star, after = pattern.partition(_STAR)
            if group != pattern and not (
                star and len(group) > len(before) + len(after) and group.startswith(before) and group.endswith(after)
            ):
                continue
            text = group[len(before) : len(group) - len(after)] if star else ""
            for grant in _split(grants):
                role, at, project = grant.partition("@")
                project = text if project == _STAR else project
                if not at or _PROJECT.fullmatch(project):
                    roles.add(f"{role}{at}{project}")
    return frozenset(roles)


def limit_to_projects(
    roles: frozenset[str], projects: frozenset[str], everywhere: frozenset[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """(roles, projects) of an actor that holds `role@project` beside roles that count in `projects`.

    Without a role of the whole tenant only the named projects are theirs, not `everywhere`. With one, what can be
    limited is limited to `projects`, so that it does not count in the projects of the others.
    """
    named, plain = list_projects(roles), frozenset(role for role in roles if "@" not in role)
    if not named:
        return roles, projects
    if not plain:
        return roles, named if projects == everywhere else named | projects
    if projects == everywhere:
        return roles, projects
    limited = {f"{role}@{project}" for role in plain & PROJECT_ROLES for project in projects}
    return (roles - PROJECT_ROLES) | limited, named | projects


def _split(grants: str) -> list[str]:
    return [grant.strip() for grant in grants.split(",") if grant.strip()]
