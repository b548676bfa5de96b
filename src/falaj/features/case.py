"""One erasure on its way: what it is about, what it took and made so far, and how that is found again later."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any, cast

from falaj.audit.records import Impact
from falaj.catalog.life_records import Kept
from falaj.catalog.publishing import Order
from falaj.catalog.records import Facts, Version, VersionPage
from falaj.catalog.sources import Source
from falaj.content.records import Column, Table
from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.errors import Denied, NotFound, Stale
from falaj.core.event import new_id
from falaj.core.ref import Ref
from falaj.features.persons import kept_by_law, publish_amended, publish_apart, remove
from falaj.features.rewriting import Person
from falaj.snapshot.read import Snapshot

WITHOUT, BEFORE = "without", "before"
"""The tag of versions that people were taken out of (pseudonyms), and the role of the version each is made from."""
_SERVING = ("staging", "production")
_BOUND = 64
"""So many letters of a text its bounds show."""


@dataclass(slots=True)
class Case:
    """One erasure on its way."""

    here: Here
    entity: Ref
    person: Person
    marks: Mapping[Ref, str]
    """The pseudonym in the zone of each view."""
    reason: str
    dry: bool
    request: Ref | None = None
    """The started erasure request that it belongs to; without one a second person approves `features forget`."""
    kept: dict[Ref, Kept] = field(default_factory=dict)
    removed: set[Ref] = field(default_factory=set)
    made: dict[Ref, Ref | None] = field(default_factory=dict)
    """What was made, and from which version."""
    notes: list[str] = field(default_factory=list)
    fresh: set[Ref] = field(default_factory=set)
    """What this run made: nobody has to look whether it holds the person."""
    impacts: dict[Ref, Impact] = field(default_factory=dict)
    stones: dict[Ref, Version] = field(default_factory=dict)
    """What was deleted for this erasure, by whichever run."""
    opened: dict[Ref, Snapshot] = field(default_factory=dict)
    """Versions that hold the person, between the look at them and what replaces them."""
    counts: dict[Ref, int] = field(default_factory=dict)
    """How many versions there ever were of names of rows: of nothing else, since this erasure makes others."""
    run: str = field(default_factory=new_id)

    @property
    def mark(self) -> str:
        """The person's pseudonym in the first view's zone."""
        return next(iter(self.marks.values()))

    @property
    def said(self) -> str:
        """The reason that tombstones carry."""
        return f"erased {self.mark}: {self.reason}" if self.reason else f"erased {self.mark}"

    def show(self, ref: Ref) -> Version:
        """What is known of a version."""
        return cast(Version, self.here.catalog.show(ref))

    def keep(self, ref: Ref, why: str, do: str) -> None:
        """Say of something that it stays, and why."""
        self.kept[ref] = Kept(ref, why, do)

    def take(self, ref: Ref) -> None:
        """Delete a version, or restrict it where a duty keeps it and say why it stays."""
        if not self.dry:
            stays = remove(self.here, ref, self.said)
            if stays is not None and stays.duties:
                self.here.catalog.restrict(ref, self.said, erasure=self.mark)
        elif not (stays := kept_by_law(self.here, (ref,)).get(ref)) and (stage := self.show(ref).stage) in _SERVING:
            stays = Kept(ref, f"{ref} is in {stage}", f"falaj catalog promote {ref} retired, or another version first")
        if stays is None:
            self.removed.add(ref)
            self.kept.pop(ref, None)
        else:
            self.kept[ref] = stays

    def recall(self, name: Ref) -> None:
        """Find what this erasure removed under a name, be it by an earlier run."""
        for mark in sorted(set(self.marks.values())):
            stones = {one.ref: one for one in deleted_for(self.here, name, f"erased {mark}")}
            self.stones |= stones
            self.removed |= stones.keys()

    def know(self, live: Iterable[Version]) -> None:
        """Find what an earlier run of this erasure made among versions."""
        for version in live:
            if self.mark in version.tags.get(WITHOUT, "").split():
                self.made[version.ref] = version.inputs.get(BEFORE)

    def inputs(self, ref: Ref) -> Mapping[str, Ref]:
        """What a version was made from that was removed."""
        return (self.stones.get(ref) or self.show(ref)).inputs

    def ever(self, name: Ref) -> list[Ref]:
        """Every version of a name, deleted ones too."""
        if name not in self.counts:
            with suppress(NotFound):
                self.counts[name] = self.here.catalog.about(name).count
        return [name.at(f"v{number}") for number in range(1, self.counts.get(name, 0) + 1)]

    def impact(self, ref: Ref) -> Impact:
        """What was made from a version, at any distance."""
        if ref not in self.impacts:
            try:
                self.impacts[ref] = self.here.audit.impact(ref)
            except NotFound:
                self.impacts[ref] = Impact(str(ref), (), {}, ())
        return self.impacts[ref]

    def columns(self, version: Version) -> tuple[str, ...]:
        """The columns of a table that hold the key which names people, by whatever name its service gave it."""
        names = {self.person.field.name: None}
        service = version.inputs.get("service")
        if service is not None and service.kind == "service":
            with suppress(NotFound, Denied):
                picks = self.here.features.show(service).definition["picks"]
                names |= {pick["keys"].get(self.person.field.name, self.person.field.name): None for pick in picks}
        there = {column.name for column in (version.table.columns if version.table else ()) if column.type}
        return tuple(name for name in names if name in there)

    def publish(self, before: Version, folder: Path, table: Table | None = None) -> Ref:
        """The next version of the same name from a folder, with all that was said of the one it follows."""
        return self._made(before, publish_apart(self.here, self._order(before, folder, table)))

    def amend(self, before: Version, snapshot: Snapshot, changed: Mapping[bytes, Path], table: Table | None) -> Ref:
        """The same, of the very files of the one it follows but for those that changed."""
        order = self._order(before, Path(), table)
        return self._made(before, publish_amended(self.here, order, (before.ref, snapshot), changed))

    def _order(self, before: Version, folder: Path, table: Table | None = None) -> Order:
        if before.state != "live":
            raise Stale(f"{before.ref} was deleted meanwhile", "look again", before.ref)
        people = dict.fromkeys([*before.tags.get(WITHOUT, "").split(), self.mark])
        # With a mark of this run: what is given up when somebody else was faster is then nobody else's.
        tags = {**before.tags, WITHOUT: " ".join(people), "erasure": self.run}
        facts = Facts(before.message, table, tags=tags)
        inputs = {**before.inputs, BEFORE: before.ref}
        return Order(before.ref.bare, Source(folder), facts, before.label, inputs, before.zones[0])

    def _made(self, before: Version, ref: Ref) -> Ref:
        self.made[ref] = before.ref
        self.fresh.add(ref)
        return ref


def deleted_for(here: Here, name: Ref, why: str) -> Iterator[Version]:
    """The tombstones of a name whose reason begins so."""
    after = ""
    with suppress(NotFound):
        while True:
            page: VersionPage = here.catalog.deleted(name, why, after)
            yield from page.versions
            after = page.next
            if not after:
                return


def less(before: Table | None, gone: Sequence[Any], columns: Sequence[str]) -> Table | None:
    """What is known of a table without some of its rows, which need not be read again for it.

    The key of people is personal: bounds of it would be the names of two of them. A bound that a row reached which is
    gone may have been theirs alone, and goes; so do means and counts of what differs.
    """
    if before is None or before.rows is None:
        return before
    kept = []
    for one in before.columns:
        values = [
            value for rows in gone if one.name in rows.schema.names for value in rows.column(one.name).to_pylist()
        ]
        category = "personal" if one.name in columns else one.category
        inside = not category and all(_within(value, one) for value in values if value is not None)
        low, high = (one.low, one.high) if inside else ("", "")
        kept.append(Column(one.name, one.type, one.nulls - values.count(None), None, low, high, None, category))
    return replace(before, rows=before.rows - sum(rows.num_rows for rows in gone), columns=tuple(kept))


def _within(value: Any, known: Column) -> bool:
    """Whether a value lies inside the bounds of its column, and reaches neither; False where nobody can tell."""
    if isinstance(value, str):
        return known.low < value[:_BOUND] < known.high
    try:
        return isinstance(value, int | float) and float(known.low) < value < float(known.high)
    except ValueError:
        return False
