"""Publishing: what becomes of a folder between the asking and the version, beside the platform."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from falaj.catalog.records import Begun, Code, Facts, Made, Opened
from falaj.catalog.sources import Source, forget, memory_of, open_source
from falaj.content.records import Table
from falaj.core.data import dataclass
from falaj.core.errand import Here, errand
from falaj.core.errors import Conflict, Corrupt, Denied, Invalid, NotFound, Stale
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.transfer import Receipt
from falaj.snapshot.again import look_again

if TYPE_CHECKING:
    from falaj.snapshot.whole import Plan
    from falaj.snapshot.write import Written

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


@errand
def publish(
    here: Here,
    name: Annotated[Ref, "what to call it, for example dataset:fraud/tx or model:fraud/scorer"],
    source: Annotated[str, "a folder, a file, or another tool's table or project, for example delta:./table@12"],
    label: Annotated[Label | None, "what the law says of it, for example AE-PDPL,sensitive"] = None,
    inputs: Annotated[
        dict[str, Ref] | None, "what it was made from, by role; their labels are joined to its own"
    ] = None,
    message: Annotated[str, "what is new in it, for those who read the list"] = "",
    zone: Annotated[str, "where its bytes shall lie; your own zone when left out"] = "",
    columns: Annotated[dict[str, str] | None, "of a table: columns that are personal or sensitive, or gone"] = None,
    metrics: Annotated[
        dict[str, float] | None, "of a model: how good it is; card.json in its folder may say so too"
    ] = None,
    params: Annotated[dict[str, str] | None, "of a model: what it was trained with"] = None,
    code: Annotated[str, "of a model: the folder of the program that made it, kept as a version of its own"] = "",
    command: Annotated[str, "of a model: what was run, inside the folder of its code"] = "",
) -> Published:
    """Publish files as the next version of a dataset, a model or a program.

    Only what is new since the newest version is read and sent, encrypted under the zone's keys. A publish that broke
    off is taken up where it stopped; until it is done nobody sees anything of it. The same files with nothing new to
    say are no new version. Of tables (Parquet, CSV, Arrow, JSON lines) the schema, the number of rows and statistics
    are recorded. Of models the format, the packages of this Python and, with --code, the program and its git commit.

    Example:
        falaj catalog publish dataset:fraud/tx ./transactions --label AE-PDPL,sensitive --columns email=personal
        falaj catalog publish model:fraud/scorer ./model --inputs data=dataset:fraud/tx@v3 --metrics auc=0.93
    """
    began = time.monotonic()
    if name.version:
        raise Invalid(f"{name} names a version", "versions are numbered by the platform: leave it out", name)
    about_model = {"metrics": metrics, "params": params, "code": code, "command": command}
    given = [word for word, value in about_model.items() if value]
    if given and name.kind != "model":
        raise Invalid(f"a {name.kind} has no {', '.join(given)}", "those are for models", name)
    used = {role: Ref.parse(ref) for role, ref in (inputs or {}).items()}
    with open_source(source) as found:
        facts = Facts(message, tags=dict(found.tags))
        if name.kind == "model":
            from falaj.catalog.cards import hash_files, make_card

            card = make_card(found.path, metrics or {}, params or {}, command)
            if code:
                program = publish_code(here, name, Path(code), zone)
                card = replace(card, code=program)
                used = {**used, **({"code": program.ref} if program.ref else {})}
            facts = replace(facts, card=card, files=hash_files(found.path))
        done = carry_out(here, Order(name, found, facts, label, used, zone, columns or {}))
    if name.kind == "model":
        done = replace(done, note="; ".join(filter(None, (done.note, *here.catalog.inspect(done.ref).reasons))))
    return replace(done, seconds=round(time.monotonic() - began, 3))


def publish_code(here: Here, name: Ref, folder: Path, zone: str = "") -> Code:
    """Keep the program: what git counts as its files where there is git, else all of them."""
    import shutil
    import tempfile

    from falaj.catalog.gitfacts import read_code, tracked

    if not folder.is_dir():
        raise Invalid(f"{str(folder)!r:.300} is not a folder", "name the folder of the program", name)
    program = Ref("code", name.project, name.name)
    listed = tracked(folder)
    if listed is None:
        done = carry_out(here, Order(program, Source(folder.resolve()), zone=zone))
        return Code(done.ref)
    facts = read_code(folder)
    with tempfile.TemporaryDirectory(prefix="falaj-code-") as scratch:
        for path in map(os.fsdecode, listed):
            target = Path(scratch, path)
            if (folder / path).is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(folder / path, target, follow_symlinks=False)
        tags = {"commit": facts.commit, "remote": facts.remote, "dirty": facts.dirty}
        told = Facts(tags={key: value for key, value in tags.items() if value})
        done = carry_out(here, Order(program, Source(Path(scratch), passing=True), told, zone=zone))
    return replace(facts, ref=done.ref)


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


def begin(here: Here, order: Order) -> Begun:
    """Ask whether it may lie there with all that will be said of it, before any byte goes; gives the ticket."""
    inputs = dict(order.inputs) or None
    return cast(Begun, here.catalog.begin(order.name, zone=order.zone, label=order.label, inputs=inputs))


def _attempt(here: Here, order: Order, memory: Path | None) -> Published:
    with here.progress.task(f"publishing {order.name}") as task:
        seen = look_again(order.source.path, memory) if memory is not None else None
        if seen is not None and seen.root and (ref := _confirmed(here, order, seen.root)) is not None:
            task.advance(seen.size_bytes)
            return Published(ref, seen.num_files, seen.size_bytes, 0, seen.num_files)
        begun = begin(here, order)
        base = _open_base(here, begun)
        written = _write(here, order, (begun.ticket, base), memory, seen and seen.plan, task.advance)
    table, note = _table(here, order, base, written)
    facts = replace(order.facts, table=table)
    ref = _commit(here, order, Made(begun.ticket, written.tree, written.receipts), facts, base.ref if base else None)
    tree = written.tree
    note = "; ".join(filter(None, (*written.notes, note)))
    return Published(ref, tree.num_files, tree.size_bytes, written.new_bytes, written.kept_files, note=note)


def _confirmed(here: Here, order: Order, root: str) -> Ref | None:
    """The newest version, where these files are what it holds and nothing is to be said of them."""
    facts = order.facts
    if order.label or order.inputs or order.columns or facts.table or facts.card or facts.tags or facts.files:
        return None
    with suppress(NotFound):  # the name, or in an older house the verb
        return cast("Ref | None", here.catalog.confirm(order.name, root, zone=order.zone))
    return None


def _open_base(here: Here, begun: Begun) -> Opened | None:
    """The newest version, to build on; whoever may write and not read sends everything again."""
    if begun.base is None:
        return None
    with suppress(Denied, NotFound):
        return cast(Opened, here.catalog.open(begun.base))
    return None


def _write(
    here: Here,
    order: Order,
    begun: tuple[str, Opened | None],
    memory: Path | None,
    plan: "Plan | None",
    advance: Callable[[int], None],
) -> "Written":
    from falaj.catalog.reading import Reading
    from falaj.snapshot.read import Snapshot
    from falaj.snapshot.write import publish_folder

    ticket, base = begun
    known = Snapshot(base.tree, Reading(here, base.ref, base.ticket)) if base is not None else None
    sink = Sink(here, ticket)
    return publish_folder(order.source.path, sink, base=known, state=memory, advance=advance, plan=plan)


def _commit(here: Here, order: Order, made: Made, facts: Facts, base: Ref | None) -> Ref:
    """Make it a version; when others make theirs at the same moment, one after the other."""
    said = {"facts": facts, "label": order.label, "inputs": dict(order.inputs), "base": base}
    for _ in range(_TRIES - 1):
        with suppress(Stale):
            return cast(Ref, here.catalog.commit(order.name, made, **said))
    return cast(Ref, here.catalog.commit(order.name, made, **said))


def _table(here: Here, order: Order, base: Opened | None, written: "Written") -> tuple[Table | None, str]:
    """What the files say of their rows; and what a person should know of that."""
    if order.name.kind != "dataset":
        return None, ""
    if base is not None and base.tree.root == written.tree.root and not order.columns:
        return base.table, ""  # the very same files: what was found out about them still holds
    from falaj.content.tables import absent, guess

    known = _declared(here, order, base)
    try:
        found, why = order.source.table or _described(order, known), ""
    except (Invalid, Corrupt, NotFound) as error:
        if order.columns:
            raise Invalid(error.message, error.hint, order.name) from error
        found, why = None, f"published without a schema: {error.message}"
    if found is None:
        # The next version may hold the columns again that were declared.
        return Table(None, absent(known), "", 0) if known else None, why
    notes = "; ".join((*_unseen(found), *guess(found.columns)))
    return replace(found, source=order.source.pinned or found.source), notes


def _declared(here: Here, order: Order, base: Opened | None) -> dict[str, str]:
    """Which columns were declared for the versions before, but for those that are said to be gone."""
    before = base.table if base is not None else None
    if base is None:
        with suppress(Denied, NotFound):  # the newest version may lie in another zone
            before = here.catalog.show(order.name).table
    said = {name.casefold() for name in order.columns}
    columns = before.columns if before else ()
    return {each.name: each.category for each in columns if each.category and each.name.casefold() not in said}


def _described(order: Order, known: Mapping[str, str]) -> Table | None:
    """A column that was declared personal stays so for every version after, until somebody says that it is gone."""
    from falaj.content.tables import GONE, describe

    path, given = order.source.path, {name: kind for name, kind in order.columns.items() if kind != GONE}
    if not all(given.values()):
        raise Invalid("a column is declared as nothing", f"personal, sensitive, or {GONE}")
    table = describe(path, given, known)
    if table is None and given:
        hint = "columns are those of Parquet, CSV, Arrow or JSON-lines files"
        raise Invalid(f"there is no table in {str(path)!r:.200}", hint)
    gone = {name.casefold() for name in order.columns} - {name.casefold() for name in given}
    for column in table.columns if table else ():
        if column.name.casefold() in gone:
            raise Invalid(f"the column {column.name!r:.80} is not gone", "declare it personal or sensitive")
    return table


def _unseen(table: Table) -> Iterable[str]:
    for column in table.columns:
        if not column.type:
            what = f"the column {column.name!r:.80} was declared {column.category} and is not there"
            yield f"{what}: no values of the table are kept until it is, or is said to be gone (--columns NAME=gone)"
