"""The keys of people whose rows are sealed: where the table lies, how a key is made once, and how it is destroyed.

The table is a dataset of its own, `dataset:<project>/<view>.rows<k>.keys`, under the view's label and in its zone, one
version a change. Which version counts stands in the record of the stream, and moves only from the one that was read: of
two that add people at the same moment one is told to look again, so nobody's rows are sealed under a key that is lost.

A large table lies in several files, each with the people whose pseudonyms begin alike, so that one person's leaving
writes one of them. A version shares with those before it only what holds no other key than its own. Else a pack that
held a destroyed key would live on for the sake of its neighbours, and whoever may read the newest table could ask for
the pack.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from falaj.asof.person_sealing import (
    PSEUDONYM_BYTES,
    PersonKeys,
    decode_person_keys,
    encode_person_keys,
    generate_person_keys,
    join_key_tables,
)
from falaj.catalog.lifecycle_records import KeptVersion
from falaj.catalog.publish_sources import PublishSource
from falaj.catalog.publishing import PublishOrder, UploadSink, begin_publish
from falaj.catalog.records import CatalogVersion, PublishFacts, SentTree, VersionPage
from falaj.catalog.version_reader import open_version
from falaj.core.client_command import Client
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound, StaleRevision, Unavailable
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features.row_stream import ViewDetails, make_dataset_ref
from falaj.snapshot.amend import ChangedFiles, amend_tree
from falaj.snapshot.publisher import publish_folder
from falaj.snapshot.tree_reader import TreeSnapshot

KEYS_SUFFIX = ".keys"  # of the name of a dataset that holds the keys of a view's rows
SINGLE_FILE, _PART_FORMAT = "people.keys", "people-{:02}-of-{:02}.keys"
_PEOPLE_PER_FILE, _MAX_FILES = 262_144, 64
"""How many people a file of a table has (as many as one pack can), unless there are more than so many files."""
_MAX_ATTEMPTS, _PEOPLE_PER_CALL = 16, 5_000
"""How often somebody else may be faster, and how many people are asked about at once."""

VersionSnapshot = tuple[Ref, TreeSnapshot]
"""A version, opened."""


@dataclass(frozen=True, slots=True)
class PersonKeyAccess:
    """The keys of one view's rows, and how the platform is asked about them."""

    table: Ref
    """The dataset, without a version."""
    label: Label
    zone: str
    current: Callable[[], Ref | None]
    """The version that counts; None while there is none."""
    swap: Callable[[Ref | None, Ref], object]
    """Let another version count in the place of the one that did; StaleRevision when that is no longer so."""
    pseudonyms: Callable[[Sequence[bytes]], Sequence[str]]
    """What the platform calls people, by the bytes of the key that names them; in hex."""
    view: Ref | None = None
    """The view whose rows these keys open; none where no view has the table."""


@dataclass(frozen=True, slots=True)
class DestroyedKeys:
    """What became of keys."""

    table: Ref | None
    """The version that counts now."""
    gone: tuple[Ref, ...]
    """Versions that were deleted, by this call."""
    kept: tuple[KeptVersion, ...] = ()
    """Versions that still hold the keys: nothing is erased before they are gone."""


def make_keys_ref(rows: Ref) -> Ref:
    """Where the keys of a view's rows are published."""
    return Ref("dataset", rows.project, f"{rows.name}{KEYS_SUFFIX}")


def make_key_access(client: Client, details: ViewDetails) -> PersonKeyAccess:
    """The keys of a stream's people, by way of the platform."""
    view = details.view
    return PersonKeyAccess(
        make_keys_ref(make_dataset_ref(details.stream)), details.labels[""], details.zone,
        lambda: client.features.about(view).stream.keys,
        lambda previous, next_table: client.features.rekey(view, next_table, previous),
        lambda subjects: client.features.pseudonyms(view, tuple(subject.hex() for subject in subjects)),
        view,
    )  # fmt: skip


def list_pseudonyms(key_access: PersonKeyAccess, subjects: Sequence[bytes]) -> list[bytes]:
    """The pseudonym of each person, as tables hold it."""
    pseudonym_batches = (
        key_access.pseudonyms(subjects[start : start + _PEOPLE_PER_CALL])
        for start in range(0, len(subjects), _PEOPLE_PER_CALL)
    )
    pseudonyms = [bytes.fromhex(text)[:PSEUDONYM_BYTES] for texts in pseudonym_batches for text in texts]
    if len(pseudonyms) != len(subjects) or any(len(name) != PSEUDONYM_BYTES for name in pseudonyms):
        raise CorruptData("the platform gave other pseudonyms than were asked for", "use one release on both sides")
    return pseudonyms


def read_person_keys(client: Client, key_access: PersonKeyAccess) -> PersonKeys:
    """The table that counts."""
    return _KeyTable(client, key_access.current(), key_access.view).whole()


def compute_file_number(pseudonym: bytes, file_count: int) -> int:
    """Which of so many files somebody is in."""
    return int.from_bytes(pseudonym[:4], "big") * file_count >> 32


