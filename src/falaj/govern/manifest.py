"""A zone's manifest: written in words, read strictly. Also the first zone, which a new house makes for itself."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.label import CLASS_NAMES, OPEN, SECRET
from falaj.core.settings import Settings
from falaj.govern.grants import moment
from falaj.govern.records import Operator, Regime, Zone
from falaj.govern.regimes import JURISDICTION, canonical, load_regimes

CUSTODY = ("in-zone", "external", "none")
WORDS = (
    "regimes", "max_class", "store", "operator", "domicile", "custody", "key_jurisdiction", "executors", "backup_zone",
    "egress_class", "valid_from", "valid_to",
)  # fmt: skip
"""What may be said of a zone besides its place. Region and jurisdiction never change: another place is another zone."""

_ID = r"[a-z][a-z0-9-]{0,31}"
_REGION = r"[A-Z]{2}(-[A-Z0-9]{1,3})?"
_ADDRESS = r"[a-z][a-z0-9+]{0,15}:[^\s]{0,500}"


def first_zone(settings: Settings, regimes: Mapping[str, Regime] | None = None) -> Zone:
    """The zone a new house stands in: cleared for every regime that can be at home in its jurisdiction."""
    known = load_regimes(settings.regimes) if regimes is None else regimes
    place = settings.jurisdiction
    cleared = {regime.id for regime in known.values() if regime.reaches(place)}
    zone = Zone(
        id=settings.zone,
        region=place[:2],
        jurisdiction=place,
        regimes=tuple(sorted(cleared)),
        max_class=SECRET,
        operator=Operator("this installation", place[:2]),
        store=settings.blobs,
    )
    return checked_zone(zone, known)


def described(zone: Zone, words: Mapping[str, str], regimes: Mapping[str, Regime], now: float) -> Zone:
    """The zone with these words applied, checked."""
    unknown = sorted(set(words) - set(WORDS))
    if unknown:
        raise Invalid(f"a zone has no {', '.join(unknown)[:200]}", f"it has: {', '.join(WORDS)}")
    changes: dict[str, Any] = {
        name: words[name] for name in ("store", "custody", "key_jurisdiction", "backup_zone") if name in words
    }
    for name in ("regimes", "executors"):
        if name in words:
            changes[name] = tuple(part.strip() for part in words[name].split(",") if part.strip())
    for name in ("max_class", "egress_class"):
        if name in words:
            changes[name] = level(words[name])
    for name in ("valid_from", "valid_to"):
        if name in words:
            changes[name] = moment(words[name], now) if words[name] else 0.0
    operator = Operator(words.get("operator", zone.operator.name), words.get("domicile", zone.operator.domicile))
    return checked_zone(replace(zone, operator=operator, **changes), regimes)


def checked_zone(zone: Zone, regimes: Mapping[str, Regime]) -> Zone:
    """The zone with its regimes by their ids, or Invalid with the first thing that is wrong."""
    if not re.fullmatch(_ID, zone.id) or zone.id == "outside":
        raise Invalid(
            f"{zone.id!r:.60} is no name for a zone", "lower-case letters, digits and dashes, for example ae-dubai"
        )
    if not JURISDICTION.fullmatch(zone.jurisdiction):
        raise Invalid(
            f"{zone.jurisdiction!r:.40} is no jurisdiction", "a country code, or a free zone: AE, AE-DIFC, IE"
        )
    if not re.fullmatch(_REGION, zone.region) or zone.region[:2] != zone.jurisdiction[:2]:
        raise Invalid(
            f"the region {zone.region!r:.40} is not in {zone.jurisdiction}", "ISO 3166-2, for example AE-DU or IE-D"
        )
    zone = replace(zone, regimes=canonical(zone.regimes, regimes))
    for name in zone.regimes:
        if not regimes[name].reaches(zone.jurisdiction):
            hint = f"{name} is at home in {', '.join(regimes[name].home)}; what must go elsewhere goes by a grant"
            raise Invalid(f"a zone in {zone.jurisdiction} cannot be cleared for {name}", hint)
    _check_rest(zone)
    return zone


def _check_rest(zone: Zone) -> None:
    if not all(OPEN <= value <= SECRET for value in (zone.max_class, zone.egress_class)):
        raise Invalid("that class does not exist", f"0 to 3: {', '.join(CLASS_NAMES)}")
    if zone.custody not in CUSTODY:
        raise Invalid(f"keys cannot be held {zone.custody!r:.40}", f"one of: {', '.join(CUSTODY)}")
    if (zone.custody == "external") != bool(zone.key_jurisdiction):
        raise Invalid(
            "keys held outside the zone have a place, others have none", "custody=external key_jurisdiction=AE"
        )
    if zone.key_jurisdiction and not JURISDICTION.fullmatch(zone.key_jurisdiction):
        raise Invalid(f"{zone.key_jurisdiction!r:.40} is no jurisdiction", "a country code, or a free zone")
    for address in (zone.store, *zone.executors):
        if address and not re.fullmatch(_ADDRESS, address):
            raise Invalid("an address of the zone is not scheme:rest", "for example s3://bucket or dir:{home}/eu-west")
    if zone.valid_to and zone.valid_to <= zone.valid_from:
        raise Invalid("the zone would end before it begins", "valid_to after valid_from")


def level(text: str) -> int:
    """A class by its number or its name."""
    if text in CLASS_NAMES:
        return CLASS_NAMES.index(text)
    if text in ("0", "1", "2", "3"):
        return int(text)
    raise Invalid(f"class {text!r:.40} does not exist", f"0 to 3: {', '.join(CLASS_NAMES)}")
