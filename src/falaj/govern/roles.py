"""The roles: who may do which group of verbs to which family of things. One table; the permits are made from it."""

import json
from collections.abc import Iterable, Mapping

from falaj.core.operation import PERMISSION_GROUPS

KINDS_BY_FAMILY: Mapping[str, tuple[str, ...]] = {
    "people": ("people", "person", "tenant", "token", "trust", "revocation", "enrolment", "session"),
    "rules": ("policy", "policy-set", "zones", "zone", "regime", "grant"),
    "keys": ("keys", "key", "log-key"),
    "secrets": ("secrets", "secret"),
    "approvals": ("approvals", "approval", "document", "notice"),
    "log": ("audit", "log", "event", "checkpoint", "witness", "cosignature", "timestamp"),
    "privacy": (
        "privacy",
        "purpose",
        "consent",
        "subject-request",
        "erasure-plan",
        "refusal",
        "refusals",
        "breach",
        "certificate",
        "person-search",
        "dpia",
        "organisation",
    ),
    "machine": (
        "house",
        "replica",
        "loop",
        "store",
        "clusters",
        "cluster",
        "node",
        "agents",
        "agent",
        "queues",
        "queue",
        "budget",
    ),
}
"""The kinds (and desks) of each family. Every other kind, also one that nobody has invented yet, is `work`."""

# `all` counts for every family. A person may hold several roles; what they allow adds up.
_ROLE_TABLE_TEXT = """
role             | work                                     | people     | rules            | keys           | secrets                 | approvals                    | log    | privacy                         | machine     | all
tenant-admin     | see govern                               | see govern | see write govern | see            | see                     | see write                    | see    | see govern                      | see         |
data-steward     | see read write control move govern erase | see        | see write        |                |                         | see read write erase         |        | see read write erase            | see         |
viewer           | see read                                 |            | see              |                | see                     | see                          |        | see                             | see         |
data-scientist   | see read write control move              |            | see              |                | see                     | see write                    |        | see read                        | see         |
ml-engineer      | see read write control move operate      |            | see              |                | see write               | see write                    |        | see read                        | see         |
approver         | see                                      | see        | see              |                |                         | see read write approve       | see    | see approve                     | see         |
operator         | see control operate                      |            | see              | see operate    |                         | see write                    | see    | see                             | see operate |
dpo              | govern erase                             |            | write govern     | erase          |                         | read write approve erase     |        | read write govern approve erase |             | see audit
security-officer |                                          | govern     | write govern     | govern operate | read write govern erase | read write approve           | govern | write                           |             | see audit
auditor          |                                          |            |                  |                |                         | read                         |        |                                 |             | see audit
service          | see read write control move operate      |            | see              |                | see read                | see write                    |        | see read write                  | see         |
"""  # noqa: E501 - one line a role reads best

ROLE_FREE_ACTIONS = (
    *(
        "people.whoami",
        "people.renew",
        "people.exchange",
        "people.enroll",
        "people.token",
        "policy.explain",
        "policy.may",
    ),
    *("policy.roles", "agents.join", "agents.renew"),
)
"""What needs no role: they show callers only what is about themselves, or check a proof of their own."""


def _parse_role_table(text: str) -> dict[str, dict[str, frozenset[str]]]:
    header, *rows = ([table_cell.strip() for table_cell in line.split("|")] for line in text.strip().splitlines())
    table: dict[str, dict[str, frozenset[str]]] = {}
    for role, *table_cells in rows:
        groups_by_family = dict(
            zip(header[1:], (frozenset(table_cell.split()) for table_cell in table_cells), strict=True)
        )
        groups_everywhere = groups_by_family.pop("all")
        table[role] = {family: groups | groups_everywhere for family, groups in groups_by_family.items()}
    return table


GROUPS_BY_ROLE: Mapping[str, Mapping[str, frozenset[str]]] = _parse_role_table(_ROLE_TABLE_TEXT)
"""role -> family -> groups."""

ROLES = tuple(GROUPS_BY_ROLE)
PERSON_ROLES = frozenset(ROLES) - {"service"}
"""What a person may hold. The owner of a laptop holds all of them; there is no role above them."""


def find_family(kind: str) -> str:
    """The family a kind belongs to."""
    return next((family for family, kinds in KINDS_BY_FAMILY.items() if kind in kinds), "work")


def list_granting_roles(group: str, kind: str) -> tuple[str, ...]:
    """The roles that allow a group of verbs on a kind, for hints."""
    family = find_family(kind)
    return tuple(role for role in ROLES if group in GROUPS_BY_ROLE[role][family])


def build_permits(actions: Iterable[str]) -> str:
    """The role permits as Cedar text; `actions` are the verbs of the house."""
    texts = [
        _build_permit(role, group) for role in ROLES for group in PERMISSION_GROUPS if _is_granted_anywhere(role, group)
    ]
    role_free_actions = [action for action in ROLE_FREE_ACTIONS if action in set(actions)]
    if role_free_actions:
        texts.append(
            '@id("everyone")\n@says("every caller may")\npermit (principal, '
            f"{_build_action_condition(role_free_actions)}, resource);"
        )
    return "\n\n".join(texts) + "\n"


def build_markdown_table() -> str:
    """The table as the documentation prints it."""
    families = ["work", *KINDS_BY_FAMILY]
    lines = ["| role | " + " | ".join(families) + " |", "| --- |" + " --- |" * len(families)]
    for role in ROLES:
        cells = [
            " ".join(group for group in PERMISSION_GROUPS if group in GROUPS_BY_ROLE[role][family]) or "-"
            for family in families
        ]
        lines.append(f"| `{role}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _is_granted_anywhere(role: str, group: str) -> bool:
    return any(group in groups for groups in GROUPS_BY_ROLE[role].values())


def _build_permit(role: str, group: str) -> str:
    """One permit. The role comes first in the condition: a slice leaves out what the caller does not hold."""
    condition = f'principal.roles.contains("{role}")'
    families = {family for family, groups in GROUPS_BY_ROLE[role].items() if group in groups}
    if families != set(GROUPS_BY_ROLE[role]):
        includes_work = "work" in families
        kinds = [
            kind for family, kinds in KINDS_BY_FAMILY.items() if (family in families) != includes_work for kind in kinds
        ]
        condition += f" && {'!' if includes_work else ''}{json.dumps(kinds)}.contains(resource.kind)"
    return (
        f'@id("role-{role}-{group}")\n@says("the role {role} allows to {group}")\n'
        f"permit (principal, action in Action::{json.dumps(group)}, resource)\nwhen {{ {condition} }};"
    )


def _build_action_condition(actions: Iterable[str]) -> str:
    return "action in [" + ", ".join(f"Action::{json.dumps(action)}" for action in actions) + "]"
