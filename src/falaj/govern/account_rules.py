"""Rules about who may change which account: pure checks over the caller and the account."""

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.errors import Denied, Invalid
from falaj.core.project_roles import roles_in_project
from falaj.govern.accounts import PROVIDERS_PEOPLE, collect_permissions, roles_of
from falaj.govern.people_records import Person
from falaj.govern.role_confirmation import DECIDING_ROLES, split_roles

DATA_FAMILIES, DATA_GROUPS = ("work", "secrets", "privacy"), ("read", "write", "move", "erase", "operate")
"""Permissions over data. The maker of a service account's token must hold those that the account has."""


def require_system_tenant(ctx: Context) -> None:
    if ctx.tenant != HOUSE or ctx.actor.tenant != HOUSE:
        raise Denied("only the people who run this installation may do this", "ask them")


def owns_folder(actor: Actor) -> bool:
    """True for the owner of an embedded folder, who holds its keys and needs no second person."""
    return actor.owns_folder and actor.kind == "person"


def plan_role_change(actor: Actor, account: Person, roles: tuple[str, ...]) -> dict[str, list[str]]:
    """The fields of an account that is given exactly these roles; the deciding ones that are new wait."""
    allowed = roles_of(roles, account.kind)
    proven = owns_folder(actor) or account.name.startswith(PROVIDERS_PEOPLE)
    counting, waiting = split_roles(allowed, DECIDING_ROLES if proven else account.roles)
    return {"roles": list(counting), "requested_roles": list(waiting)}


def check_service_account(account: Person) -> None:
    """Invalid for a service account that could touch the data of every project."""
    data = collect_permissions(account.roles) & {(family, group) for family in DATA_FAMILIES for group in DATA_GROUPS}
    if account.kind == "service" and "*" in account.projects and data:
        raise Invalid(
            f"a service account with the role {', '.join(account.roles)} belongs to named projects; got every project",
            "name them: --projects fraud",
        )


def check_token_maker(actor: Actor, account: Person) -> None:
    """Denied for an actor to whom the account's token would give more than their own roles do."""
    if actor.kind != "person" or actor.behalf:
        raise Denied("only a person makes tokens of service accounts", "a service renews its own: falaj people renew")
    in_all = frozenset.intersection(*(roles_in_project(actor.roles, project) for project in account.projects or ("",)))
    own, needed = collect_permissions(in_all), collect_permissions(account.roles)
    if ("people", "govern") in own:
        needed = {right for right in needed if right[0] in DATA_FAMILIES and right[1] in DATA_GROUPS}
    needed = {right for right in needed if right[1] != "see"}
    missing = sorted(f"{group} ({family})" for family, group in needed - own)
    if not missing and "*" not in actor.projects:
        missing = sorted(f"project {project}" for project in set(account.projects) - actor.projects)
    if not missing and account.jurisdiction not in ("", actor.jurisdiction):
        missing = [f"jurisdiction {account.jurisdiction}"]
    if missing:
        raise Denied(
            f"a token of {account.name} has rights that you do not have: {', '.join(missing)}",
            "a person of its project who holds them makes the token",
        )
