"""Searches the rows of feature views: at rest (sealed ones opened while they are read), pushed, online, and samples."""

import base64
import json
from collections.abc import Iterator
from typing import Any

from falaj.asof.row_files import to_row_table
from falaj.asof.row_sources import open_partition_segment
from falaj.core.errors import FalajError, NotFound
from falaj.core.ref import Ref
from falaj.features.person_keys import list_pseudonyms, make_key_access, read_person_keys
from falaj.features.row_removal import parse_person
from falaj.features.row_stream import ViewDetails, make_dataset_ref, make_row_schema
from falaj.features.segment_access import open_segment
from falaj.features.write_buffer import BufferedRows, WriteBuffer
from falaj.privacy.search.arrow_rows import find_rows
from falaj.privacy.search.data_estate import DataEstate, EstateClient
from falaj.privacy.search.isolated_files import MAX_ROWS, STATE_CLEAR, STATE_FOUND, STATE_UNREAD
from falaj.privacy.search.records import SearchCase, SearchOutcome, SearchStep

_BATCH_ROWS = 16_384


def search_views(estate: DataEstate, case: SearchCase, after: str) -> Iterator[SearchStep]:
    """Search every stream of rows, once however many versions of a view share it."""
    searched_datasets: set[Ref] = set()
    for record, _ in estate.records(case.ctx, "view", after):
        if not record.key.version:  # the name of all its versions
            continue
        client = EstateClient(estate, case.ctx)
        try:
            arrival: ViewDetails = client.features.about(record.ref)
            rows_dataset = make_dataset_ref(arrival.stream)
            if rows_dataset in searched_datasets:
                continue
            searched_datasets.add(rows_dataset)
            outcome = _search_view(estate, client, case, arrival)
        except FalajError as error:
            outcome = SearchOutcome(str(record.ref), STATE_UNREAD, error.message, (), record.label, record.zone)
        yield (outcome,), "+"
    yield (), ""


def search_samples(estate: DataEstate, case: SearchCase, kind: str, after: str) -> Iterator[SearchStep]:
    """Search the samples of reads that are kept to compare what is served with history."""
    features = estate.service("features")
    for record, _ in estate.records(case.ctx, kind, after):
        if not record.key.version:
            continue
        outcome = SearchOutcome(f"samples of {record.ref}", STATE_CLEAR, "", (), record.label, record.zone)
        try:
            texts = (base64.b64decode(text) for _, text in features.samples(case.ctx, record.ref))
            if any(occurs_in_bytes(case, data) for data in texts):
                reason = "a sample of reads names the person"
                outcome = SearchOutcome(outcome.ref, STATE_FOUND, reason, (), record.label, record.zone)
        except FalajError as error:
            outcome = SearchOutcome(outcome.ref, STATE_UNREAD, error.message, (), record.label, record.zone)
        yield (outcome,), "+"
    yield (), ""


def occurs_in_bytes(case: SearchCase, data: bytes) -> bool:
    """Whether packed data holds the identifier as text, or as a whole number of 64 bits."""
    if case.pattern.is_distinctive and case.pattern.find_in_bytes(data) >= 0:
        return True
    number = case.pattern.number
    if number is None or number < 1 << 16:  # a small number occurs in packed data by chance
        return False
    return number.to_bytes(8, "little") in data or number.to_bytes(8, "big") in data


def _search_view(estate: DataEstate, client: Any, case: SearchCase, arrival: ViewDetails) -> SearchOutcome:
    label = arrival.labels.get("")
    rows: list[dict[str, Any]] = []
    match_place = ""
    for row_place, row in _find_matches(estate, client, case, arrival):
        match_place = match_place or row_place
        rows.append(row)
        if not case.wants_rows or len(rows) > MAX_ROWS:
            break
    state = STATE_FOUND if match_place else STATE_CLEAR
    is_cut = len(rows) > MAX_ROWS
    return SearchOutcome(str(arrival.view), state, match_place, tuple(rows[:MAX_ROWS]), label, arrival.zone, is_cut)


def _find_matches(
    estate: DataEstate, client: Any, case: SearchCase, arrival: ViewDetails
) -> Iterator[tuple[str, dict[str, Any]]]:
    schema = make_row_schema(arrival.definition, arrival.entity)
    subject_columns = (arrival.entity.subject,) if arrival.entity.subject else ()
    for segment in arrival.stream.chapters:
        with open_segment(client, segment, tuple(schema.faces), arrival) as open_parts:
            for open_chunk in open_parts:
                opened_rows = open_partition_segment(open_chunk, [key.type for key in schema.keys])
                table = to_row_table(opened_rows, schema.keys, [column.name for column in schema.columns])
                for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
                    yield from find_rows(batch, case.pattern, subject_columns)
    write_buffer = WriteBuffer(estate.series(), estate.ledger)
    for _, pushed_rows in write_buffer.read(case.ctx, arrival.stream, arrival.stream.tail):
        yield from _find_pushed_matches(case, pushed_rows, subject_columns)
    if not subject_columns:
        return
    if not case.wants_rows and arrival.stream.keys and _has_key(client, case, arrival):
        yield "the person's key of the sealed rows is still there", {}
    if not case.wants_rows and estate.service("features").count_online(case.ctx, arrival.view, case.subject):
        yield "the online store has a row of the person", {}


def _find_pushed_matches(
    case: SearchCase, pushed_rows: BufferedRows, names: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for columns in (pushed_rows.good, pushed_rows.bad):
        count = max((len(values) for values in columns.values()), default=0)
        for number in range(count):
            row = {name: values[number] for name, values in columns.items() if number < len(values)}
            is_declared = any(case.pattern.is_value(row.get(name)) for name in names)
            if is_declared or case.pattern.is_in(json.dumps(row, ensure_ascii=False, default=str)):
                yield "pushed rows", row


def _has_key(client: Any, case: SearchCase, arrival: ViewDetails) -> bool:
    try:
        person = parse_person(arrival.entity, case.subject)
    except FalajError:  # keys of another type than this identifier
        return False
    view_lock = make_key_access(client, arrival)
    try:
        keys = read_person_keys(client, view_lock)
    except NotFound:
        return False
    key_names = list_pseudonyms(view_lock, [person.bytes])
    return not keys.missing(key_names)
