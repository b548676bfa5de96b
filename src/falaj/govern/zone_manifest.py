"""A zone's manifest: written in words, read strictly. Also the first zone, which a new house makes for itself."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.label import CLASS_NAMES, CLASS_OPEN, CLASS_SECRET
from falaj.core.settings import Settings
from falaj.govern.grants import parse_time
from falaj.govern.records import LegalRegime, LegalZone, ZoneOperator
from falaj.govern.regimes import JURISDICTION_PATTERN, load_regimes, resolve_regime_ids

CUSTODY_CHOICES = ("in-zone", "external", "none")
MANIFEST_FIELDS = (
    "regimes", "max_class", "store", "operator", "domicile", "custody", "key_jurisdiction", "executors", "backup_zone",
    "egress_class", "valid_from", "valid_to",
)  # fmt: skip
"""What may be said of a zone besides its place. Region and jurisdiction never change: another place is another zone."""

_ZONE_ID_PATTERN = r"[a-z][a-z0-9-]{0,31}"
_REGION_PATTERN = r"[A-Z]{2}(-[A-Z0-9]{1,3})?"
_ADDRESS_PATTERN = r"[a-z][a-z0-9+]{0,15}:[^\s]{0,500}"


def create_first_zone(settings: Settings, regimes: Mapping[str, LegalRegime] | None = None) -> LegalZone:
    """The zone a new house stands in: cleared for every regime that can be at home in its jurisdiction."""
    known_regimes = load_regimes(settings.regimes) if regimes is None else regimes
    jurisdiction = settings.jurisdiction
    cleared_regimes = {regime.id for regime in known_regimes.values() if regime.reaches(jurisdiction)}
    zone = LegalZone(
        id=settings.zone,
        region=jurisdiction[:2],
        jurisdiction=jurisdiction,
        regimes=tuple(sorted(cleared_regimes)),
        max_class=CLASS_SECRET,
        operator=ZoneOperator("this installation", jurisdiction[:2]),
        store=settings.blobs,
    )
    return require_valid_zone(zone, known_regimes)


def apply_manifest(
    zone: LegalZone, manifest_fields: Mapping[str, str], regimes: Mapping[str, LegalRegime], now: float
) -> LegalZone:
    """The zone with these words applied, checked."""
    unknown_fields = sorted(set(manifest_fields) - set(MANIFEST_FIELDS))
    if unknown_fields:
        raise Invalid(f"a zone has no {', '.join(unknown_fields)[:200]}", f"it has: {', '.join(MANIFEST_FIELDS)}")
    changes: dict[str, Any] = {
        name: manifest_fields[name]
        for name in ("store", "custody", "key_jurisdiction", "backup_zone")
        if name in manifest_fields
    }
    for name in ("regimes", "executors"):
        if name in manifest_fields:
            changes[name] = tuple(
                list_item.strip() for list_item in manifest_fields[name].split(",") if list_item.strip()
            )
    for name in ("max_class", "egress_class"):
        if name in manifest_fields:
            changes[name] = parse_class_level(manifest_fields[name])
    for name in ("valid_from", "valid_to"):
        if name in manifest_fields:
            changes[name] = parse_time(manifest_fields[name], now) if manifest_fields[name] else 0.0
    operator = ZoneOperator(
        manifest_fields.get("operator", zone.operator.name), manifest_fields.get("domicile", zone.operator.domicile)
    )
    return require_valid_zone(replace(zone, operator=operator, **changes), regimes)


def require_valid_zone(zone: LegalZone, regimes: Mapping[str, LegalRegime]) -> LegalZone:
    """The zone with its regimes by their ids, or Invalid with the first thing that is wrong."""
    if not re.fullmatch(_ZONE_ID_PATTERN, zone.id) or zone.id == "outside":
        raise Invalid(
            f"{zone.id!r:.60} is no name for a zone", "lower-case letters, digits and dashes, for example ae-dubai"
        )
    if not JURISDICTION_PATTERN.fullmatch(zone.jurisdiction):
        raise Invalid(
            f"{zone.jurisdiction!r:.40} is no jurisdiction", "a country code, or a free zone: AE, AE-DIFC, IE"
        )
    if not re.fullmatch(_REGION_PATTERN, zone.region) or zone.region[:2] != zone.jurisdiction[:2]:
        raise Invalid(
            f"the region {zone.region!r:.40} is not in {zone.jurisdiction}", "ISO 3166-2, for example AE-DU or IE-D"
        )
    zone = replace(zone, regimes=resolve_regime_ids(zone.regimes, regimes))
    for name in zone.regimes:
        if not regimes[name].reaches(zone.jurisdiction):
            hint = f"{name} is at home in {', '.join(regimes[name].home)}; what must go elsewhere goes by a grant"
            raise Invalid(f"a zone in {zone.jurisdiction} cannot be cleared for {name}", hint)
    _validate_attributes(zone)
    return zone


def _validate_attributes(zone: LegalZone) -> None:
    if not all(CLASS_OPEN <= value <= CLASS_SECRET for value in (zone.max_class, zone.egress_class)):
        raise Invalid("that class does not exist", f"0 to 3: {', '.join(CLASS_NAMES)}")
    if zone.custody not in CUSTODY_CHOICES:
        raise Invalid(f"keys cannot be held {zone.custody!r:.40}", f"one of: {', '.join(CUSTODY_CHOICES)}")
    if (zone.custody == "external") != bool(zone.key_jurisdiction):
        raise Invalid(
            "keys held outside the zone have a place, others have none", "custody=external key_jurisdiction=AE"
        )
    if zone.key_jurisdiction and not JURISDICTION_PATTERN.fullmatch(zone.key_jurisdiction):
        raise Invalid(f"{zone.key_jurisdiction!r:.40} is no jurisdiction", "a country code, or a free zone")
    for address in (zone.store, *zone.executors):
        if address and not re.fullmatch(_ADDRESS_PATTERN, address):
            raise Invalid("an address of the zone is not scheme:rest", "for example s3://bucket or dir:{home}/eu-west")
    if zone.valid_to and zone.valid_to <= zone.valid_from:
        raise Invalid("the zone would end before it begins", "valid_to after valid_from")


def parse_class_level(text: str) -> int:
    """A class by its number or its name."""
    if text in CLASS_NAMES:
        return CLASS_NAMES.index(text)
    if text in ("0", "1", "2", "3"):
        return int(text)
    raise Invalid(f"class {text!r:.40} does not exist", f"0 to 3: {', '.join(CLASS_NAMES)}")
