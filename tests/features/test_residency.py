"""Rows of a view, face by face, tried from the wrong place through every verb of the catalog."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.asof.person_sealing import encode_person_keys, generate_person_keys
from falaj.asof.records import FeatureField
from falaj.asof.row_files import RowSchema, group_folder_name, write_rows
from falaj.catalog.publish_sources import PublishSource
from falaj.catalog.publishing import PublishOrder
from falaj.core.errors import Denied
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features.person_keys import SINGLE_FILE, publish_unshared
from tests.people import enroll
from tests.town import Town, refusal

NAME, SALARY = "ana-of-sharjah", 12345678901.75
"""Long enough that no time, number or name made by chance holds them."""

LABELS = {"": "AE-PDPL,confidential,purpose=fraud", "fsalary": "AE-PDPL,secret,purpose=fraud"}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("town"))
    for name, place in (("ines", "IE"), ("nils", "")):
        made.tokens[name] = enroll(made.as_("fatima"), name, ("data-scientist",), jurisdiction=place)
    yield made
    made.close()


@pytest.fixture(scope="module")
def faces(town: Town) -> dict[str, Ref]:
    """Two faces of rows, and a table of keys."""
    schema = RowSchema((FeatureField("customer", "string"),), {"": (), "fsalary": (FeatureField("salary", "float64"),)})
    amal, found = town.as_("amal"), {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_rows([pa.table({"customer": [NAME], "event": [1], "salary": [SALARY]})], schema, folder)
        (folder / "keys").mkdir()
        (folder / "keys" / SINGLE_FILE).write_bytes(encode_person_keys(generate_person_keys([b"a" * 16])))
        for face, words in (*LABELS.items(), ("keys", LABELS["fsalary"])):
            name = Ref("dataset", "fraud", f"spend.rows1{'.' if face else ''}{face}")
            source = folder / ("keys" if face == "keys" else group_folder_name(face))
            found[face] = publish_unshared(amal, PublishOrder(name, PublishSource(source), label=Label.parse(words)))
    return found


BYTES: dict[str, Callable[[Any, Ref, str], Any]] = {
    "open": lambda here, ref, _: here.catalog.open(ref),
    "files": lambda here, ref, _: here.catalog.files(ref),
    "checkout": lambda here, ref, to: here.catalog.checkout(ref, to),
    "cat": lambda here, ref, _: list(here.catalog.cat(ref, SINGLE_FILE)),
    "verify": lambda here, ref, _: here.catalog.verify(ref),
    "diff": lambda here, ref, _: here.catalog.diff(ref, ref),
    "carry": lambda here, ref, _: here.catalog.carry(ref, "a place", "AE"),
    "copy": lambda here, ref, _: here.catalog.copy(ref, to="eu-west"),
}
"""Every way to the bytes of a version."""


@pytest.mark.parametrize("way", BYTES)
@pytest.mark.parametrize("face", ["", "fsalary", "keys"])
def test_nobody_abroad_or_nowhere_gets_bytes(
    town: Town, faces: dict[str, Ref], face: str, way: str, tmp_path: Path
) -> None:
    for who in ("ines", "nils"):
        told = refusal(lambda who=who: BYTES[way](town.as_(who), faces[face], str(tmp_path / who)))
        assert isinstance(told, Denied), way
        assert not (tmp_path / who).exists()


@pytest.mark.parametrize("face", ["", "fsalary", "keys"])
def test_at_home_it_may_be_read_for_its_purpose_and_no_other(town: Town, faces: dict[str, Ref], face: str) -> None:
    assert town.as_("amal").catalog.verify(faces[face]).ok
    for purpose in ("marketing", ""):
        assert isinstance(refusal(lambda p=purpose: town.as_("amal", p).catalog.open(faces[face])), Denied)


@pytest.mark.parametrize("face", ["", "fsalary", "keys"])
def test_no_bytes_come_to_lie_abroad(town: Town, faces: dict[str, Ref], face: str, tmp_path: Path) -> None:
    amal = town.as_("amal")
    assert isinstance(refusal(lambda: amal.catalog.copy(faces[face], to="eu-west")), Denied)
    (tmp_path / "x").write_text("rows")
    name = faces[face].bare
    order = PublishOrder(
        name, PublishSource(tmp_path), label=Label.parse(LABELS.get(face, LABELS["fsalary"])), zone="eu-west"
    )
    assert isinstance(refusal(lambda: publish_unshared(amal, order)), Denied)
    # A name that begins with an open label may not be sent abroad first and labelled afterwards.
    fresh = PublishOrder(
        Ref("dataset", "fraud", f"new{face}"), PublishSource(tmp_path), label=order.label, zone="eu-west"
    )
    assert isinstance(refusal(lambda: publish_unshared(amal, fresh)), Denied)
    assert amal.catalog.show(faces[face]).zones == ("ae-dubai",)


def test_a_ticket_is_of_no_use_to_another(town: Town, faces: dict[str, Ref]) -> None:
    opened = town.as_("amal").catalog.open(faces["fsalary"])
    shard = opened.tree.batches[0].shard
    assert list(town.as_("amal").bytes.get(opened.ticket, shard))
    for who in ("ines", "sara"):
        assert isinstance(refusal(lambda who=who: list(town.as_(who).bytes.get(opened.ticket, shard))), Denied)
    # The ticket of one face does not open another's bytes.
    other = town.as_("amal").catalog.open(faces[""])
    assert isinstance(refusal(lambda: list(town.as_("amal").bytes.get(other.ticket, shard))), Denied)


def test_what_is_shown_of_rows_and_keys_holds_no_value(town: Town, faces: dict[str, Ref]) -> None:
    """`show` and `list` are not about bytes and go everywhere: what they tell must hold nothing of the rows."""
    for face, ref in faces.items():
        shown = town.as_("ines").catalog.show(ref)
        assert shown.table is None, f"statistics of the face {face!r}"
        for value in (NAME, SALARY):
            assert str(value) not in str(shown)


def test_statistics_of_a_set_say_nothing_of_columns_declared_personal(town: Town, tmp_path: Path) -> None:
    table = pa.table({"customer": [NAME, "zoe-of-ajman"], "salary": [SALARY, 98765432109.25]})
    pq.write_table(table, tmp_path / "set.parquet")
    columns = {"customer": "personal", "salary": "sensitive"}
    done = town.as_("amal").catalog.publish(
        "dataset:fraud/set", str(tmp_path), label=LABELS["fsalary"], columns=columns
    )
    shown = str(town.as_("ines").catalog.show(done.ref))
    for value in (NAME, SALARY, "zoe-of-ajman", 98765432109.25):
        assert str(value) not in shown