def split_into_files(keys: PersonKeys, min_files: int = 1) -> dict[str, PersonKeys]:
    """The files of a table by name; at least so many, a power of two."""
    file_count = max(min_files, 1)
    while file_count < _MAX_FILES and len(keys) > file_count * _PEOPLE_PER_FILE:
        file_count *= 2
    return dict(
        zip(
            _list_file_names(file_count),
            keys.parts([(number << 32) // file_count for number in range(1, file_count)]),
            strict=True,
        )
    )


def ensure_person_keys(client: Client, key_access: PersonKeyAccess, pseudonyms: Sequence[bytes]) -> PersonKeys:
    """The table with a key for each of these people; who has none gets one. Seal under nothing else.

    Whoever was erased must not be among them: the platform knows, and quarantines their rows.
    """
    for _ in range(_MAX_ATTEMPTS):
        current_table = key_access.current()
        table = _KeyTable(client, current_table, key_access.view)
        keys = table.whole()
        missing = keys.missing(pseudonyms)
        if not missing:
            return keys
        extended_keys = keys.merge(generate_person_keys(missing))
        parts = split_into_files(extended_keys, len(table.entries))
        if len(parts) == len(table.entries):
            parts = {path: parts[path] for path in table.of(missing)}
        published = _publish_table(client, key_access, table, parts)
        try:
            key_access.swap(current_table, published)
        except StaleRevision:
            # It holds keys that may be destroyed at this moment: it goes at once, or with the next erasure.
            with suppress(Denied, NotFound):
                client.catalog.delete(published, "another table was faster", force=True)
            continue
        return extended_keys
    raise _busy_error(key_access)


def destroy_person_keys(
    client: Client,
    key_access: PersonKeyAccess,
    pseudonyms: Sequence[bytes],
    reason: str,
    retained: Sequence[KeptVersion] = (),
) -> DestroyedKeys:
    """Make what was sealed for these people unreadable, wherever a copy of it lies; the same again does nothing.

    While rows must be kept (`retained`), the older tables that open them are restricted instead of deleted.
    """
    for _ in range(_MAX_ATTEMPTS):
        with suppress(StaleRevision):
            current_table = key_access.current()
            table = _KeyTable(client, current_table, key_access.view)
            keys_by_path = {path: table.part(path) for path in table.of(pseudonyms)}
            remaining_by_path = {path: keys.without(pseudonyms) for path, keys in keys_by_path.items()}
            changed_files = {
                path: keys for path, keys in remaining_by_path.items() if len(keys) < len(keys_by_path[path])
            }
            if SINGLE_FILE in changed_files:  # it may be large, and of a time when every table was one file
                changed_files = split_into_files(changed_files[SINGLE_FILE])
            if changed_files:
                key_access.swap(current_table, _publish_table(client, key_access, table, changed_files))
            return delete_old_tables(client, key_access, reason, pseudonyms[0].hex() if pseudonyms else "", retained)
    raise _busy_error(key_access)


def delete_old_tables(
    client: Client, key_access: PersonKeyAccess, reason: str, erasure: str = "", retained: Sequence[KeptVersion] = ()
) -> DestroyedKeys:
    """Delete every version of the table but the one that counts; restrict what a duty keeps, on it or on its rows.

    `erasure` is the pseudonym of the person whose key is destroyed.
    """
    current, deleted, retained_tables = key_access.current(), [], []
    for version in list_live_versions(client, key_access.table):
        if version.ref == current:
            continue
        retained_version = (
            _make_retained_table(version.ref, retained) if retained else delete_version(client, version.ref, reason)
        )
        if retained_version is None:
            deleted.append(version.ref)
            continue
        if retained_version.duties:
            client.catalog.restrict(version.ref, reason, erasure=erasure)
        retained_tables.append(retained_version)
    return DestroyedKeys(current, tuple(deleted), tuple(retained_tables))


def _make_retained_table(table: Ref, retained: Sequence[KeptVersion]) -> KeptVersion:
    """That a table of keys stays for the sake of rows that must be kept."""
    duties = tuple(duty for rows in retained for duty in rows.duties)
    return KeptVersion(table, f"it opens rows that must be kept: {retained[0].why}", retained[0].do, duties)


def delete_version(client: Client, ref: Ref, reason: str) -> KeptVersion | None:
    """Delete a version, whatever was made from it; or say what stands against that."""
    try:
        client.catalog.delete(ref, reason, force=True)
    except NotFound:
        return None  # it is gone already
    except Conflict as error:  # in staging or production
        return KeptVersion(ref, error.message, error.hint)
    except Denied:
        if retained := list_retained(client, (ref,)).get(ref):
            return retained
        raise
    return None


def list_retained(client: Client, refs: Sequence[Ref]) -> dict[Ref, KeptVersion]:
    """Those of these versions that a hold or a retention period keeps."""
    pages = (
        client.catalog.kept(tuple(refs[start : start + _PEOPLE_PER_CALL]))
        for start in range(0, len(refs), _PEOPLE_PER_CALL)
    )
    return {retained.ref: retained for page in pages for retained in page}


def list_live_versions(client: Client, name: Ref) -> Iterator[CatalogVersion]:
    """Every live version of a name that the caller may see."""
    cursor = ""
    while True:
        page: VersionPage = client.catalog.list(kind=name.kind, project=name.project, name=name.name, after=cursor)
        yield from page.versions
        cursor = page.next
        if not cursor:
            return


def publish_unshared(client: Client, order: PublishOrder) -> Ref:
    """Publish the next version of a name so that it shares no stored bytes with any version before it."""
    upload = begin_publish(client, order)
    with client.progress.task(f"publishing {order.name}") as task:
        published_tree = publish_folder(order.source.path, UploadSink(client, upload.ticket), advance=task.advance)
    return _commit_version(client, order, SentTree(upload.ticket, published_tree.tree, published_tree.receipts), None)


def publish_amended(
    client: Client, order: PublishOrder, base: VersionSnapshot | None, changed_files: ChangedFiles
) -> Ref:
    """Publish the next version of a name: another one with some files changed, so that it shares no stored bytes with
    it but those that lie beside nothing else. The source of the order is not looked at."""
    upload = begin_publish(client, order)
    ref, snapshot = base or (None, None)
    published_tree = amend_tree(snapshot, changed_files, UploadSink(client, upload.ticket))
    return _commit_version(client, order, SentTree(upload.ticket, published_tree.tree, published_tree.receipts), ref)


def _commit_version(client: Client, order: PublishOrder, upload_result: SentTree, base: Ref | None) -> Ref:
    for _ in range(_MAX_ATTEMPTS):
        with suppress(StaleRevision):
            ref: Ref = client.catalog.commit(
                order.name, upload_result, facts=order.facts, label=order.label, inputs=dict(order.inputs), base=base
            )
            return ref
    raise Unavailable(f"others kept publishing {order.name}", "call again", order.name)


class _KeyTable:
    """One version of the keys, of which nothing is read but what is asked for."""

    def __init__(self, client: Client, table_ref: Ref | None, view: Ref | None) -> None:
        if table_ref is not None and not table_ref.pinned:
            raise Invalid(
                f"{table_ref} names no version", "the record of the stream says which version counts", table_ref
            )
        self.held: VersionSnapshot | None = (
            None if table_ref is None else (table_ref, open_version(client, table_ref, view)[1])
        )
        listed_entries = self.held[1].entries() if self.held is not None else ()
        self.entries = {entry.path.decode("utf-8", "replace"): entry for entry in listed_entries}
        file_count = len(self.entries)
        if self.entries.keys() - set(_list_file_names(file_count)) or file_count & (file_count - 1):
            raise _broken_table_error()

    def of(self, pseudonyms: Iterable[bytes]) -> list[str]:
        """The files in which these people are, if they are in any."""
        paths = _list_file_names(len(self.entries))
        return (
            [
                paths[number]
                for number in sorted({compute_file_number(pseudonym, len(paths)) for pseudonym in pseudonyms})
            ]
            if paths
            else []
        )

    def part(self, path: str) -> PersonKeys:
        """The keys in a file."""
        if self.held is None:
            return generate_person_keys([])
        keys, paths = (
            decode_person_keys(b"".join(self.held[1].read(self.entries[path]))),
            _list_file_names(len(self.entries)),
        )
        end_pseudonyms = keys.names[[0, -1]].tolist() if len(keys) else []
        if any(
            paths[compute_file_number(pseudonym.ljust(PSEUDONYM_BYTES, b"\0"), len(paths))] != path
            for pseudonym in end_pseudonyms
        ):
            raise _broken_table_error()  # else somebody's key would be looked for where it is not
        return keys

    def whole(self) -> PersonKeys:
        """All keys."""
        return join_key_tables([self.part(path) for path in _list_file_names(len(self.entries))])


def _list_file_names(file_count: int) -> list[str]:
    """What the files of a table are called, in the order of the people in them."""
    return (
        [_PART_FORMAT.format(number, file_count) for number in range(file_count)] if file_count != 1 else [SINGLE_FILE]
    )


def _publish_table(
    client: Client, key_access: PersonKeyAccess, previous_table: _KeyTable, parts: Mapping[str, PersonKeys]
) -> Ref:
    """The next version: these files, and the others of the table before where it has the same."""
    facts = PublishFacts("keys of people", tags={"holds": "keys"})
    order = PublishOrder(key_access.table, PublishSource(Path()), facts, key_access.label, {}, key_access.zone)
    base = previous_table.held if parts.keys() <= previous_table.entries.keys() else None
    return publish_amended(
        client, order, base, {path.encode(): encode_person_keys(keys) for path, keys in parts.items()}
    )


def _broken_table_error() -> CorruptData:
    return CorruptData("a table of keys has other files than tables of keys have", "restore it from a backup")


def _busy_error(key_access: PersonKeyAccess) -> Unavailable:
    return Unavailable(f"others kept changing {key_access.table}", "call again", key_access.table)
