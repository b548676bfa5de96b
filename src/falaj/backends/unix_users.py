"""Which Unix user of a site a person's attempts run as: the rules that an operator wrote for the cluster.

    oidc.*=*            people of the identity provider, by their name there (sites with SSSD or LDAP)
    loader=svc_loader   one account by itself
    *@clinic=clinic     everybody of a tenant whose names the platform tells apart (name@tenant)

The first rule that fits counts; a name that no rule fits stays as it is.
"""

import re
from fnmatch import fnmatchcase
from typing import NamedTuple

from falaj.core.errors import Invalid

_PERSON = re.compile(r"[A-Za-z0-9._@*-]{1,128}")
_UNIX_USER = re.compile(r"\*|[a-z_][a-z0-9_.-]{0,63}")


class UnixUserRule(NamedTuple):
    """`person` may hold one star; a `unix_user` of `*` is what that star stood for."""

    person: str
    unix_user: str


def read_unix_user_rules(text: str) -> tuple[UnixUserRule, ...]:
    """The rules in a cluster's option `users`: pairs separated by commas."""
    rules = []
    for pair in filter(None, (part.strip() for part in text.split(","))):
        person, equals_sign, unix_user = pair.partition("=")
        is_well_formed = _PERSON.fullmatch(person) and _UNIX_USER.fullmatch(unix_user) and person.count("*") <= 1
        if not equals_sign or not is_well_formed or (unix_user == "*" and "*" not in person):
            raise Invalid(
                f"the option users: expected PERSON=UNIX_USER pairs, got {pair[:80]!r}",
                "for example users=oidc.*=*,loader=svc_loader",
            )
        rules.append(UnixUserRule(person, unix_user))
    return tuple(rules)


def map_unix_user(person: str, rules: tuple[UnixUserRule, ...]) -> str:
    """The Unix user of a person."""
    for rule in rules:
        if not fnmatchcase(person, rule.person):
            continue
        if rule.unix_user != "*":
            return rule.unix_user
        star_prefix, _, star_suffix = rule.person.partition("*")
        return person[len(star_prefix) : len(person) - len(star_suffix)]
    return person
