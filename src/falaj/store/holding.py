"""What the rows of a ledger say of bytes: which objects there are, which records hold them, whose keys are destroyed.

Objects have no label: the same bytes may be held by many records. So bytes may leave a zone only where every record
that holds them may, and what no record holds stays, since nobody can say what law it is under.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from falaj.core.errors import Corrupt
from falaj.core.label import Label
from falaj.core.ports import Cipher, Key, Row
from falaj.store.envelope import open_record
from falaj.store.objects import KIND, READABLE, Object, as_object
from falaj.store.records import Record

SUBJECT = "subject."
"""How the names of the keys of persons begin."""
_SHARED = "it shares bytes with something that may not go"
Place = tuple[str, str, str]
"""Tenant, zone and digest of an object."""


class Tomb(NamedTuple):
    """A key of a person that was destroyed: whose record it is, and when."""

    tenant: str
    name: str
    at: float


class Held(NamedTuple):
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


class Left(NamedTuple):
    """What did not go along, and why."""

    thing: str
    zone: str
    digest: str
    why: str


Judge = Callable[[Held, str], str]
"""Why what a record holds in a zone may not go; nothing when it may."""


@dataclass
class Holding:
    """Everything of it, filled row by row."""

    cipher: Cipher | None
    holders: tuple[str, ...]
    objects: dict[Place, Object] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    tombs: list[Tomb] = field(default_factory=list)

    def row(self, table: str, values: tuple[Any, ...]) -> None:
        """Take in one row of a dump."""
        if table != "records":
            return
        kind, project, name = values[1:4]
        if kind == KIND and project == "store":
            thing = as_object(open_record(self.cipher, row_of(values)))
            if thing.state in READABLE:
                self.objects[thing.tenant, thing.zone, thing.digest] = thing
        elif kind in self.holders:
            self._hold(open_record(self.cipher, row_of(values)))
        elif kind == "key" and name.startswith(SUBJECT):
            found = tomb_of(open_record(None, row_of(values)))
            self.tombs += [found] if found else []

    def _hold(self, record: Record) -> None:
        digests = [v for k, v in record.terms.items() if k == "digest" or k.startswith("digest.")]
        if digests:
            zones = frozenset(name[3:] for name in record.terms if name.startswith("at."))
            size, at = int(record.body.get("size", 0)), record.at
            thing, hexes = str(record.ref), tuple(one.partition(":")[2] for one in digests)
            self.held.append(Held(record.key.tenant, thing, record.label, record.restricted, at, size, hexes, zones))

    def sorted_out(self, to: str, judge: Judge) -> tuple[list[Object], list[Left]]:
        """The objects with bytes of their own that may go to zone `to`, and what may not."""
        left: list[Left] = []
        reached, refused = set[Place](), set[Place]()
        may: list[tuple[Held, str]] = []
        for held in self.held:
            for zone in sorted({zone for zone in self._zones(held) if zone != to}):
                why = judge(held, zone)
                places = set(self._places(held, zone))
                reached |= places
                if why:
                    refused |= places
                    left += [Left(held.thing, zone, digest, why) for digest in held.digests]
                else:
                    may.append((held, zone))
        for held, zone in may:
            if refused.intersection(self._places(held, zone)):
                left += [Left(held.thing, zone, digest, _SHARED) for digest in held.digests]
        go = []
        for place, thing in self.objects.items():
            if thing.parts:
                continue
            if thing.zone == to or (place in reached and place not in refused):
                go.append(thing)
            elif place not in reached:
                left.append(Left("", thing.zone, thing.digest, "no record holds it"))
        return go, left

    def _zones(self, held: Held) -> Iterator[str]:
        if held.zones:
            yield from held.zones
            return
        wanted = set(held.digests)
        yield from (zone for tenant, zone, digest in self.objects if tenant == held.tenant and digest in wanted)

    def _places(self, held: Held, zone: str) -> Iterator[Place]:
        for digest in held.digests:
            yield from self._parts((held.tenant, zone, digest))

    def _parts(self, place: Place) -> Iterator[Place]:
        yield place
        found = self.objects.get(place)
        for part in found.parts if found else ():
            yield from self._parts((place[0], place[1], part))


def row_of(values: tuple[Any, ...]) -> Row:
    """A row of records as a dump gives it."""
    *key, rev, cell, body, at, terms = values
    pairs = tuple((field, value) for field, value in json.loads(terms)) if terms else ()
    return Row(Key(*key), rev, cell, bytes(body), at, pairs)


def tomb_of(record: Record) -> Tomb | None:
    """The tomb, when the record is of a key that was destroyed."""
    try:
        destroyed = record.body["current"] == 0
        return Tomb(record.key.tenant, record.key.name, float(record.body.get("forgotten", 0))) if destroyed else None
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"the record of key {record.key.name[:80]} cannot be read", "take another copy") from error
