"""What the catalog's users do with versions beside the platform: check one out, read, compare, verify."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from falaj.catalog.cards import hash_entries, hash_files
from falaj.catalog.comparing import VersionDiff, compare_versions
from falaj.catalog.reading import FileRow, open_version, path_of, printable, row_of, text_of
from falaj.catalog.records import Opened
from falaj.core.data import dataclass
from falaj.core.errand import Here, errand, moves_much
from falaj.core.errors import Corrupt, Invalid
from falaj.core.ref import Ref
from falaj.core.stream import Stream


@dataclass(frozen=True, slots=True)
class Checkout:
    """Where a version lies now, and how much of it was there already."""

    ref: Ref
    folder: str
    num_files: int
    size_bytes: int
    kept_files: int
    signed: bool
    """True when it is a model whose signature was checked against the files that were written."""
    seconds: float


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A file that is not what was published, and why."""

    path: str
    problem: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Verified:
    """What a reading of every byte of a version found."""

    ref: Ref
    ok: bool
    num_files: int
    size_bytes: int
    signed: bool
    faults: tuple[BrokenFile, ...]


@errand
@moves_much
def checkout(
    here: Here,
    name: Annotated[Ref, "which version; the newest when none is given"],
    to: Annotated[str, "the folder to write it to: a new or empty one, or one that an earlier checkout made"],
    paths: Annotated[tuple[str, ...], "only these files and folders of it"] = (),
) -> Checkout:
    """Write the files of a version into a folder, byte for byte.

    Every byte is checked on its way, and each file appears whole or not at all. Files that are there and right are
    kept, so a checkout that broke off goes on where it stopped, and going from one version to another moves only what
    differs. Of a signed model the signature is checked before the folder is yours.

    Example:
        falaj catalog checkout dataset:fraud/tx@v3 ./transactions
    """
    from falaj.snapshot.checkout import checkout as check_out

    began = time.monotonic()
    opened, snapshot = open_version(here, name)
    folder = Path(to).expanduser()
    fresh = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    wanted = [path_of(path) for path in paths]
    with here.progress.task(f"checking out {opened.ref}", None if wanted else opened.tree.size_bytes) as task:
        done = check_out(snapshot, folder, paths=wanted, advance=task.advance)
    try:
        signed = not wanted and _check_signature(opened, lambda: hash_files(folder))
    except Corrupt:
        if fresh:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
        raise
    took = round(time.monotonic() - began, 3)
    return Checkout(opened.ref, str(folder), done.num_files, done.size_bytes, done.kept, signed, took)


@errand
def cat(
    here: Here,
    name: Annotated[Ref, "which version; the newest when none is given"],
    path: Annotated[str, "which file of it"],
    start: Annotated[int, "the first byte wanted"] = 0,
    stop: Annotated[int | None, "the byte after the last one wanted; to the end when left out"] = None,
) -> Stream:
    """Read one file of a version, or a range of it, and nothing else.

    Example:
        falaj catalog cat dataset:fraud/tx@v3 2026/july.csv --stop 4096
    """
    if start < 0 or (stop is not None and stop < start):
        end = "the end" if stop is None else stop
        raise Invalid(f"a range from {start} to {end}", "ranges count bytes from 0 and end after they begin")
    _, snapshot = open_version(here, name)
    entry = snapshot.entry(path_of(path))
    if entry.kind != "file":
        raise Invalid(f"{path!r:.300} is a link to {text_of(entry.target)!r:.300}", "read that file")
    last = entry.size if stop is None else min(stop, entry.size)
    return Stream(snapshot.read(entry, start, stop), max(last - start, 0))


@errand
def files(
    here: Here,
    name: Annotated[Ref, "which version; the newest when none is given"],
    prefix: Annotated[str, "only those whose path begins so, for example 2026/"] = "",
) -> tuple[FileRow, ...]:
    """List the files of a version by path, with their sizes and digests.

    Example:
        falaj catalog files dataset:fraud/tx@v3 --prefix 2026/
    """
    _, snapshot = open_version(here, name)
    return tuple(row_of(entry) for entry in snapshot.entries(path_of(prefix)))


@errand
def diff(
    here: Here,
    a: Annotated[Ref, "the version before"],
    b: Annotated[Ref, "the version after"],
    rows: Annotated[bool, "of tables: which rows and columns changed, too; reads the files that differ"] = False,
    key: Annotated[tuple[str, ...], "the columns that tell rows apart; rows are compared as wholes without it"] = (),
) -> VersionDiff:
    """Compare two versions: files added, removed and changed, and of tables the schema, the statistics and the rows.

    Equal folders are not looked into, so the cost is that of what differs.

    Example:
        falaj catalog diff dataset:fraud/tx@v1 dataset:fraud/tx@v2 --rows --key id
    """
    return compare_versions(here, a, b, key if rows or key else None)


@errand
@moves_much
def verify(here: Here, name: Annotated[Ref, "which version; the newest when none is given"]) -> Verified:
    """Read every byte of a version and say whether it is what was published; name each file that is not.

    Of a signed model the signature is checked, too. The exit code is 1 when anything is wrong.

    Example:
        falaj catalog verify dataset:fraud/tx@v3
    """
    from falaj.snapshot.verify import verify as find_faults

    opened, snapshot = open_version(here, name)
    with here.progress.task(f"verifying {opened.ref}", opened.tree.size_bytes) as task:
        found = find_faults(snapshot, advance=task.advance)
        faults = [BrokenFile(printable(text_of(fault.path)), fault.problem, fault.digest) for fault in found]
    signed = False
    if not faults:
        try:
            signed = _check_signature(opened, lambda: hash_entries(snapshot))
        except Corrupt as error:
            faults = [BrokenFile("", error.message)]
    return Verified(opened.ref, not faults, opened.tree.num_files, opened.tree.size_bytes, signed, tuple(faults))


def _check_signature(opened: Opened, files_of: Callable[[], dict[str, str]]) -> bool:
    """True when it is signed and the signature is of these files; Corrupt when it is of others."""
    if opened.ref.kind != "model" or not opened.signature:
        return False
    from falaj.catalog.signing import verify as check

    check(opened.signature, opened.key, files_of(), str(opened.ref))
    return True
