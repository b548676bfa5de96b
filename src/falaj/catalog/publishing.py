"""Publishing: what becomes of a folder between the asking and the version, beside the platform."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import cast

from falaj.catalog.reading import Reading
from falaj.catalog.records import Begun, Facts, Made, Opened
from falaj.catalog.sources import Source, forget, memory_of
from falaj.content.records import Table
from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.errors import Conflict, Corrupt, Denied, Invalid, NotFound, Stale
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
class Sink:
    """The way in, for whoever writes a snapshot."""

    here: Here
    ticket: str

    def put(self, chunks: Iterable[bytes]) -> Receipt:
        return self.here.bytes.put(self.ticket, chunks)

    def bundle(self, receipts: tuple[Receipt, ...]) -> Receipt:
        return self.here.bytes.bundle(self.ticket, receipts)


def carry_out(here: Here, order: Order) -> Published:
    """Send what is new, and have it made a version."""
    found = order.source
    with memory_of(here.address, str(order.name), order.zone, "" if found.passing else str(found.path)) as memory:
        try:
            return _attempt(here, order, memory)
        except (Conflict, NotFound):
            # What was sent long ago, or what we built on, was taken away: this once, begin with nothing.
            forget(memory)
            return _attempt(here, order, memory)


def _attempt(here: Here, order: Order, memory: Path | None) -> Published:
    begun: Begun = here.catalog.begin(order.name, zone=order.zone)
    base = _open_base(here, begun)
    written = _write(here, order, (begun.ticket, base), memory)
    table, note = _table(order, base, written)
    facts = replace(order.facts, table=table)
    ref = _commit(here, order, Made(begun.ticket, written.tree, written.receipts), facts, base.ref if base else None)
    tree = written.tree
    return Published(ref, tree.num_files, tree.size_bytes, written.new_bytes, written.kept_files, note=note)


def _open_base(here: Here, begun: Begun) -> Opened | None:
    """The newest version, to build on; whoever may write and not read sends everything again."""
    if begun.base is None:
        return None
    with suppress(Denied, NotFound):
        return cast(Opened, here.catalog.open(begun.base))
    return None


def _write(here: Here, order: Order, begun: tuple[str, Opened | None], memory: Path | None) -> Written:
    ticket, base = begun
    known = Snapshot(base.tree, Reading(here, base.ref, base.ticket)) if base is not None else None
    with here.progress.task(f"publishing {order.name}") as task:
        return publish_folder(order.source.path, Sink(here, ticket), base=known, state=memory, advance=task.advance)


def _commit(here: Here, order: Order, made: Made, facts: Facts, base: Ref | None) -> Ref:
    """Make it a version; when others make theirs at the same moment, one after the other."""
    said = {"facts": facts, "label": order.label, "inputs": dict(order.inputs), "base": base}
    for _ in range(_TRIES - 1):
        with suppress(Stale):
            return cast(Ref, here.catalog.commit(order.name, made, **said))
    return cast(Ref, here.catalog.commit(order.name, made, **said))


def _table(order: Order, base: Opened | None, written: Written) -> tuple[Table | None, str]:
    """What the files say of their rows; and what a person should know of that."""
    if order.name.kind != "dataset":
        return None, ""
    before = base.table if base is not None else None
    if base is not None and base.tree.root == written.tree.root and not order.columns:
        return before, ""  # the very same files: what was found out about them still holds
    from falaj.content.tables import guess

    try:
        found = order.source.table or _described(order, before)
    except (Invalid, Corrupt, NotFound) as error:
        if order.columns:
            raise Invalid(error.message, error.hint, order.name) from error
        return None, f"published without a schema: {error.message}"
    if found is None:
        return None, ""
    return replace(found, source=order.source.pinned or found.source), "; ".join(guess(found.columns))


def _described(order: Order, before: Table | None) -> Table | None:
    """A column that was declared personal stays so, until it is gone."""
    from falaj.content.tables import describe

    path, given = order.source.path, dict(order.columns)
    known = {column.name: column.category for column in (before.columns if before else ()) if column.category}
    try:
        table = describe(path, {**known, **given})
    except NotFound:
        table = describe(path, given)
        there = {column.name for column in (table.columns if table else ())}
        table = describe(path, {name: kind for name, kind in known.items() if name in there} | given)
    if table is None and given:
        hint = "columns are those of Parquet, CSV, Arrow or JSON-lines files"
        raise Invalid(f"there is no table in {str(path)!r:.200}", hint)
    return table
