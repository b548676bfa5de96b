"""Searches the files of versions (datasets, models, code), of runs and traces, and single blobs.

Files are copied in the clear into a private folder for as long as a helper process reads them, some hundred megabytes
at a time. A file that does not fit there is listed as unread.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from falaj.catalog.version_reader import decode_path
from falaj.core.errors import FalajError
from falaj.core.label import Label
from falaj.privacy.search.data_estate import DataEstate
from falaj.privacy.search.isolated_files import (
    STATE_CLEAR,
    STATE_FOUND,
    STATE_UNREAD,
    FileFinding,
    FilesRequest,
    FileToSearch,
    search_files,
)
from falaj.privacy.search.records import SearchCase, SearchOutcome, SearchStep
from falaj.snapshot.tree_reader import TreeEntry, TreeSnapshot
from falaj.store.records import LedgerRecord

VERSION_KINDS = ("dataset", "model", "code")
RECORD_FILE_KINDS = ("artifact", "blob", "document")
MAX_BATCH_BYTES, MAX_BATCH_FILES = 256 << 20, 400
MAX_REMEMBERED_FILES = 200_000  # findings by digest that are remembered between versions
_VERSIONS_PER_PAGE = 10  # versions between two places at which a search can be resumed
_MIN_FREE_DISK_BYTES = 1 << 30  # disk space that stays free


class SearchUnit(NamedTuple):
    """One file to search, or the reason why a version cannot be read."""

    ref: str
    label: Label | None
    zone: str
    name: str
    key: str
    """The digest of its bytes; empty where it is not known, and for a version that cannot be read."""
    size: int
    chunks: Any
    reason: str
    columns: tuple[str, ...]
    cursor: str
    is_weights: bool = False
    """True where bytes that cannot be read may be weights: then what they were made from answers for them."""
    is_explained: bool = True
    """Of weights: whether it is known what they were made from, and that is searched itself."""


def search_versions(estate: DataEstate, case: SearchCase, kind: str, after: str) -> Iterator[SearchStep]:
    """Search every live version of a kind; the person's features rows are `feature_rows.py`'s."""
    keys = list_subject_keys(estate, case)
    yield from search_units(case, _generate_version_units(estate, case, kind, after, keys))


def search_record_files(estate: DataEstate, case: SearchCase, kind: str, after: str) -> Iterator[SearchStep]:
    """Search files of runs, logged models and traces (`artifact`), and single blobs (`blob`)."""
    yield from search_units(case, _generate_blob_units(estate, case, kind, after))


def list_subject_keys(estate: DataEstate, case: SearchCase) -> tuple[str, ...]:
    """The names of keys that name people, by all entities."""
    definitions = (record.body.get("definition") or {} for record, _ in estate.records(case.ctx, "entity"))
    return tuple(sorted({str(definition["subject"]) for definition in definitions if definition.get("subject")}))


def list_declared_columns(body: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of a version that name people: those named as keys of people, and those declared personal."""
    columns = (body.get("table") or {}).get("columns", ())
    personal_columns = {str(column["name"]) for column in columns if column.get("category") == "personal"}
    return tuple(sorted({*keys, *personal_columns}))


def _generate_version_units(
    estate: DataEstate, case: SearchCase, kind: str, after: str, keys: tuple[str, ...]
) -> Iterator[SearchUnit]:
    streams = {(record.key.project, record.key.name) for record, _ in estate.records(case.ctx, "stream")}
    for record, cursor in estate.records(case.ctx, kind, after, _VERSIONS_PER_PAGE, live="yes"):
        is_model, is_explained = kind == "model", bool(record.body.get("inputs"))
        if case.wants_rows and _is_of_stream(
            record, streams
        ):  # the same rows as of the view, which gives them in words
            continue
        body, label, ref = record.body, record.label, str(record.ref)
        zone = ", ".join(body["zones"])
        columns = list_declared_columns(body, keys)
        try:
            snapshot = estate.snapshot(case.ctx, record)
            for entry in snapshot.entries():
                if entry.kind == "file":
                    name = decode_path(entry.path)
                    chunks = _create_reader(snapshot, entry)
                    yield SearchUnit(
                        ref,
                        label,
                        zone,
                        name,
                        entry.digest,
                        entry.size,
                        chunks,
                        "",
                        columns,
                        cursor,
                        is_model,
                        is_explained,
                    )
        except FalajError as error:
            yield SearchUnit(ref, label, zone, "", "", 0, None, error.message, columns, cursor)


def _is_of_stream(record: LedgerRecord, streams: set[tuple[str, str]]) -> bool:
    """Whether a dataset holds the rows of a view, or their keys: of a face each, named after the stream."""
    project, name = record.key.project, record.key.name
    return (project, name) in streams or (project, name.rpartition(".")[0]) in streams


def _create_reader(snapshot: TreeSnapshot, entry: TreeEntry) -> Any:
    return lambda: snapshot.read(entry)


def _generate_blob_units(estate: DataEstate, case: SearchCase, kind: str, after: str) -> Iterator[SearchUnit]:
    for record, cursor in estate.records(case.ctx, kind, after):
        digest = str(record.terms.get("digest", ""))
        if not digest:
            continue
        zone = _get_record_zone(record)
        name = str(record.body.get("path") or record.key.name)
        ref = f"{record.ref.bare} ({name})" if kind == "artifact" else str(record.ref)
        chunks = _create_blob_reader(estate, case, zone, digest)
        yield SearchUnit(ref, record.label, zone, name, digest, int(record.body["size"]), chunks, "", (), cursor)


