"""The roles: who may do which group of verbs to which family of things. One table; the permits are made from it."""

import json
from collections.abc import Iterable, Mapping

from falaj.core.verb import GROUPS

FAMILIES: Mapping[str, tuple[str, ...]] = {
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
_TABLE = """
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

OPEN_ACTIONS = (
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


def _read_table(text: str) -> dict[str, dict[str, frozenset[str]]]:
    head, *rows = ([cell.strip() for cell in line.split("|")] for line in text.strip().splitlines())
    table: dict[str, dict[str, frozenset[str]]] = {}
    for role, *cells in rows:
        named = dict(zip(head[1:], (frozenset(cell.split()) for cell in cells), strict=True))
        everywhere = named.pop("all")
        table[role] = {family: groups | everywhere for family, groups in named.items()}
    return table


MATRIX: Mapping[str, Mapping[str, frozenset[str]]] = _read_table(_TABLE)
"""role -> family -> groups."""

ROLES = tuple(MATRIX)
ORDINARY = frozenset(ROLES) - {"service"}
"""What a person may hold. The owner of a laptop holds all of them; there is no role above them."""


def family_of(kind: str) -> str:
    """The family a kind belongs to."""
    return next((family for family, kinds in FAMILIES.items() if kind in kinds), "work")


def granting(group: str, kind: str) -> tuple[str, ...]:
    """The roles that allow a group of verbs on a kind, for hints."""
    family = family_of(kind)
    return tuple(role for role in ROLES if group in MATRIX[role][family])


def permits(actions: Iterable[str]) -> str:
    """The role permits as Cedar text; `actions` are the verbs of the house."""
    texts = [_permit(role, group) for role in ROLES for group in GROUPS if _somewhere(role, group)]
    everyone = [action for action in OPEN_ACTIONS if action in set(actions)]
    if everyone:
        texts.append(f'@id("everyone")\n@says("every caller may")\npermit (principal, {_in(everyone)}, resource);')
    return "\n\n".join(texts) + "\n"


def markdown() -> str:
    """The table as the documentation prints it."""
    families = ["work", *FAMILIES]
    lines = ["| role | " + " | ".join(families) + " |", "| --- |" + " --- |" * len(families)]
    for role in ROLES:
        cells = [" ".join(group for group in GROUPS if group in MATRIX[role][family]) or "-" for family in families]
        lines.append(f"| `{role}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _somewhere(role: str, group: str) -> bool:
    return any(group in groups for groups in MATRIX[role].values())


def _permit(role: str, group: str) -> str:
    """One permit. The role comes first in the condition: a slice leaves out what the caller does not hold."""
    condition = f'principal.roles.contains("{role}")'
    families = {family for family, groups in MATRIX[role].items() if group in groups}
    if families != set(MATRIX[role]):
        work = "work" in families
        kinds = [kind for family, kinds in FAMILIES.items() if (family in families) != work for kind in kinds]
        condition += f" && {'!' if work else ''}{json.dumps(kinds)}.contains(resource.kind)"
    return (
        f'@id("role-{role}-{group}")\n@says("the role {role} allows to {group}")\n'
        f"permit (principal, action in Action::{json.dumps(group)}, resource)\nwhen {{ {condition} }};"
    )


def _in(actions: Iterable[str]) -> str:
    return "action in [" + ", ".join(f"Action::{json.dumps(action)}" for action in actions) + "]"
