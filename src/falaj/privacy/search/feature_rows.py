"""Searches the rows of feature views: at rest (sealed ones opened while they are read), pushed, online, and samples."""

import base64
import json
from collections.abc import Iterator
from typing import Any

from falaj.asof.rows import rows_of
from falaj.asof.sources import open_part
from falaj.core.errors import FalajError, NotFound
from falaj.core.ref import Ref
from falaj.features.chapters import open_chapter
from falaj.features.persons import lock_of, names_of, read_keys
from falaj.features.rewriting import person_of
from falaj.features.stream import Arrival, dataset_of, schema_of
from falaj.features.tail import Rows, Tail
from falaj.privacy.search.arrow_rows import find_rows
from falaj.privacy.search.estate import Estate, EstateClient
from falaj.privacy.search.isolated_files import CLEAR, FOUND, MAX_ROWS, UNREAD
from falaj.privacy.search.records import SearchCase, SearchOutcome, SearchStep

_BATCH = 16_384


def search_views(estate: Estate, case: SearchCase, after: str) -> Iterator[SearchStep]:
    """Search every stream of rows, once however many versions of a view share it."""
    searched: set[Ref] = set()
    for record, _ in estate.records(case.ctx, "view", after):
        if not record.key.version:  # the name of all its versions
            continue
        client = EstateClient(estate, case.ctx)
        try:
            arrival: Arrival = client.features.about(record.ref)
            rows = dataset_of(arrival.stream)
            if rows in searched:
                continue
            searched.add(rows)
            outcome = _search_view(estate, client, case, arrival)
        except FalajError as error:
            outcome = SearchOutcome(str(record.ref), UNREAD, error.message, (), record.label, record.zone)
        yield (outcome,), "+"
    yield (), ""


def search_samples(estate: Estate, case: SearchCase, kind: str, after: str) -> Iterator[SearchStep]:
    """Search the samples of reads that are kept to compare what is served with history."""
    features = estate.service("features")
    for record, _ in estate.records(case.ctx, kind, after):
        if not record.key.version:
            continue
        outcome = SearchOutcome(f"samples of {record.ref}", CLEAR, "", (), record.label, record.zone)
        try:
            texts = (base64.b64decode(text) for _, text in features.samples(case.ctx, record.ref))
            if any(names_in_bytes(case, data) for data in texts):
                reason = "a sample of reads names the person"
                outcome = SearchOutcome(outcome.ref, FOUND, reason, (), record.label, record.zone)
        except FalajError as error:
            outcome = SearchOutcome(outcome.ref, UNREAD, error.message, (), record.label, record.zone)
        yield (outcome,), "+"
    yield (), ""


def names_in_bytes(case: SearchCase, data: bytes) -> bool:
    """Whether packed data holds the identifier as text, or as a whole number of 64 bits."""
    if case.pattern.is_distinctive and case.pattern.find_in_bytes(data) >= 0:
        return True
    number = case.pattern.number
    if number is None or number < 1 << 16:  # a small number occurs in packed data by chance
        return False
    return number.to_bytes(8, "little") in data or number.to_bytes(8, "big") in data


def _search_view(estate: Estate, client: Any, case: SearchCase, arrival: Arrival) -> SearchOutcome:
    label = arrival.labels.get("")
    rows: list[dict[str, Any]] = []
    where = ""
    for place, row in _matches(estate, client, case, arrival):
        where = where or place
        rows.append(row)
        if not case.wants_rows or len(rows) > MAX_ROWS:
            break
    state = FOUND if where else CLEAR
    cut = len(rows) > MAX_ROWS
    return SearchOutcome(str(arrival.view), state, where, tuple(rows[:MAX_ROWS]), label, arrival.zone, cut)


def _matches(estate: Estate, client: Any, case: SearchCase, arrival: Arrival) -> Iterator[tuple[str, dict[str, Any]]]:
    schema = schema_of(arrival.definition, arrival.entity)
    names = (arrival.entity.subject,) if arrival.entity.subject else ()
    for chapter in arrival.stream.chapters:
        with open_chapter(client, chapter, tuple(schema.faces), arrival) as parts:
            for part in parts:
                opened = open_part(part, [key.type for key in schema.keys])
                table = rows_of(opened, schema.keys, [column.name for column in schema.columns])
                for batch in table.to_batches(max_chunksize=_BATCH):
                    yield from find_rows(batch, case.pattern, names)
    tail = Tail(estate.series(), estate.ledger)
    for _, pushed in tail.read(case.ctx, arrival.stream, arrival.stream.tail):
        yield from _pushed_matches(case, pushed, names)
    if not names:
        return
    if not case.wants_rows and arrival.stream.keys and _has_key(client, case, arrival):
        yield "the person's key of the sealed rows is still there", {}
    if not case.wants_rows and estate.service("features").count_online(case.ctx, arrival.view, case.subject):
        yield "the online store has a row of the person", {}


def _pushed_matches(case: SearchCase, pushed: Rows, names: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    for columns in (pushed.good, pushed.bad):
        count = max((len(values) for values in columns.values()), default=0)
        for number in range(count):
            row = {name: values[number] for name, values in columns.items() if number < len(values)}
            declared = any(case.pattern.is_value(row.get(name)) for name in names)
            if declared or case.pattern.is_in(json.dumps(row, ensure_ascii=False, default=str)):
                yield "pushed rows", row


def _has_key(client: Any, case: SearchCase, arrival: Arrival) -> bool:
    try:
        person = person_of(arrival.entity, case.subject)
    except FalajError:  # keys of another type than this identifier
        return False
    lock = lock_of(client, arrival)
    try:
        keys = read_keys(client, lock)
    except NotFound:
        return False
    name = names_of(lock, [person.bytes])
    return not keys.missing(name)
