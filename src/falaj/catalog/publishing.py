"""Publishing: what becomes of a folder between the asking and the version, beside the platform."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from falaj.catalog.reading import Reading
from falaj.catalog.records import Begun, Facts, Made, Table
from falaj.catalog.sources import Source, forget, memory_of
from falaj.core.errand import Here
from falaj.core.errors import Conflict, Corrupt, Invalid, NotFound, Stale
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.transfer import Receipt
from falaj.snapshot.read import Snapshot
from falaj.snapshot.write import Written, publish_folder

_TRIES = 8


@dataclass(frozen=True, slots=True)
class Published:
    """The version that a publish made, or found unchanged, and what it cost."""

    ref: Ref
    num_files: int
    size_bytes: int
    new_bytes: int
    """How many bytes had to be sent."""
    kept_files: int
    """How many files were known to be unchanged, and not read."""
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """What somebody wants published, under which name and with what to say of it."""

    name: Ref
    source: Source
    facts: Facts = field(default_factory=Facts)
    label: Label | None = None
    inputs: Mapping[str, Ref] = field(default_factory=dict)
    zone: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sink:
    """The way in, for whoever writes a snapshot."""

    here: Here
    ticket: str

    def put(self, chunks: Iterable[bytes]) -> Receipt:
        return self.here.bytes.put(self.ticket, chunks)

    def bundle(self, receipts: tuple[Receipt, ...]) -> Receipt:
        return self.here.bytes.bundle(self.ticket, receipts)


def carry_out(here: Here, order: Order) -> Published:
    """Send what is new, and have it made a version."""
    path = order.source.path
    with memory_of(here.address, str(order.name), order.zone, str(path)) as memory:
        try:
            return _attempt(here, order, memory)
        except (Conflict, NotFound):
            # What was sent long ago, or what we built on, was taken away: this once, begin with nothing.
            forget(memory)
            return _attempt(here, order, memory)


def _attempt(here: Here, order: Order, memory: Path | None) -> Published:
    begun: Begun = here.catalog.begin(order.name, zone=order.zone)
    written = _write(here, order, begun, memory)
    table, note = _table(here, order, begun, written)
    facts = replace(order.facts, table=table)
    ref = _commit(here, order, begun, written, facts)
    tree = written.tree
    return Published(ref, tree.num_files, tree.size_bytes, written.new_bytes, written.kept_files, note=note)


def _write(here: Here, order: Order, begun: Begun, memory: Path | None) -> Written:
    base = None
    if begun.base is not None and begun.base_tree is not None:
        base = Snapshot(begun.base_tree, Reading(here, begun.base, begun.base_ticket))
    with here.progress.task(f"publishing {order.name}") as task:
        return publish_folder(
            order.source.path, _Sink(here, begun.ticket), base=base, state=memory, advance=task.advance
        )


def _commit(here: Here, order: Order, begun: Begun, written: Written, facts: Facts) -> Ref:
    """Make it a version; when others make theirs at the same moment, one after the other."""
    made = Made(begun.ticket, written.tree, written.receipts)
    for turn in range(_TRIES):
        try:
            ref: Ref = here.catalog.commit(
                order.name, made, facts=facts, label=order.label, inputs=dict(order.inputs), base=begun.base
            )
        except Stale:
            if turn + 1 == _TRIES:
                raise
        else:
            return ref
    raise Conflict(f"too many publish {order.name} at once", "publish again", order.name)


def _table(here: Here, order: Order, begun: Begun, written: Written) -> tuple[Table | None, str]:
    """What the files say of their rows, and why nothing when they could not be read."""
    if order.name.kind != "dataset":
        return None, ""
    found = order.source.table
    if found is None:
        same = begun.base_tree is not None and begun.base_tree.root == written.tree.root
        found, note = _described(here, order, begun.base if same else None)
        if found is None:
            return None, note
    return replace(found, source=order.source.pinned or found.source), ""


def _described(here: Here, order: Order, same: Ref | None) -> tuple[Table | None, str]:
    if same is not None and not order.columns:
        # The very same files: what was found out about them still holds.
        known: Table | None = here.catalog.show(same).table
        return known, ""
    from falaj.catalog.tables import describe

    try:
        table = describe(order.source.path, order.columns)
    except (Invalid, Corrupt, NotFound) as error:
        if order.columns:
            raise Invalid(error.message, error.hint, order.name) from error
        return None, f"published without a schema: {error.message}"
    if table is None and order.columns:
        hint = "columns are those of Parquet, CSV, Arrow or JSON-lines files"
        raise Invalid(f"there is no table in {str(order.source.path)!r:.200}", hint)
    return table, ""
