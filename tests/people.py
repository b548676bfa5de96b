"""Enrolment in tests: what an administrator, the new person and the confirming officer do, one after the other."""

import re
from collections.abc import Callable
from typing import Any

from falaj.api.remote_client import RemoteClient
from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import Denied, FalajError
from falaj.govern.people import GUEST_ACTOR
from falaj.server import LocalClient

_officer_codes: dict[tuple[str, str], str] = {}
"""(address or folder of a server, tenant) -> the enrolment code of its security officer, until it is needed."""
_officers: dict[tuple[str, str], str] = {}
"""The same, with the officer's token."""


def redeem(platform: Any, enrolment: Any) -> str:
    """The person's side: redeem the code where nobody is signed in; the officer of the tenant, where it has one,
    confirms the person. The token of a service account comes from `platform.people.token` instead."""
    if enrolment.state == "service":
        token: str = platform.people.token(enrolment.person.name).token
        return token
    issued = _redeem_code(platform, enrolment.code)
    if issued.confirmation and _has_officer(platform):
        approve_as_officer(platform, issued.confirmation)
    return str(issued.token)


def enroll(platform: Any, name: str, roles: tuple[str, ...], **details: Any) -> str:
    """Add an account as the caller of `platform`, and give the token that the new person gets."""
    return redeem(platform, platform.people.add(name, roles, **details))


def enroll_tenant(platform: Any, tenant: str, admin: str, **details: Any) -> str:
    """Take a tenant in and appoint its security officer, and give the token that its first administrator gets."""
    token = redeem(platform, platform.people.add_tenant(tenant, admin, **details))
    register_officer(platform, platform.people.appoint_officer(tenant, "officer").code, tenant)
    return token


def register_officer(platform: Any, code: str, tenant: str = SYSTEM_TENANT) -> None:
    """Keep the code of a tenant's security officer, for the first role that needs confirming."""
    _officer_codes[_address(platform), tenant] = code


def confirm_roles(platform: Any, name: str) -> None:
    """Have the officer confirm the roles that this account of the caller's tenant waits for."""
    waiting = platform.approvals.list(state="waiting", action="people.confirm")
    ref = next(str(state.ref) for state in waiting if state.approval.about == f"person:people/{name}")
    approve_as_officer(platform, ref)


def approve_as_officer(platform: Any, approval: str) -> None:
    """The security officer of the caller's tenant approves."""
    token = officer_token(platform)
    if isinstance(platform, LocalClient):
        LocalClient(platform.house, platform.house.authenticate(token)).approvals.give(approval)
        return
    with RemoteClient(platform.address, token=token, ca=platform.ca) as officer:
        officer.approvals.give(approval)


def with_approval(act: Callable[[], Any], asker: Any, approver: Any) -> Any:
    """Do what needs a second person: `act` is refused, `asker` asks as the refusal says, `approver` gives it."""
    try:
        return act()
    except Denied as refused:
        if "falaj approvals ask" not in refused.hint:
            raise
        approve_refused(refused, asker, approver)
    return act()


def approve_refused(refused: FalajError, asker: Any, approver: Any) -> None:
    """Ask for the approval that a refusal names, and give it."""
    asked = re.search(r"falaj approvals ask (\S+) (sha256:\S+) --needs 1", refused.hint)
    assert asked is not None, refused.hint
    approver.approvals.give(asker.approvals.ask(asked[1], asked[2], reason="agreed on", needs=1).ref)


def officer_token(platform: Any) -> str:
    """The token of the security officer of the caller's tenant, who enrols when it is asked for first."""
    key = (_address(platform), platform.people.whoami().tenant)
    if key not in _officers:
        _officers[key] = str(_redeem_code(platform, _officer_codes.pop(key)).token)
    return _officers[key]


def _has_officer(platform: Any) -> bool:
    key = (_address(platform), platform.people.whoami().tenant)
    return key in _officers or key in _officer_codes


def _redeem_code(platform: Any, code: str) -> Any:
    if isinstance(platform, LocalClient):
        return LocalClient(platform.house, GUEST_ACTOR).people.enroll(code)
    with RemoteClient(platform.address, ca=platform.ca) as stranger:
        return stranger.people.enroll(code)


def _address(platform: Any) -> str:
    return str(platform.house.settings.home) if isinstance(platform, LocalClient) else str(platform.address)
