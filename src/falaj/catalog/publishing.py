"""Publishing: what becomes of a folder between the asking and the version, beside the platform."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from falaj.catalog.publish_sources import PublishSource, forget_memory, lock_memory, open_source
from falaj.catalog.records import CodeOrigin, OpenedVersion, PublishFacts, PublishTicket, SentTree
from falaj.content.records import TableDescription
from falaj.core.byte_channel import UploadReceipt
from falaj.core.client_command import Client, client_command
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound, StaleRevision
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.snapshot.fast_check import check_published_folder

if TYPE_CHECKING:
    from falaj.snapshot.page_reuse import ReusePlan
    from falaj.snapshot.publisher import WrittenTree

_MAX_COMMIT_TRIES = 8


@dataclass(frozen=True, slots=True)
class PublishResult:
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
class PublishOrder:
    """What somebody wants published, under which name and with what to say of it."""

    name: Ref
    source: PublishSource
    facts: PublishFacts = field(default_factory=PublishFacts)
    label: Label | None = None
    inputs: Mapping[str, Ref] = field(default_factory=dict)
    zone: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UploadSink:
    """The way in, for whoever writes a snapshot."""

    here: Client
    ticket: str

    def put(self, chunks: Iterable[bytes]) -> UploadReceipt:
        return self.here.bytes.put(self.ticket, chunks)

    def bundle(self, receipts: tuple[UploadReceipt, ...]) -> UploadReceipt:
        return self.here.bytes.bundle(self.ticket, receipts)


@client_command
def publish(
    client: Client,
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
) -> PublishResult:
    """Publish files as the next version of a dataset, a model or a program.

    Only what is new since the newest version is read and sent, encrypted under the zone's keys. A publish that broke
    off is taken up where it stopped; until it is done nobody sees anything of it. The same files with nothing new to
    say are no new version. Of tables (Parquet, CSV, Arrow, JSON lines) the schema, the number of rows and statistics
    are recorded. Of models the format, the packages of this Python and, with --code, the program and its git commit.

    Example:
        falaj catalog publish dataset:fraud/tx ./transactions --label AE-PDPL,sensitive --columns email=personal
        falaj catalog publish model:fraud/scorer ./model --inputs data=dataset:fraud/tx@v3 --metrics auc=0.93
    """
    started_at = time.monotonic()
    if name.version:
        raise Invalid(f"{name} names a version", "versions are numbered by the platform: leave it out", name)
    model_options = {"metrics": metrics, "params": params, "code": code, "command": command}
    named_options = [option_name for option_name, value in model_options.items() if value]
    if named_options and name.kind != "model":
        raise Invalid(f"a {name.kind} has no {', '.join(named_options)}", "those are for models", name)
    input_refs = {role: Ref.parse(ref) for role, ref in (inputs or {}).items()}
    with open_source(source) as opened_source:
        facts = PublishFacts(message, tags=dict(opened_source.tags))
        if name.kind == "model":
            from falaj.catalog.model_cards import hash_files, make_card

            card = make_card(opened_source.path, metrics or {}, params or {}, command)
            if code:
                program = publish_code(client, name, Path(code), zone)
                card = replace(card, code=program)
                input_refs = {**input_refs, **({"code": program.ref} if program.ref else {})}
            facts = replace(facts, card=card, files=hash_files(opened_source.path))
        result = run_publish(client, PublishOrder(name, opened_source, facts, label, input_refs, zone, columns or {}))
    if name.kind == "model":
        result = replace(
            result, note="; ".join(filter(None, (result.note, *client.catalog.inspect(result.ref).reasons)))
        )
    return replace(result, seconds=round(time.monotonic() - started_at, 3))


def publish_code(client: Client, name: Ref, folder: Path, zone: str = "") -> CodeOrigin:
    """Keep the program: what git counts as its files where there is git, else all of them."""
    import shutil
    import tempfile

    from falaj.catalog.git_facts import list_tracked_files, read_code

    if not folder.is_dir():
        raise Invalid(f"{str(folder)!r:.300} is not a folder", "name the folder of the program", name)
    program = Ref("code", name.project, name.name)
    tracked_paths = list_tracked_files(folder)
    if tracked_paths is None:
        result = run_publish(client, PublishOrder(program, PublishSource(folder.resolve()), zone=zone))
        return CodeOrigin(result.ref)
    facts = read_code(folder)
    with tempfile.TemporaryDirectory(prefix="falaj-code-") as scratch_folder:
        for path in map(os.fsdecode, tracked_paths):
            target = Path(scratch_folder, path)
            if (folder / path).is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(folder / path, target, follow_symlinks=False)
        tags = {"commit": facts.commit, "remote": facts.remote, "dirty": facts.dirty}
        code_facts = PublishFacts(tags={key: value for key, value in tags.items() if value})
        result = run_publish(
            client, PublishOrder(program, PublishSource(Path(scratch_folder), passing=True), code_facts, zone=zone)
        )
    return replace(facts, ref=result.ref)


def run_publish(client: Client, order: PublishOrder) -> PublishResult:
    """Send what is new, and have it made a version."""
    order_source = order.source
    with lock_memory(
        client.address, str(order.name), order.zone, "" if order_source.passing else str(order_source.path)
    ) as memory_path:
        try:
            return _attempt_publish(client, order, memory_path)
        except (Conflict, NotFound):
            # What was sent long ago, or what we built on, was taken away: this once, begin with nothing.
            forget_memory(memory_path)
            return _attempt_publish(client, order, memory_path)


def begin_publish(client: Client, order: PublishOrder) -> PublishTicket:
    """Ask whether it may lie there with all that will be said of it, before any byte goes; gives the ticket."""
    inputs = dict(order.inputs) or None
    return cast(PublishTicket, client.catalog.begin(order.name, zone=order.zone, label=order.label, inputs=inputs))


def _attempt_publish(client: Client, order: PublishOrder, memory: Path | None) -> PublishResult:
    with client.progress.task(f"publishing {order.name}") as task:
        rescan = check_published_folder(order.source.path, memory) if memory is not None else None
        if rescan is not None and rescan.root and (ref := _confirm_unchanged(client, order, rescan.root)) is not None:
            task.advance(rescan.size_bytes)
            return PublishResult(ref, rescan.num_files, rescan.size_bytes, 0, rescan.num_files)
        begun_publish = begin_publish(client, order)
        base = _open_base(client, begun_publish)
        written = _write_snapshot(
            client, order, (begun_publish.ticket, base), memory, rescan and rescan.plan, task.advance
        )
    table, note = _describe_table(client, order, base, written)
    facts = replace(order.facts, table=table)
    ref = _commit_version(
        client, order, SentTree(begun_publish.ticket, written.tree, written.receipts), facts, base.ref if base else None
    )
    tree = written.tree
    note = "; ".join(filter(None, (*written.notes, note)))
    return PublishResult(ref, tree.num_files, tree.size_bytes, written.new_bytes, written.kept_files, note=note)


def _confirm_unchanged(client: Client, order: PublishOrder, root: str) -> Ref | None:
    """The newest version, where these files are what it holds and nothing is to be said of them."""
    facts = order.facts
    if order.label or order.inputs or order.columns or facts.table or facts.card or facts.tags or facts.files:
        return None
    with suppress(NotFound):  # the name, or in an older house the verb
        return cast("Ref | None", client.catalog.confirm(order.name, root, zone=order.zone))
    return None


def _open_base(client: Client, begun_publish: PublishTicket) -> OpenedVersion | None:
    """The newest version, to build on; whoever may write and not read sends everything again."""
    if begun_publish.base is None:
        return None
    with suppress(Denied, NotFound):
        return cast(OpenedVersion, client.catalog.open(begun_publish.base))
    return None


def _write_snapshot(
    client: Client,
    order: PublishOrder,
    ticket_and_base: tuple[str, OpenedVersion | None],
    memory: Path | None,
    plan: "ReusePlan | None",
    advance: Callable[[int], None],
) -> "WrittenTree":
    from falaj.catalog.version_reader import VersionReader
    from falaj.snapshot.publisher import publish_folder
    from falaj.snapshot.tree_reader import TreeSnapshot

    ticket, base = ticket_and_base
    base_snapshot = TreeSnapshot(base.tree, VersionReader(client, base.ref, base.ticket)) if base is not None else None
    sink = UploadSink(client, ticket)
    return publish_folder(order.source.path, sink, base=base_snapshot, state_path=memory, advance=advance, plan=plan)


def _commit_version(
    client: Client, order: PublishOrder, sent_tree: SentTree, facts: PublishFacts, base: Ref | None
) -> Ref:
    """Make it a version; when others make theirs at the same moment, one after the other."""
    commit_arguments = {"facts": facts, "label": order.label, "inputs": dict(order.inputs), "base": base}
    for _ in range(_MAX_COMMIT_TRIES - 1):
        with suppress(StaleRevision):
            return cast(Ref, client.catalog.commit(order.name, sent_tree, **commit_arguments))
    return cast(Ref, client.catalog.commit(order.name, sent_tree, **commit_arguments))


def _describe_table(
    client: Client, order: PublishOrder, base: OpenedVersion | None, written: "WrittenTree"
) -> tuple[TableDescription | None, str]:
    """What the files say of their rows; and what a person should know of that."""
    if order.name.kind != "dataset":
        return None, ""
    if base is not None and base.tree.root == written.tree.root and not order.columns:
        return base.table, ""  # the very same files: what was found out about them still holds
    from falaj.content.table_statistics import make_absent_columns, warn_undeclared_columns

    declared_columns = _list_declared_columns(client, order, base)
    try:
        described_table, reason_text = order.source.table or _describe_columns(order, declared_columns), ""
    except (Invalid, CorruptData, NotFound) as error:
        if order.columns:
            raise Invalid(error.message, error.hint, order.name) from error
        described_table, reason_text = None, f"published without a schema: {error.message}"
    if described_table is None:
        # The next version may hold the columns again that were declared.
        return TableDescription(
            None, make_absent_columns(declared_columns), "", 0
        ) if declared_columns else None, reason_text
    notes = "; ".join((*_warn_missing_columns(described_table), *warn_undeclared_columns(described_table.columns)))
    return replace(described_table, source=order.source.pinned or described_table.source), notes


def _list_declared_columns(client: Client, order: PublishOrder, base: OpenedVersion | None) -> dict[str, str]:
    """Which columns were declared for the versions before, but for those that are said to be gone."""
    earlier_table = base.table if base is not None else None
    if base is None:
        with suppress(Denied, NotFound):  # the newest version may lie in another zone
            earlier_table = client.catalog.show(order.name).table
    named_columns = {name.casefold() for name in order.columns}
    columns = earlier_table.columns if earlier_table else ()
    return {
        table_column.name: table_column.category
        for table_column in columns
        if table_column.category and table_column.name.casefold() not in named_columns
    }


def _describe_columns(order: PublishOrder, declared_columns: Mapping[str, str]) -> TableDescription | None:
    """A column that was declared personal stays so for every version after, until somebody says that it is gone."""
    from falaj.content.table_statistics import CATEGORY_GONE, describe_table

    path, present_categories = (
        order.source.path,
        {name: kind for name, kind in order.columns.items() if kind != CATEGORY_GONE},
    )
    if not all(present_categories.values()):
        raise Invalid("a column is declared as nothing", f"personal, sensitive, or {CATEGORY_GONE}")
    table = describe_table(path, present_categories, declared_columns)
    if table is None and present_categories:
        hint = "columns are those of Parquet, CSV, Arrow or JSON-lines files"
        raise Invalid(f"there is no table in {str(path)!r:.200}", hint)
    gone_names = {name.casefold() for name in order.columns} - {name.casefold() for name in present_categories}
    for column in table.columns if table else ():
        if column.name.casefold() in gone_names:
            raise Invalid(f"the column {column.name!r:.80} is not gone", "declare it personal or sensitive")
    return table


def _warn_missing_columns(table: TableDescription) -> Iterable[str]:
    for column in table.columns:
        if not column.type:
            warning = f"the column {column.name!r:.80} was declared {column.category} and is not there"
            yield f"{warning}: no values of the table are kept until it is, or is said to be gone (--columns NAME=gone)"