def _get_record_zone(record: LedgerRecord) -> str:
    zones = record.body.get("zones")
    return str(zones[0]) if zones else record.zone


def _create_blob_reader(estate: DataEstate, case: SearchCase, zone: str, digest: str) -> Any:
    def _read_blob() -> Iterator[bytes]:
        estate.check_zone(zone)
        return estate.blobs.give(case.ctx, zone, digest)

    return _read_blob


def search_units(case: SearchCase, units: Iterator[SearchUnit]) -> Iterator[SearchStep]:
    """Search files, some hundred megabytes at a time."""
    batch: list[SearchUnit] = []
    size, cursor = 0, ""
    for unit in units:
        if batch and unit.cursor != cursor and (size >= MAX_BATCH_BYTES or len(batch) >= MAX_BATCH_FILES):
            yield _search_batch(case, batch), cursor
            batch, size = [], 0
        elif size >= MAX_BATCH_BYTES or len(batch) >= MAX_BATCH_FILES:
            yield _search_batch(case, batch), "+"  # in the middle of a page: the search cannot be resumed here
            batch, size = [], 0
        batch.append(unit)
        size, cursor = size + unit.size, unit.cursor
    yield _search_batch(case, batch), ""


def _search_batch(case: SearchCase, units: list[SearchUnit]) -> tuple[SearchOutcome, ...]:
    findings: dict[int, FileFinding] = {}
    with tempfile.TemporaryDirectory(prefix="falaj-search-") as scratch_folder:
        files_to_search: dict[int, FileToSearch] = {}
        for number, unit in enumerate(units):
            remembered = case.seen.get((unit.key, unit.columns)) if unit.key and not case.wants_rows else None
            if unit.reason:
                findings[number] = FileFinding(STATE_UNREAD, unit.reason)
            elif remembered is not None:
                findings[number] = remembered
            elif reason := _write_file(unit, Path(scratch_folder) / str(number)):
                findings[number] = FileFinding(STATE_UNREAD, reason)
            else:
                files_to_search[number] = FileToSearch(str(Path(scratch_folder) / str(number)), unit.name, unit.columns)
        if files_to_search:
            answers = search_files(FilesRequest(case.subject, tuple(files_to_search.values()), case.wants_rows))
            findings |= dict(zip(files_to_search, answers, strict=True))
    outcomes: dict[str, list[SearchOutcome]] = {}
    for number, unit in enumerate(units):
        finding = findings[number]
        if unit.key and not case.wants_rows and len(case.seen) < MAX_REMEMBERED_FILES:
            case.seen[unit.key, unit.columns] = finding
        outcomes.setdefault(unit.ref, []).append(_make_outcome(case, unit, finding))
    return tuple(join_outcomes(unit_outcomes) for unit_outcomes in outcomes.values())


def _write_file(unit: SearchUnit, target: Path) -> str:
    """Write a file into the scratch folder; or the reason why it cannot be searched."""
    if unit.size + _MIN_FREE_DISK_BYTES > shutil.disk_usage(target.parent).free:
        return f"{unit.name}: {unit.size >> 30} GiB do not fit on the disk of the server, where files are searched"
    try:
        with target.open("wb") as file:
            file.writelines(unit.chunks())
    except FalajError as error:
        return error.message
    return ""


def _make_outcome(case: SearchCase, unit: SearchUnit, finding: FileFinding) -> SearchOutcome:
    state, reason = finding.state, finding.reason
    if state == STATE_UNREAD and unit.is_weights and not unit.reason:
        # Weights name nobody by themselves: whether they may hold the person is what lineage says.
        if unit.ref in case.learned:
            reason = "its weights learned from rows of the person, or may have, and cannot be searched"
        elif unit.is_explained:
            state = STATE_CLEAR
        else:
            reason = "it does not say what it was made from, or that is gone, and its weights cannot be searched"
    reason = f"{unit.name}: {reason}" if unit.name and reason and state != STATE_CLEAR else reason
    return SearchOutcome(
        unit.ref, state, reason if state != STATE_CLEAR else "", finding.rows, unit.label, unit.zone, finding.is_cut
    )


def join_outcomes(outcomes: list[SearchOutcome]) -> SearchOutcome:
    """What several files of one version hold, as one outcome: the weightiest state, and all rows."""
    state_order = (STATE_FOUND, STATE_UNREAD, STATE_CLEAR)
    weightiest = min(outcomes, key=lambda outcome: state_order.index(outcome.state))
    rows = tuple(row for outcome in outcomes for row in outcome.rows)
    other_count = sum(outcome.state == weightiest.state for outcome in outcomes) - 1
    reason = (
        f"{weightiest.reason} (and {other_count} more files)"
        if other_count and weightiest.state != STATE_CLEAR
        else weightiest.reason
    )
    is_cut = any(outcome.is_cut for outcome in outcomes)
    return SearchOutcome(weightiest.ref, weightiest.state, reason, rows, weightiest.label, weightiest.zone, is_cut)
