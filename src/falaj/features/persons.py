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

from falaj.asof.sealed import NAME_BYTES, Keys, joined, new_keys, pack_keys, unpack_keys
from falaj.catalog.life_records import Kept
from falaj.catalog.publishing import Order, Sink, begin
from falaj.catalog.reading import open_version
from falaj.catalog.records import Facts, Made, Version, VersionPage
from falaj.catalog.sources import Source
from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.errors import Conflict, Corrupt, Denied, Invalid, NotFound, Stale, Unavailable
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features.stream import Arrival, dataset_of
from falaj.snapshot.amend import Changes, amend
from falaj.snapshot.read import Snapshot
from falaj.snapshot.write import publish_folder

KEYS_SUFFIX = ".keys"  # of the name of a dataset that holds the keys of a view's rows
FILE, _PART = "people.keys", "people-{:02}-of-{:02}.keys"
_PEOPLE, _MOST_PARTS = 262_144, 64
"""How many people a file of a table has (as many as one pack can), unless there are more than so many files."""
_TRIES, _ASKED = 16, 5_000
"""How often somebody else may be faster, and how many people are asked about at once."""

Held = tuple[Ref, Snapshot]
"""A version, opened."""


@dataclass(frozen=True, slots=True)
class Lock:
    """The keys of one view's rows, and how the platform is asked about them."""

    table: Ref
    """The dataset, without a version."""
    label: Label
    zone: str
    current: Callable[[], Ref | None]
    """The version that counts; None while there is none."""
    swap: Callable[[Ref | None, Ref], object]
    """Let another version count in the place of the one that did; Stale when that is no longer so."""
    pseudonyms: Callable[[Sequence[bytes]], Sequence[str]]
    """What the platform calls people, by the bytes of the key that names them; in hex."""
    view: Ref | None = None
    """The view whose rows these keys open; none where no view has the table."""


@dataclass(frozen=True, slots=True)
class Destroyed:
    """What became of keys."""

    table: Ref | None
    """The version that counts now."""
    gone: tuple[Ref, ...]
    """Versions that were deleted, by this call."""
    kept: tuple[Kept, ...] = ()
    """Versions that still hold the keys: nothing is erased before they are gone."""


def keys_ref(rows: Ref) -> Ref:
    """Where the keys of a view's rows are published."""
    return Ref("dataset", rows.project, f"{rows.name}{KEYS_SUFFIX}")


def lock_of(here: Here, about: Arrival) -> Lock:
    """The keys of a stream's people, by way of the platform."""
    view = about.view
    return Lock(
        keys_ref(dataset_of(about.stream)), about.labels[""], about.zone,
        lambda: here.features.about(view).stream.keys,
        lambda before, after: here.features.rekey(view, after, before),
        lambda subjects: here.features.pseudonyms(view, tuple(one.hex() for one in subjects)),
        view,
    )  # fmt: skip


def names_of(lock: Lock, subjects: Sequence[bytes]) -> list[bytes]:
    """The pseudonym of each person, as tables hold it."""
    told = (lock.pseudonyms(subjects[start : start + _ASKED]) for start in range(0, len(subjects), _ASKED))
    named = [bytes.fromhex(text)[:NAME_BYTES] for texts in told for text in texts]
    if len(named) != len(subjects) or any(len(name) != NAME_BYTES for name in named):
        raise Corrupt("the platform gave other pseudonyms than were asked for", "use one release on both sides")
    return named


def read_keys(here: Here, lock: Lock) -> Keys:
    """The table that counts."""
    return _Table(here, lock.current(), lock.view).whole()


def part_of(name: bytes, of: int) -> int:
    """Which of so many files somebody is in."""
    return int.from_bytes(name[:4], "big") * of >> 32


