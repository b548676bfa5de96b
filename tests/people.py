"""Enrolment in tests: what an administrator and the new person do, one after the other."""

from typing import Any

from falaj.api.client import RemotePlatform
from falaj.govern.people import GUEST
from falaj.platform import Platform


def redeem(platform: Any, enrolment: Any) -> str:
    """The person's side: redeem the code where nobody is signed in. The token of a service account comes from
    `platform.people.token` instead."""
    if enrolment.state == "service":
        token: str = platform.people.token(enrolment.person.name).token
        return token
    if isinstance(platform, Platform):
        return str(Platform(platform.house, GUEST).people.enroll(enrolment.code).token)
    with RemotePlatform(platform.address, ca=platform.ca) as stranger:
        return str(stranger.people.enroll(enrolment.code).token)


def enroll(platform: Any, name: str, roles: tuple[str, ...], **details: Any) -> str:
    """Add an account as the caller of `platform`, and give the token that the new person gets."""
    return redeem(platform, platform.people.add(name, roles, **details))


def enroll_tenant(platform: Any, tenant: str, admin: str, **details: Any) -> str:
    """Take a tenant in, and give the token that its first administrator gets."""
    return redeem(platform, platform.people.add_tenant(tenant, admin, **details))
