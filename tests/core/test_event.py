"""Events: pinned, plain, and the same bytes for ever."""

import contextlib
import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, Invalid
from falaj.core.event import Event, generate_id
from falaj.core.ref import Ref

THING = Ref("dataset", "fraud", "t", "v1")
EVENT = Event("publish", "amal", THING, "bank", "home", 1_800_000_000.25, (THING.at("r7"),), "req", {"n": 1, "x": 0.5})
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.one_of(TEXTS, st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))
EVENTS = st.builds(
    Event,
    verb=TEXTS,
    actor=TEXTS,
    subject=st.just(THING),
    tenant=TEXTS,
    zone=TEXTS,
    at=st.integers(0, 4_000_000_000_000_000).map(lambda us: us / 1_000_000),
    inputs=st.lists(st.sampled_from([THING, THING.at("r2")]), max_size=2).map(tuple),
    request=TEXTS,
    body=st.dictionaries(TEXTS, VALUES, max_size=3),
    behalf=TEXTS,
    policy=TEXTS,
    rules=st.lists(TEXTS, max_size=2).map(tuple),
    sealed=TEXTS,
)  # fmt: skip


@given(EVENTS)
def test_what_is_read_back_gives_the_same_bytes(event: Event) -> None:
    data = event.encode()
    again = Event.decode(data)
    assert again.encode() == data
    assert replace(again, at=event.at) == event
    assert abs(again.at - event.at) < 2e-6


def test_the_bytes_are_one_line_of_json_with_keys_in_order() -> None:
    data = EVENT.encode()
    raw = json.loads(data)
    assert b"\n" not in data
    assert list(raw) == sorted(raw)
    assert raw["subject"] == "dataset:fraud/t@v1"
    assert raw["at"] == 1_800_000_000_250_000
    assert len(raw) == 14


@pytest.mark.parametrize(
    "change",
    [
        {"subject": THING.bare},
        {"subject": THING.at("latest")},
        {"inputs": (THING.at("champion"),)},
        {"body": {"x": None}},
        {"body": {"x": ["a"]}},
        {"body": {"x": {}}},
    ],
)
def test_nothing_floating_and_nothing_nested_enters_the_log(change: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        replace(EVENT, **change)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_none_has_no_bytes(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace(EVENT, body={"x": number}).encode()


def test_an_event_has_an_id_of_its_own() -> None:
    assert replace(EVENT, id="").id != replace(EVENT, id="").id
    assert replace(EVENT, id="given").id == "given"


@given(
    st.sampled_from(sorted(json.loads(EVENT.encode()))),
    st.one_of(st.none(), st.integers(), st.lists(st.integers(), max_size=1)),
)
def test_a_line_with_a_field_of_the_wrong_kind_never_raises_anything_else(field: str, value: object) -> None:
    raw = {**json.loads(EVENT.encode()), field: value}
    with contextlib.suppress(CorruptData):
        assert Event.decode(json.dumps(raw).encode()).encode()


@given(st.binary(max_size=40))
def test_bytes_that_are_no_event(data: bytes) -> None:
    with pytest.raises(CorruptData):
        Event.decode(data)


@pytest.mark.parametrize("change", ["drop", "add", "float"])
def test_a_line_that_was_altered_is_corrupt(change: str) -> None:
    raw = json.loads(EVENT.encode())
    if change == "drop":
        del raw["actor"]
    elif change == "add":
        raw["colour"] = "red"
    else:
        raw["subject"] = "dataset:fraud/t@latest"
    with pytest.raises(CorruptData):
        Event.decode(json.dumps(raw).encode())


def test_ids_are_unique_long_and_sort_by_birth() -> None:
    ids = [generate_id() for _ in range(2000)]
    assert len(set(ids)) == 2000
    assert {len(text) for text in ids} == {32}
    assert [text[:12] for text in ids] == sorted(text[:12] for text in ids)


def test_a_forked_child_makes_other_ids() -> None:
    generate_id()
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writable, generate_id().encode())
        os._exit(0)
    os.close(writable)
    told = os.read(readable, 64).decode()
    os.waitpid(child, 0)
    os.close(readable)
    assert told[12:] not in {generate_id()[12:] for _ in range(600)}