def parted(keys: Keys, least: int = 1) -> dict[str, Keys]:
    """The files of a table by name; at least so many, a power of two."""
    of = max(least, 1)
    while of < _MOST_PARTS and len(keys) > of * _PEOPLE:
        of *= 2
    return dict(zip(_paths(of), keys.parts([(number << 32) // of for number in range(1, of)]), strict=True))


def ensure_keys(here: Here, lock: Lock, names: Sequence[bytes]) -> Keys:
    """The table with a key for each of these people; who has none gets one. Seal under nothing else.

    Whoever was erased must not be among them: the platform knows, and quarantines their rows.
    """
    for _ in range(_TRIES):
        at = lock.current()
        table = _Table(here, at, lock.view)
        keys = table.whole()
        missing = keys.missing(names)
        if not missing:
            return keys
        grown = keys.merge(new_keys(missing))
        parts = parted(grown, len(table.entries))
        if len(parts) == len(table.entries):
            parts = {path: parts[path] for path in table.of(missing)}
        made = _publish(here, lock, table, parts)
        try:
            lock.swap(at, made)
        except Stale:
            # It holds keys that may be destroyed at this moment: it goes at once, or with the next erasure.
            with suppress(Denied, NotFound):
                here.catalog.delete(made, "another table was faster", force=True)
            continue
        return grown
    raise _busy(lock)


def destroy_keys(
    here: Here, lock: Lock, names: Sequence[bytes], reason: str, retained: Sequence[Kept] = ()
) -> Destroyed:
    """Make what was sealed for these people unreadable, wherever a copy of it lies; the same again does nothing.

    While rows must be kept (`retained`), the older tables that open them are restricted instead of deleted.
    """
    for _ in range(_TRIES):
        with suppress(Stale):
            at = lock.current()
            table = _Table(here, at, lock.view)
            held = {path: table.part(path) for path in table.of(names)}
            left = {path: keys.without(names) for path, keys in held.items()}
            changed = {path: keys for path, keys in left.items() if len(keys) < len(held[path])}
            if FILE in changed:  # it may be large, and of a time when every table was one file
                changed = parted(changed[FILE])
            if changed:
                lock.swap(at, _publish(here, lock, table, changed))
            return tidy(here, lock, reason, names[0].hex() if names else "", retained)
    raise _busy(lock)


def tidy(here: Here, lock: Lock, reason: str, erasure: str = "", retained: Sequence[Kept] = ()) -> Destroyed:
    """Delete every version of the table but the one that counts; restrict what a duty keeps, on it or on its rows.

    `erasure` is the pseudonym of the person whose key is destroyed.
    """
    now, gone, kept = lock.current(), [], []
    for version in versions_of(here, lock.table):
        if version.ref == now:
            continue
        stays = _opens(version.ref, retained) if retained else remove(here, version.ref, reason)
        if stays is None:
            gone.append(version.ref)
            continue
        if stays.duties:
            here.catalog.restrict(version.ref, reason, erasure=erasure)
        kept.append(stays)
    return Destroyed(now, tuple(gone), tuple(kept))


def _opens(table: Ref, retained: Sequence[Kept]) -> Kept:
    """That a table of keys stays for the sake of rows that must be kept."""
    duties = tuple(duty for rows in retained for duty in rows.duties)
    return Kept(table, f"it opens rows that must be kept: {retained[0].why}", retained[0].do, duties)


def remove(here: Here, ref: Ref, reason: str) -> Kept | None:
    """Delete a version, whatever was made from it; or say what stands against that."""
    try:
        here.catalog.delete(ref, reason, force=True)
    except NotFound:
        return None  # it is gone already
    except Conflict as error:  # in staging or production
        return Kept(ref, error.message, error.hint)
    except Denied:
        if stays := kept_by_law(here, (ref,)).get(ref):
            return stays
        raise
    return None


def kept_by_law(here: Here, refs: Sequence[Ref]) -> dict[Ref, Kept]:
    """Those of these versions that a hold or a retention period keeps."""
    told = (here.catalog.kept(tuple(refs[start : start + _ASKED])) for start in range(0, len(refs), _ASKED))
    return {one.ref: one for page in told for one in page}


def versions_of(here: Here, name: Ref) -> Iterator[Version]:
    """Every live version of a name that the caller may see."""
    after = ""
    while True:
        page: VersionPage = here.catalog.list(kind=name.kind, project=name.project, name=name.name, after=after)
        yield from page.versions
        after = page.next
        if not after:
            return


def publish_apart(here: Here, order: Order) -> Ref:
    """Publish the next version of a name so that it shares no stored bytes with any version before it."""
    begun = begin(here, order)
    with here.progress.task(f"publishing {order.name}") as task:
        done = publish_folder(order.source.path, Sink(here, begun.ticket), advance=task.advance)
    return _commit(here, order, Made(begun.ticket, done.tree, done.receipts), None)


def publish_amended(here: Here, order: Order, base: Held | None, changed: Changes) -> Ref:
    """Publish the next version of a name: another one with some files changed, so that it shares no stored bytes with
    it but those that lie beside nothing else. The source of the order is not looked at."""
    begun = begin(here, order)
    ref, snapshot = base or (None, None)
    done = amend(snapshot, changed, Sink(here, begun.ticket))
    return _commit(here, order, Made(begun.ticket, done.tree, done.receipts), ref)


def _commit(here: Here, order: Order, made: Made, base: Ref | None) -> Ref:
    for _ in range(_TRIES):
        with suppress(Stale):
            ref: Ref = here.catalog.commit(
                order.name, made, facts=order.facts, label=order.label, inputs=dict(order.inputs), base=base
            )
            return ref
    raise Unavailable(f"others kept publishing {order.name}", "call again", order.name)


class _Table:
    """One version of the keys, of which nothing is read but what is asked for."""

    def __init__(self, here: Here, at: Ref | None, view: Ref | None) -> None:
        if at is not None and not at.pinned:
            raise Invalid(f"{at} names no version", "the record of the stream says which version counts", at)
        self.held: Held | None = None if at is None else (at, open_version(here, at, view)[1])
        found = self.held[1].entries() if self.held is not None else ()
        self.entries = {entry.path.decode("utf-8", "replace"): entry for entry in found}
        of = len(self.entries)
        if self.entries.keys() - set(_paths(of)) or of & (of - 1):
            raise _broken()

    def of(self, names: Iterable[bytes]) -> list[str]:
        """The files in which these people are, if they are in any."""
        paths = _paths(len(self.entries))
        return [paths[number] for number in sorted({part_of(name, len(paths)) for name in names})] if paths else []

    def part(self, path: str) -> Keys:
        """The keys in a file."""
        if self.held is None:
            return new_keys([])
        keys, paths = unpack_keys(b"".join(self.held[1].read(self.entries[path]))), _paths(len(self.entries))
        ends = keys.names[[0, -1]].tolist() if len(keys) else []
        if any(paths[part_of(name.ljust(NAME_BYTES, b"\0"), len(paths))] != path for name in ends):
            raise _broken()  # else somebody's key would be looked for where it is not
        return keys

    def whole(self) -> Keys:
        """All keys."""
        return joined([self.part(path) for path in _paths(len(self.entries))])


def _paths(of: int) -> list[str]:
    """What the files of a table are called, in the order of the people in them."""
    return [_PART.format(number, of) for number in range(of)] if of != 1 else [FILE]


def _publish(here: Here, lock: Lock, before: _Table, parts: Mapping[str, Keys]) -> Ref:
    """The next version: these files, and the others of the table before where it has the same."""
    facts = Facts("keys of people", tags={"holds": "keys"})
    order = Order(lock.table, Source(Path()), facts, lock.label, {}, lock.zone)
    base = before.held if parts.keys() <= before.entries.keys() else None
    return publish_amended(here, order, base, {path.encode(): pack_keys(keys) for path, keys in parts.items()})


def _broken() -> Corrupt:
    return Corrupt("a table of keys has other files than tables of keys have", "restore it from a backup")


def _busy(lock: Lock) -> Unavailable:
    return Unavailable(f"others kept changing {lock.table}", "call again", lock.table)
