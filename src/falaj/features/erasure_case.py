"""One erasure on its way: what it is about, what it took and made so far, and how that is found again later."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any, cast

from falaj.audit.records import LineageImpact
from falaj.catalog.lifecycle_records import KeptVersion
from falaj.catalog.publish_sources import PublishSource
from falaj.catalog.publishing import PublishOrder
from falaj.catalog.records import CatalogVersion, PublishFacts, VersionPage
from falaj.content.records import TableColumn, TableDescription
from falaj.core.client_command import Client
from falaj.core.data import dataclass
from falaj.core.errors import Denied, NotFound, StaleRevision
from falaj.core.event import generate_id
from falaj.core.ref import Ref
from falaj.features.person_keys import delete_version, list_retained, publish_amended, publish_unshared
from falaj.features.row_removal import Person
from falaj.snapshot.tree_reader import TreeSnapshot

WITHOUT_TAG, PREVIOUS_ROLE = "without", "before"
"""The tag of versions that people were taken out of (pseudonyms), and the role of the version each is made from."""
_SERVING_STAGES = ("staging", "production")
_MAX_BOUND_CHARS = 64
"""So many letters of a text its bounds show."""


@dataclass(slots=True)
class ErasureCase:
    """One erasure on its way."""

    here: Client
    entity: Ref
    person: Person
    marks: Mapping[Ref, str]
    """The pseudonym in the zone of each view."""
    reason: str
    dry: bool
    request: Ref | None = None
    """The started erasure request that it belongs to; without one a second person approves `features forget`."""
    kept: dict[Ref, KeptVersion] = field(default_factory=dict)
    removed: set[Ref] = field(default_factory=set)
    made: dict[Ref, Ref | None] = field(default_factory=dict)
    """What was made, and from which version."""
    notes: list[str] = field(default_factory=list)
    fresh: set[Ref] = field(default_factory=set)
    """What this run made: nobody has to look whether it holds the person."""
    impacts: dict[Ref, LineageImpact] = field(default_factory=dict)
    stones: dict[Ref, CatalogVersion] = field(default_factory=dict)
    """What was deleted for this erasure, by whichever run."""
    opened: dict[Ref, TreeSnapshot] = field(default_factory=dict)
    """Versions that hold the person, between the look at them and what replaces them."""
    counts: dict[Ref, int] = field(default_factory=dict)
    """How many versions there ever were of names of rows: of nothing else, since this erasure makes others."""
    run: str = field(default_factory=generate_id)

    @property
    def mark(self) -> str:
        """The person's pseudonym in the first view's zone."""
        return next(iter(self.marks.values()))

    @property
    def said(self) -> str:
        """The reason that tombstones carry."""
        return f"erased {self.mark}: {self.reason}" if self.reason else f"erased {self.mark}"

    def show(self, ref: Ref) -> CatalogVersion:
        """What is known of a version."""
        return cast(CatalogVersion, self.here.catalog.show(ref))

    def keep(self, ref: Ref, reason: str, next_step: str) -> None:
        """Say of something that it stays, and why."""
        self.kept[ref] = KeptVersion(ref, reason, next_step)

    def take(self, ref: Ref) -> None:
        """Delete a version, or restrict it where a duty keeps it and say why it stays."""
        if not self.dry:
            retained = delete_version(self.here, ref, self.said)
            if retained is not None and retained.duties:
                self.here.catalog.restrict(ref, self.said, erasure=self.mark)
        elif (
            not (retained := list_retained(self.here, (ref,)).get(ref))
            and (stage := self.show(ref).stage) in _SERVING_STAGES
        ):
            retained = KeptVersion(
                ref, f"{ref} is in {stage}", f"falaj catalog promote {ref} retired, or another version first"
            )
        if retained is None:
            self.removed.add(ref)
            self.kept.pop(ref, None)
        else:
            self.kept[ref] = retained

    def recall(self, name: Ref) -> None:
        """Find what this erasure removed under a name, be it by an earlier run."""
        for pseudonym in sorted(set(self.marks.values())):
            tombstones = {version.ref: version for version in list_tombstones(self.here, name, f"erased {pseudonym}")}
            self.stones |= tombstones
            self.removed |= tombstones.keys()

    def know(self, versions: Iterable[CatalogVersion]) -> None:
        """Find what an earlier run of this erasure made among versions."""
        for version in versions:
            if self.mark in version.tags.get(WITHOUT_TAG, "").split():
                self.made[version.ref] = version.inputs.get(PREVIOUS_ROLE)

    def inputs(self, ref: Ref) -> Mapping[str, Ref]:
        """What a version was made from that was removed."""
        return (self.stones.get(ref) or self.show(ref)).inputs

    def ever(self, name: Ref) -> list[Ref]:
        """Every version of a name, deleted ones too."""
        if name not in self.counts:
            with suppress(NotFound):
                self.counts[name] = self.here.catalog.about(name).count
        return [name.at(f"v{number}") for number in range(1, self.counts.get(name, 0) + 1)]

    def impact(self, ref: Ref) -> LineageImpact:
        """What was made from a version, at any distance."""
        if ref not in self.impacts:
            try:
                self.impacts[ref] = self.here.audit.impact(ref)
            except NotFound:
                self.impacts[ref] = LineageImpact(str(ref), (), {}, ())
        return self.impacts[ref]

    def columns(self, version: CatalogVersion) -> tuple[str, ...]:
        """The columns of a table that hold the key which names people, by whatever name its service gave it."""
        names = {self.person.field.name: None}
        service = version.inputs.get("service")
        if service is not None and service.kind == "service":
            with suppress(NotFound, Denied):
                picks = self.here.features.show(service).definition["picks"]
                names |= {pick["keys"].get(self.person.field.name, self.person.field.name): None for pick in picks}
        table_columns = {column.name for column in (version.table.columns if version.table else ()) if column.type}
        return tuple(name for name in names if name in table_columns)

    def publish(self, previous: CatalogVersion, folder: Path, table: TableDescription | None = None) -> Ref:
        """The next version of the same name from a folder, with all that was said of the one it follows."""
        return self._record_replacement(
            previous, publish_unshared(self.here, self._make_order(previous, folder, table))
        )

    def amend(
        self,
        previous: CatalogVersion,
        snapshot: TreeSnapshot,
        changed_files: Mapping[bytes, Path],
        table: TableDescription | None,
    ) -> Ref:
        """The same, of the very files of the one it follows but for those that changed."""
        order = self._make_order(previous, Path(), table)
        return self._record_replacement(
            previous, publish_amended(self.here, order, (previous.ref, snapshot), changed_files)
        )

    def _make_order(
        self, previous: CatalogVersion, folder: Path, table: TableDescription | None = None
    ) -> PublishOrder:
        if previous.state != "live":
            raise StaleRevision(f"{previous.ref} was deleted meanwhile", "look again", previous.ref)
        people = dict.fromkeys([*previous.tags.get(WITHOUT_TAG, "").split(), self.mark])
        # With a mark of this run: what is given up when somebody else was faster is then nobody else's.
        tags = {**previous.tags, WITHOUT_TAG: " ".join(people), "erasure": self.run}
        facts = PublishFacts(previous.message, table, tags=tags)
        inputs = {**previous.inputs, PREVIOUS_ROLE: previous.ref}
        return PublishOrder(previous.ref.bare, PublishSource(folder), facts, previous.label, inputs, previous.zones[0])

    def _record_replacement(self, previous: CatalogVersion, ref: Ref) -> Ref:
        self.made[ref] = previous.ref
        self.fresh.add(ref)
        return ref


def list_tombstones(client: Client, name: Ref, reason: str) -> Iterator[CatalogVersion]:
    """The tombstones of a name whose reason begins so."""
    cursor = ""
    with suppress(NotFound):
        while True:
            page: VersionPage = client.catalog.deleted(name, reason, cursor)
            yield from page.versions
            cursor = page.next
            if not cursor:
                return


def subtract_table_rows(
    table: TableDescription | None, removed_rows: Sequence[Any], columns: Sequence[str]
) -> TableDescription | None:
    """What is known of a table without some of its rows, which need not be read again for it.

    The key of people is personal: bounds of it would be the names of two of them. A bound that a row reached which is
    gone may have been theirs alone, and goes; so do means and counts of what differs.
    """
    if table is None or table.rows is None:
        return table
    remaining_columns = []
    for column in table.columns:
        values = [
            value
            for rows in removed_rows
            if column.name in rows.schema.names
            for value in rows.column(column.name).to_pylist()
        ]
        category = "personal" if column.name in columns else column.category
        keeps_bounds = not category and all(_is_within_bounds(value, column) for value in values if value is not None)
        low, high = (column.low, column.high) if keeps_bounds else ("", "")
        remaining_columns.append(
            TableColumn(column.name, column.type, column.nulls - values.count(None), None, low, high, None, category)
        )
    return replace(
        table, rows=table.rows - sum(rows.num_rows for rows in removed_rows), columns=tuple(remaining_columns)
    )


def _is_within_bounds(value: Any, column: TableColumn) -> bool:
    """Whether a value lies inside the bounds of its column, and reaches neither; False where nobody can tell."""
    if isinstance(value, str):
        return column.low < value[:_MAX_BOUND_CHARS] < column.high
    try:
        return isinstance(value, int | float) and float(column.low) < value < float(column.high)
    except ValueError:
        return False
