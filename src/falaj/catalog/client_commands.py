"""What the catalog's users do with versions beside the platform: check one out, read, compare, verify."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from falaj.catalog.model_cards import hash_entries, hash_files
from falaj.catalog.records import OpenedVersion
from falaj.catalog.version_diff import VersionDiff, compare_versions
from falaj.catalog.version_reader import FileRow, decode_path, encode_path, open_version, to_file_row, to_printable
from falaj.core.byte_stream import ByteStream
from falaj.core.client_command import Client, client_command, moves_bulk_data
from falaj.core.data import dataclass
from falaj.core.errors import CorruptData, Invalid
from falaj.core.ref import Ref


@dataclass(frozen=True, slots=True)
class CheckoutResult:
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
class VerificationResult:
    """What a reading of every byte of a version found."""

    ref: Ref
    ok: bool
    num_files: int
    size_bytes: int
    signed: bool
    faults: tuple[BrokenFile, ...]


@client_command
@moves_bulk_data
def checkout(
    client: Client,
    name: Annotated[Ref, "which version; the newest when none is given"],
    to: Annotated[str, "the folder to write it to: a new or empty one, or one that an earlier checkout made"],
    paths: Annotated[tuple[str, ...], "only these files and folders of it"] = (),
) -> CheckoutResult:
    """Write the files of a version into a folder, byte for byte.

    Every byte is checked on its way, and each file appears whole or not at all. Files that are there and right are
    kept, so a checkout that broke off goes on where it stopped, and going from one version to another moves only what
    differs. Of a signed model the signature is checked before the folder is yours.

    Example:
        falaj catalog checkout dataset:fraud/tx@v3 ./transactions
    """
    from falaj.snapshot.checkout import checkout_tree as check_out

    started_at = time.monotonic()
    opened, snapshot = open_version(client, name)
    folder = Path(to).expanduser()
    is_new_folder = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    wanted_paths = [encode_path(path) for path in paths]
    with client.progress.task(f"checking out {opened.ref}", None if wanted_paths else opened.tree.size_bytes) as task:
        checkout_report = check_out(snapshot, folder, paths=wanted_paths, advance=task.advance)
    try:
        is_signed = not wanted_paths and _check_signature(opened, lambda: hash_files(folder))
    except CorruptData:
        if is_new_folder:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
        raise
    elapsed_s = round(time.monotonic() - started_at, 3)
    return CheckoutResult(
        opened.ref,
        str(folder),
        checkout_report.num_files,
        checkout_report.size_bytes,
        checkout_report.kept,
        is_signed,
        elapsed_s,
    )


@client_command
def cat(
    client: Client,
    name: Annotated[Ref, "which version; the newest when none is given"],
    path: Annotated[str, "which file of it"],
    start: Annotated[int, "the first byte wanted"] = 0,
    stop: Annotated[int | None, "the byte after the last one wanted; to the end when left out"] = None,
) -> ByteStream:
    """Read one file of a version, or a range of it, and nothing else.

    Example:
        falaj catalog cat dataset:fraud/tx@v3 2026/july.csv --stop 4096
    """
    if start < 0 or (stop is not None and stop < start):
        end_text = "the end" if stop is None else stop
        raise Invalid(f"a range from {start} to {end_text}", "ranges count bytes from 0 and end after they begin")
    _, snapshot = open_version(client, name)
    entry = snapshot.entry(encode_path(path))
    if entry.kind != "file":
        raise Invalid(f"{path!r:.300} is a link to {decode_path(entry.target)!r:.300}", "read that file")
    range_end = entry.size if stop is None else min(stop, entry.size)
    return ByteStream(snapshot.read(entry, start, stop), max(range_end - start, 0))


@client_command
def files(
    client: Client,
    name: Annotated[Ref, "which version; the newest when none is given"],
    prefix: Annotated[str, "only those whose path begins so, for example 2026/"] = "",
) -> tuple[FileRow, ...]:
    """List the files of a version by path, with their sizes and digests.

    Example:
        falaj catalog files dataset:fraud/tx@v3 --prefix 2026/
    """
    _, snapshot = open_version(client, name)
    return tuple(to_file_row(entry) for entry in snapshot.entries(encode_path(prefix)))


@client_command
def diff(
    client: Client,
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
    return compare_versions(client, a, b, key if rows or key else None)


@client_command
@moves_bulk_data
def verify(client: Client, name: Annotated[Ref, "which version; the newest when none is given"]) -> VerificationResult:
    """Read every byte of a version and say whether it is what was published; name each file that is not.

    Of a signed model the signature is checked, too. The exit code is 1 when anything is wrong.

    Example:
        falaj catalog verify dataset:fraud/tx@v3
    """
    from falaj.snapshot.verify import verify_tree as find_faults

    opened, snapshot = open_version(client, name)
    with client.progress.task(f"verifying {opened.ref}", opened.tree.size_bytes) as task:
        file_faults = find_faults(snapshot, advance=task.advance)
        faults = [
            BrokenFile(to_printable(decode_path(file_fault.path)), file_fault.problem, file_fault.digest)
            for file_fault in file_faults
        ]
    is_signed = False
    if not faults:
        try:
            is_signed = _check_signature(opened, lambda: hash_entries(snapshot))
        except CorruptData as error:
            faults = [BrokenFile("", error.message)]
    return VerificationResult(
        opened.ref, not faults, opened.tree.num_files, opened.tree.size_bytes, is_signed, tuple(faults)
    )


def _check_signature(opened: OpenedVersion, hash_files_of: Callable[[], dict[str, str]]) -> bool:
    """True when it is signed and the signature is of these files; Corrupt when it is of others."""
    if opened.ref.kind != "model" or not opened.signature:
        return False
    from falaj.catalog.model_signing import verify_signature as check

    check(opened.signature, opened.key, hash_files_of(), str(opened.ref))
    return True
