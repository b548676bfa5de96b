"""Sealed segments: every type there and back to the byte, people gone in every face alike, hostile files refused."""

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.arrow_columns import to_arrow_type
from falaj.asof.entity_keys import encode_key
from falaj.asof.person_sealing import PSEUDONYM_BYTES, PersonKeys, generate_person_keys, make_associated_data
from falaj.asof.records import FeatureField
from falaj.asof.row_files import (
    RowSchema,
    group_folder_name,
    list_partition_segments,
    open_partition_segment,
    to_row_table,
    write_rows,
)
from falaj.asof.sealed_segments import list_people, seal_segment, unseal_segment
from falaj.asof.segment import FileFetcher, Segment
from falaj.core.errors import CorruptData, FalajError, Invalid

FACES = {
    "": (
        FeatureField("amount", "float64"),
        FeatureField("city", "string"),
        FeatureField("flags", "list[bool]"),
        FeatureField("n", "int32"),
    ),
    "secret": (
        FeatureField("raw", "bytes"),
        FeatureField("words", "list[string]"),
        FeatureField("ok", "bool"),
        FeatureField("when", "time"),
    ),
}
SCHEMA = RowSchema((FeatureField("shop", "int64"), FeatureField("person", "string")), FACES)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "float64": st.floats(), "string": st.text(max_size=6), "bytes": st.binary(max_size=6), "bool": st.booleans(),
    "int32": st.integers(-(2**31), 2**31 - 1), "time": st.integers(0, 2**40),
}  # fmt: skip


def cell(kind: str) -> st.SearchStrategy[Any]:
    if kind.startswith("list["):
        return st.none() | st.lists(st.none() | VALUES[kind[5:-1]], max_size=3)
    return st.none() | VALUES[kind]


ROW = st.fixed_dictionaries(
    {
        "shop": st.integers(0, 2), "person": st.sampled_from(["", "ana", "bo", "محمد", "cy\0"]),
        "event": st.integers(0, 5), **{one.name: cell(one.type) for one in SCHEMA.columns},
    }
)  # fmt: skip


def as_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    kinds = {one.name: to_arrow_type(one.type) for one in (*SCHEMA.keys, *SCHEMA.columns)} | {"event": pa.int64()}
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})


def aad_of(face: str, name: str) -> bytes:
    return make_associated_data("bank", "ae-dubai", f"dataset:fraud/spend.rows1.{face}", name)


def named(people: Sequence[bytes]) -> list[bytes]:
    return [hashlib.sha256(one).digest()[:PSEUDONYM_BYTES] for one in people]


def seal_all(folder: Path) -> tuple[list[bytes], PersonKeys]:
    """Seal every segment of a folder beside it; gives the people of all runs, and their keys."""
    people = [one for path in _segments(folder) for one in list_people(Segment(FileFetcher(path)), 1)]
    keys = generate_person_keys(named(people))
    for path in _segments(folder):
        main = Segment(FileFetcher(path))
        starts, names = main.ranks().run_starts, named(list_people(main, 1))
        for face in FACES:
            source = folder / group_folder_name(face) / path.name
            seal_segment(
                Segment(FileFetcher(source)),
                starts,
                names,
                keys,
                aad_of(face, path.name),
                source.with_suffix(".sealed"),
            )
    return people, keys


def open_all(folder: Path, keys: PersonKeys, to: Path) -> None:
    for face, fields in FACES.items():
        (to / group_folder_name(face)).mkdir(parents=True)
        for path in (folder / group_folder_name(face)).glob("*.sealed"):
            name = path.with_suffix(".seg").name
            target = to / group_folder_name(face) / name
            unseal_segment(FileFetcher(path), () if face else SCHEMA.keys, fields, keys, aad_of(face, name), target)


def _segments(folder: Path) -> list[Path]:
    return sorted((folder / group_folder_name("")).glob("*.seg"))


