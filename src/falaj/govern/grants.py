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
from falaj.govern.records import DataMovement, LegalRegime, TransferGrant

MAX_GRANT_LIFETIME_S = 366 * 86_400
_DIGEST_PATTERN = r"sha256:[0-9a-f]{64}"
_WORD_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
_SCOPE_PATTERN = (
    r"[a-z][a-z0-9-]{0,31}:[a-z0-9][a-z0-9._-]{0,62}/[A-Za-z0-9*?][A-Za-z0-9._*?-]{0,127}(@v[1-9][0-9]{0,17})?"
)
_OUTSIDE_PREFIX = "outside:"


def find_misfit(grant: TransferGrant, movement: DataMovement, regime: LegalRegime, now: float) -> str:
    """The first field by which the grant does not fit the movement, or nothing when it fits exactly.

    Whoever asks has compared the destination already.
    """
    # Most grants on a busy way are about other things, so that is asked first.
    if not is_in_scope(grant.scope, movement.thing):
        return "scope"
    if grant.regime != regime.id:
        return "regime"
    if grant.revoked:
        return "revoked"
    if grant.tenant != movement.tenant:
        return "tenant"
    # What already arrived under the grant may be used where it is.
    if movement.src not in (grant.src, grant.dst):
        return "source"
    if now < grant.not_before:
        return "not yet"
    return "expired" if now >= grant.expires else _find_content_misfit(grant, movement, regime)


def _find_content_misfit(grant: TransferGrant, movement: DataMovement, regime: LegalRegime) -> str:
    if movement.purpose not in grant.purposes:
        return "purpose"
    if grant.max_bytes and (movement.size is None or movement.size > grant.max_bytes):
        return "size"
    basis = regime.bases.get(grant.basis)
    if basis is None:
        return "basis"
    return "" if all(grant.documents.get(name) for name in basis.documents) else "documents"


def describe_near_misses(
    grants: Iterable[TransferGrant], movement: DataMovement, regime: LegalRegime, now: float
) -> str:
    """Why the grants for this very way do not fit, for the reader of a refusal; the asker's own tenant's only."""
    own_grants = (grant for grant in grants if grant.tenant == movement.tenant)
    misfit_texts = (
        f"the grant {grant.id} does not fit: {find_misfit(grant, movement, regime, now)}" for grant in own_grants
    )
    return "; ".join(islice(misfit_texts, 3))


@lru_cache(maxsize=16384)
def is_in_scope(scope: str, resource_name: str) -> bool:
    """True when the selector `kind:project/glob` (or with `@v3` one version) names the thing."""
    name, _, version = resource_name.partition("@")
    pattern, _, scope_version = scope.partition("@")
    return (not scope_version or scope_version == version) and _compile_glob(pattern).fullmatch(name) is not None


@lru_cache(maxsize=4096)
def _compile_glob(pattern: str) -> re.Pattern[str]:
    # A scope that was not written by our rules selects nothing.
    return re.compile(translate(pattern)) if re.fullmatch(_SCOPE_PATTERN, pattern) else re.compile(r"(?!)")


def make_outside_target(jurisdiction: str) -> str:
    """How a grant names a receiver that is in no zone."""
    return _OUTSIDE_PREFIX + jurisdiction


def parse_outside_target(dst: str) -> str:
    """The jurisdiction of an outside destination, or nothing when `dst` is a zone."""
    return dst.removeprefix(_OUTSIDE_PREFIX) if dst.startswith(_OUTSIDE_PREFIX) else ""


def digest_grant(grant: TransferGrant) -> str:
    """What people approve: every field but the revocation. One field changed is another digest."""
    body = asdict(grant)
    del body["revoked"]
    return "sha256:" + hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def require_valid_grant(grant: TransferGrant, regime: LegalRegime, now: float) -> TransferGrant:
    """The grant itself when it may be proposed, else Invalid with what is wrong."""
    basis = regime.bases.get(grant.basis)
    if basis is None:
        raise Invalid(
            f"{regime.id} has no transfer basis {grant.basis!r:.40}", f"it has: {', '.join(regime.bases) or 'none'}"
        )
    missing_documents = [name for name in basis.documents if name not in grant.documents]
    if missing_documents:
        raise Invalid(
            f"basis {basis.id} of {regime.id} ({basis.title}) demands: {', '.join(missing_documents)}",
            f"upload it (falaj approvals add-document), then --documents {missing_documents[0]}=document:…",
        )
    for name, value in grant.documents.items():
        if not re.fullmatch(_WORD_PATTERN, name) or not re.fullmatch(_DIGEST_PATTERN, value):
            raise Invalid(
                f"document {name[:60]}: expected the digest of a stored document", "falaj approvals add-document"
            )
    if not re.fullmatch(_SCOPE_PATTERN, grant.scope):
        raise Invalid(f"{grant.scope!r:.200} selects nothing", "kind:project/name, where the name may hold * and ?")
    if not grant.purposes or not all(re.fullmatch(_WORD_PATTERN, purpose) for purpose in grant.purposes):
        raise Invalid("a grant is for named purposes", "for example --purposes fraud; `*` is none")
    return _require_valid_period(grant, now)


def _require_valid_period(grant: TransferGrant, now: float) -> TransferGrant:
    if not now < grant.expires or not grant.not_before < grant.expires:
        raise Invalid("the grant would end before it begins", "give --more expires=90d, or a day such as 2027-01-31")
    if grant.expires - max(now, grant.not_before) > MAX_GRANT_LIFETIME_S:
        raise Invalid("a grant lives a year at most", "propose it again when it ends: circumstances change")
    if grant.max_bytes < 0:
        raise Invalid("max_bytes is negative", "0 is no limit")
    return grant


def parse_time(text: str, now: float) -> float:
    """A time as people write it: `90d`, `24h`, or a day such as 2027-01-31 (its start, UTC)."""
    duration = re.fullmatch(r"([1-9][0-9]{0,4})([dh])", text)
    if duration:
        return now + int(duration[1]) * (86_400 if duration[2] == "d" else 3_600)
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise Invalid(f"{text!r:.40} is no time", "90d, 24h, or a day such as 2027-01-31") from error


def parse_whole_number(fields: Mapping[str, str], name: str) -> int:
    """A whole number from a text field, 0 when it is not given."""
    text = fields.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise Invalid(f"{name} is {text!r:.40}", "a whole number")
    return int(text)
