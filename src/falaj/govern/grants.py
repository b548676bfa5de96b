"""Grants: when one fits a movement exactly, and how one is written down. Pure; the desk is in zones.py."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from fnmatch import translate
from functools import lru_cache
from itertools import islice

from falaj.core.errors import Invalid
from falaj.govern.records import Grant, Move, Regime

MAX_LIFE_S = 366 * 86_400
_DIGEST = r"sha256:[0-9a-f]{64}"
_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
_SCOPE = r"[a-z][a-z0-9-]{0,31}:[a-z0-9][a-z0-9._-]{0,62}/[A-Za-z0-9*?][A-Za-z0-9._*?-]{0,127}(@v[1-9][0-9]{0,17})?"
_OUTSIDE = "outside:"


def misfit(grant: Grant, move: Move, regime: Regime, now: float) -> str:
    """The first field by which the grant does not fit the movement, or nothing when it fits exactly.

    Whoever asks has compared the destination already.
    """
    # Most grants on a busy way are about other things, so that is asked first.
    if not in_scope(grant.scope, move.thing):
        return "scope"
    if grant.regime != regime.id:
        return "regime"
    if grant.revoked:
        return "revoked"
    if grant.tenant != move.tenant:
        return "tenant"
    # What already arrived under the grant may be used where it is.
    if move.src not in (grant.src, grant.dst):
        return "source"
    if now < grant.not_before:
        return "not yet"
    return "expired" if now >= grant.expires else _misfit_of_matter(grant, move, regime)


def _misfit_of_matter(grant: Grant, move: Move, regime: Regime) -> str:
    if move.purpose not in grant.purposes:
        return "purpose"
    if grant.max_bytes and (move.size is None or move.size > grant.max_bytes):
        return "size"
    basis = regime.bases.get(grant.basis)
    if basis is None:
        return "basis"
    return "" if all(grant.documents.get(name) for name in basis.documents) else "documents"


def near_misses(grants: Iterable[Grant], move: Move, regime: Regime, now: float) -> str:
    """Why the grants for this very way do not fit, for the reader of a refusal; the asker's own tenant's only."""
    ours = (grant for grant in grants if grant.tenant == move.tenant)
    said = (f"the grant {grant.id} does not fit: {misfit(grant, move, regime, now)}" for grant in ours)
    return "; ".join(islice(said, 3))


@lru_cache(maxsize=16384)
def in_scope(scope: str, thing: str) -> bool:
    """True when the selector `kind:project/glob` (or with `@v3` one version) names the thing."""
    name, _, version = thing.partition("@")
    pattern, _, only = scope.partition("@")
    return (not only or only == version) and _glob(pattern).fullmatch(name) is not None


@lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    # A scope that was not written by our rules selects nothing.
    return re.compile(translate(pattern)) if re.fullmatch(_SCOPE, pattern) else re.compile(r"(?!)")


def outside(jurisdiction: str) -> str:
    """How a grant names a receiver that is in no zone."""
    return _OUTSIDE + jurisdiction


def outside_of(dst: str) -> str:
    """The jurisdiction of an outside destination, or nothing when `dst` is a zone."""
    return dst.removeprefix(_OUTSIDE) if dst.startswith(_OUTSIDE) else ""


def digest(grant: Grant) -> str:
    """What people approve: every field but the revocation. One field changed is another digest."""
    body = asdict(grant)
    del body["revoked"]
    return "sha256:" + hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def checked(grant: Grant, regime: Regime, now: float) -> Grant:
    """The grant itself when it may be proposed, else Invalid with what is wrong."""
    basis = regime.bases.get(grant.basis)
    if basis is None:
        raise Invalid(
            f"{regime.id} has no transfer basis {grant.basis!r:.40}", f"it has: {', '.join(regime.bases) or 'none'}"
        )
    missing = [name for name in basis.documents if name not in grant.documents]
    if missing:
        raise Invalid(
            f"basis {basis.id} of {regime.id} ({basis.title}) demands: {', '.join(missing)}",
            f"upload it (falaj approvals add-document), then --documents {missing[0]}=document:…",
        )
    for name, value in grant.documents.items():
        if not re.fullmatch(_WORD, name) or not re.fullmatch(_DIGEST, value):
            raise Invalid(
                f"document {name[:60]}: expected the digest of a stored document", "falaj approvals add-document"
            )
    if not re.fullmatch(_SCOPE, grant.scope):
        raise Invalid(f"{grant.scope!r:.200} selects nothing", "kind:project/name, where the name may hold * and ?")
    if not grant.purposes or not all(re.fullmatch(_WORD, purpose) for purpose in grant.purposes):
        raise Invalid("a grant is for named purposes", "for example --purposes fraud; `*` is none")
    return _timed(grant, now)


def _timed(grant: Grant, now: float) -> Grant:
    if not now < grant.expires or not grant.not_before < grant.expires:
        raise Invalid("the grant would end before it begins", "give --more expires=90d, or a day such as 2027-01-31")
    if grant.expires - max(now, grant.not_before) > MAX_LIFE_S:
        raise Invalid("a grant lives a year at most", "propose it again when it ends: circumstances change")
    if grant.max_bytes < 0:
        raise Invalid("max_bytes is negative", "0 is no limit")
    return grant


def moment(text: str, now: float) -> float:
    """A time as people write it: `90d`, `24h`, or a day such as 2027-01-31 (its start, UTC)."""
    span = re.fullmatch(r"([1-9][0-9]{0,4})([dh])", text)
    if span:
        return now + int(span[1]) * (86_400 if span[2] == "d" else 3_600)
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise Invalid(f"{text!r:.40} is no time", "90d, 24h, or a day such as 2027-01-31") from error


def number(fields: Mapping[str, str], name: str) -> int:
    """A whole number from a text field, 0 when it is not given."""
    text = fields.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise Invalid(f"{name} is {text!r:.40}", "a whole number")
    return int(text)