def read(folder: Path) -> list[tuple[Any, ...]]:
    found = []
    for part in list_partition_segments(folder, tuple(FACES)):
        rows = open_partition_segment(part, [one.type for one in SCHEMA.keys])
        table = to_row_table(rows, SCHEMA.keys, [one.name for one in SCHEMA.columns])
        found += [tuple(map(repr, row.values())) for row in table.to_pylist()]
    return sorted(found)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=25), st.sets(st.sampled_from(["", "ana", "bo", "محمد", "cy\0"])))
def test_there_and_back_to_the_byte_and_without_those_who_are_gone(rows: list[dict[str, Any]], gone: set[str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "rows"
        folder.mkdir()
        write_rows([as_table(rows)], SCHEMA, folder, partitions=2)
        before = read(folder)
        people, keys = seal_all(folder)
        assert set(people) == {encode_key([row["person"]], ["string"]) for row in rows}
        for path in folder.rglob("*.sealed"):
            data = path.read_bytes()
            assert not any(row["person"].encode() in data for row in rows if len(row["person"]) > 2)
        open_all(folder, keys, Path(scratch) / "all")
        for path in folder.rglob("*.seg"):
            assert (Path(scratch) / "all" / path.relative_to(folder)).read_bytes() == path.read_bytes()
        left = keys.without(named([one.encode() for one in gone]))
        open_all(folder, left, Path(scratch) / "left")
        assert read(Path(scratch) / "left") == [row for row in before if row[1] not in {repr(one) for one in gone}]


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[Path, PersonKeys]:
    rows = [{"shop": 1, "person": who, "event": at} for who in ("ana", "bo", "cy") for at in range(3)]
    table = as_table([{**dict.fromkeys(one.name for one in SCHEMA.columns), "amount": 1.5, **row} for row in rows])
    write_rows([table], SCHEMA, tmp_path, partitions=1)
    _, keys = seal_all(tmp_path)
    return next((tmp_path / group_folder_name("")).glob("*.sealed")), keys


def reopen(path: Path, keys: PersonKeys, **other: Any) -> int:
    name = path.with_suffix(".seg").name
    given = {"key_fields": SCHEMA.keys, "fields": FACES[""], "aad": aad_of("", name), **other}
    return unseal_segment(
        FileFetcher(path), given["key_fields"], given["fields"], keys, given["aad"], path.with_suffix(".out")
    )


def test_altered_files_are_refused(sealed: tuple[Path, PersonKeys]) -> None:
    path, keys = sealed
    assert reopen(path, keys) == 9
    good = path.read_bytes()
    refused = 0
    for at in range(0, len(good), 7):
        torn = bytearray(good)
        torn[at] ^= 0x41
        path.write_bytes(bytes(torn))
        try:
            assert reopen(path, keys) in (6, 9), "a person's name was altered: no key, or padding was"
        except (CorruptData, Invalid):
            refused += 1
    assert refused > 20
    for cut in range(0, len(good), 101):
        path.write_bytes(good[:cut])
        with pytest.raises(FalajError):
            reopen(path, keys)


def test_other_columns_places_or_files_are_refused(sealed: tuple[Path, PersonKeys]) -> None:
    path, keys = sealed
    for other in (
        {"aad": aad_of("", "p0000-of-0001-00000000000000ff.seg")},
        {"fields": FACES["secret"]},
        {"fields": (*FACES[""], FeatureField("more", "string"))},
        {"key_fields": (FeatureField("shop", "int64"),)},
    ):
        with pytest.raises(CorruptData):
            reopen(path, keys, **other)
    with pytest.raises(CorruptData):
        reopen(path.with_suffix(".seg"), keys)
    main = Segment(FileFetcher(path.with_suffix(".seg")))
    with pytest.raises(Invalid):
        seal_segment(main, np.array([0, 9]), named([b"a", b"b"]), keys, b"", path.with_suffix(".x"))


def test_nobody_left_is_no_rows(sealed: tuple[Path, PersonKeys]) -> None:
    path, _ = sealed
    assert reopen(path, generate_person_keys([])) == 0
