"""What the rows of a ledger say of bytes: which objects there are, which records hold them, whose keys are destroyed.

Objects have no label: the same bytes may be held by many records. So bytes may leave a zone only where every record
that holds them may, and what no record holds stays, since nobody can say what law it is under.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from falaj.core.errors import CorruptData
from falaj.core.label import Label
from falaj.core.ports import RecordCipher, RecordKey, StoredRow
from falaj.store.envelope import decrypt_record
from falaj.store.records import LedgerRecord
from falaj.store.stored_objects import KIND, READABLE, StoredObject, to_stored_object

SUBJECT_KEY_PREFIX = "subject."
"""How the names of the keys of persons begin."""
_SHARED_BYTES_REASON = "it shares bytes with something that may not go"
ObjectLocation = tuple[str, str, str]
"""Tenant, zone and digest of an object."""


class DestroyedKey(NamedTuple):
    """A key of a person that was destroyed: whose record it is, and when."""

    tenant: str
    name: str
    at: float


class HeldRecord(NamedTuple):
    """A record that keeps bytes alive, as place() wants to know it."""

    tenant: str
    thing: str
    label: Label
    restricted: bool
    at: float
    size: int
    digests: tuple[str, ...]
    zones: frozenset[str]
    """Where it keeps them; everywhere when empty."""


class SkippedObject(NamedTuple):
    """What did not go along, and why."""

    thing: str
    zone: str
    digest: str
    why: str


JudgeHolder = Callable[[HeldRecord, str], str]
"""Why what a record holds in a zone may not go; nothing when it may."""


@dataclass
class BackupInventory:
    """Everything of it, filled row by row."""

    cipher: RecordCipher | None
    holders: tuple[str, ...]
    objects: dict[ObjectLocation, StoredObject] = field(default_factory=dict)
    held: list[HeldRecord] = field(default_factory=list)
    tombs: list[DestroyedKey] = field(default_factory=list)

    def row(self, table: str, values: tuple[Any, ...]) -> None:
        """Take in one row of a dump."""
        if table != "records":
            return
        kind, project, name = values[1:4]
        if kind == KIND and project == "store":
            stored_object = to_stored_object(decrypt_record(self.cipher, to_stored_row(values)))
            if stored_object.state in READABLE:
                self.objects[stored_object.tenant, stored_object.zone, stored_object.digest] = stored_object
        elif kind in self.holders:
            self._add_holder(decrypt_record(self.cipher, to_stored_row(values)))
        elif kind == "key" and name.startswith(SUBJECT_KEY_PREFIX):
            destroyed_key = find_destroyed_key(decrypt_record(None, to_stored_row(values)))
            self.tombs += [destroyed_key] if destroyed_key else []

    def _add_holder(self, record: LedgerRecord) -> None:
        digests = [
            term_value for term, term_value in record.terms.items() if term == "digest" or term.startswith("digest.")
        ]
        if digests:
            zones = frozenset(name[3:] for name in record.terms if name.startswith("at."))
            size, written_at = int(record.body.get("size", 0)), record.at
            resource, hex_digests = str(record.ref), tuple(digest.partition(":")[2] for digest in digests)
            self.held.append(
                HeldRecord(
                    record.key.tenant, resource, record.label, record.restricted, written_at, size, hex_digests, zones
                )
            )

    def sorted_out(self, target_zone: str, judge_holder: JudgeHolder) -> tuple[list[StoredObject], list[SkippedObject]]:
        """The objects with bytes of their own that may go to zone `target_zone`, and what may not."""
        skipped: list[SkippedObject] = []
        reached, refused = set[ObjectLocation](), set[ObjectLocation]()
        allowed_holders: list[tuple[HeldRecord, str]] = []
        for held_record in self.held:
            for zone in sorted({zone for zone in self._list_zones(held_record) if zone != target_zone}):
                reason = judge_holder(held_record, zone)
                locations = set(self._list_locations(held_record, zone))
                reached |= locations
                if reason:
                    refused |= locations
                    skipped += [
                        SkippedObject(held_record.thing, zone, digest, reason) for digest in held_record.digests
                    ]
                else:
                    allowed_holders.append((held_record, zone))
        for held_record, zone in allowed_holders:
            if refused.intersection(self._list_locations(held_record, zone)):
                skipped += [
                    SkippedObject(held_record.thing, zone, digest, _SHARED_BYTES_REASON)
                    for digest in held_record.digests
                ]
        allowed = []
        for location, stored_object in self.objects.items():
            if stored_object.parts:
                continue
            if stored_object.zone == target_zone or (location in reached and location not in refused):
                allowed.append(stored_object)
            elif location not in reached:
                skipped.append(SkippedObject("", stored_object.zone, stored_object.digest, "no record holds it"))
        return allowed, skipped

    def _list_zones(self, held_record: HeldRecord) -> Iterator[str]:
        if held_record.zones:
            yield from held_record.zones
            return
        wanted_digests = set(held_record.digests)
        yield from (
            zone for tenant, zone, digest in self.objects if tenant == held_record.tenant and digest in wanted_digests
        )

    def _list_locations(self, held_record: HeldRecord, zone: str) -> Iterator[ObjectLocation]:
        for digest in held_record.digests:
            yield from self._list_part_locations((held_record.tenant, zone, digest))

    def _list_part_locations(self, location: ObjectLocation) -> Iterator[ObjectLocation]:
        yield location
        stored_object = self.objects.get(location)
        for part in stored_object.parts if stored_object else ():
            yield from self._list_part_locations((location[0], location[1], part))


def to_stored_row(values: tuple[Any, ...]) -> StoredRow:
    """A row of records as a dump gives it."""
    *key, rev, scope, body, written_at, terms = values
    pairs = tuple((field, value) for field, value in json.loads(terms)) if terms else ()
    return StoredRow(RecordKey(*key), rev, scope, bytes(body), written_at, pairs)


def find_destroyed_key(record: LedgerRecord) -> DestroyedKey | None:
    """The tomb, when the record is of a key that was destroyed."""
    try:
        is_destroyed = record.body["current"] == 0
        return (
            DestroyedKey(record.key.tenant, record.key.name, float(record.body.get("forgotten", 0)))
            if is_destroyed
            else None
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"the record of key {record.key.name[:80]} cannot be read", "take another copy") from error
