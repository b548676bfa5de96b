"""Rules about who may change which account: pure checks over the caller and the account."""

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import Denied, Invalid
from falaj.core.project_roles import roles_in_project
from falaj.govern.accounts import PROVIDER_NAME_PREFIX, collect_permissions, require_valid_roles
from falaj.govern.people_records import AccountPerson
from falaj.govern.role_confirmation import DECIDING_ROLES, split_roles

DATA_FAMILIES, DATA_GROUPS = ("work", "secrets", "privacy"), ("read", "write", "move", "erase", "operate")
"""Permissions over data. The maker of a service account's token must hold those that the account has."""


def require_system_tenant(ctx: CallContext) -> None:
    if ctx.tenant != SYSTEM_TENANT or ctx.actor.tenant != SYSTEM_TENANT:
        raise Denied("only the people who run this installation may do this", "ask them")


def is_folder_owner(actor: Actor) -> bool:
    """True for the owner of an embedded folder, who holds its keys and needs no second person."""
    return actor.owns_folder and actor.kind == "person"


def plan_role_change(actor: Actor, account: AccountPerson, roles: tuple[str, ...]) -> dict[str, list[str]]:
    """The fields of an account that is given exactly these roles; the deciding ones that are new wait."""
    allowed_roles = require_valid_roles(roles, account.kind)
    is_proven = is_folder_owner(actor) or account.name.startswith(PROVIDER_NAME_PREFIX)
    active_roles, waiting_roles = split_roles(allowed_roles, DECIDING_ROLES if is_proven else account.roles)
    return {"roles": list(active_roles), "requested_roles": list(waiting_roles)}


def require_scoped_service_account(account: AccountPerson) -> None:
    """Invalid for a service account that could touch the data of every project."""
    data_permissions = collect_permissions(account.roles) & {
        (family, group) for family in DATA_FAMILIES for group in DATA_GROUPS
    }
    if account.kind == "service" and "*" in account.projects and data_permissions:
        raise Invalid(
            f"a service account with the role {', '.join(account.roles)} belongs to named projects; got every project",
            "name them: --projects fraud",
        )


def require_token_maker(actor: Actor, account: AccountPerson) -> None:
    """Denied for an actor to whom the account's token would give more than their own roles do."""
    if actor.kind != "person" or actor.behalf:
        raise Denied("only a person makes tokens of service accounts", "a service renews its own: falaj people renew")
    in_all = frozenset.intersection(*(roles_in_project(actor.roles, project) for project in account.projects or ("",)))
    own_permissions, needed_permissions = collect_permissions(in_all), collect_permissions(account.roles)
    if ("people", "govern") in own_permissions:
        needed_permissions = {
            permission
            for permission in needed_permissions
            if permission[0] in DATA_FAMILIES and permission[1] in DATA_GROUPS
        }
    needed_permissions = {permission for permission in needed_permissions if permission[1] != "see"}
    missing_rights = sorted(f"{group} ({family})" for family, group in needed_permissions - own_permissions)
    if not missing_rights and "*" not in actor.projects:
        missing_rights = sorted(f"project {project}" for project in set(account.projects) - actor.projects)
    if not missing_rights and account.jurisdiction not in ("", actor.jurisdiction):
        missing_rights = [f"jurisdiction {account.jurisdiction}"]
    if missing_rights:
        raise Denied(
            f"a token of {account.name} has rights that you do not have: {', '.join(missing_rights)}",
            "a person of its project who holds them makes the token",
        )
