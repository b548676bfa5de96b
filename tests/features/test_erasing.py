"""Erasing a person in a real house: real segments, real training sets, real lineage, killed at every step.

What is online and what was pushed is tested where the desk takes it out (test_leaving.py, and the story).
"""

import itertools
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.records import FeatureField
from falaj.asof.row_files import open_partition_segment, to_row_table
from falaj.catalog.publish_sources import PublishSource
from falaj.catalog.publishing import PublishOrder, run_publish
from falaj.catalog.records import PublishFacts
from falaj.catalog.version_reader import open_version
from falaj.content.records import TableColumn, TableDescription
from falaj.core.errors import Denied, Invalid, NotFound, StaleRevision
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features.client_commands import define_object
from falaj.features.erasure_report import (
    ErasureReport,
    VersionState,
    find_row_versions_to_remove,
    find_versions_to_remove,
)
from falaj.features.person_erasure import erase
from falaj.features.person_keys import list_live_versions, make_keys_ref
from falaj.features.records import ColumnPick, EntityDef, FeatureDef, ServiceDef, SourceDef, ViewDef
from falaj.features.row_publishing import make_batch, publish_rows
from falaj.features.row_removal import holds_person, parse_person
from falaj.features.row_stream import RowSegment, ViewDetails, make_dataset_ref, make_quarantine_ref, make_row_schema
from falaj.features.segment_access import open_segment
from tests.catalog.shelfhouse import model
from tests.people import approve_refused, with_approval
from tests.town import LABEL, Town, refusal

SECRET = "AE-PDPL,secret,purpose=fraud"
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("town"))
    yield made
    made.close()


class Killed(BaseException):
    """What kill -9 is to the code that runs: nothing after it."""


class Reach:
    """The platform as its caller sees it; `fuse` says after how many acts that change something it is killed."""

    def __init__(self, here: Any, fuse: int = -1) -> None:
        self._here, self.fuse = here, fuse
        self.bytes, self.progress, self.address = here.bytes, here.progress, here.address

    def __getattr__(self, name: str) -> Any:
        room = getattr(self._here, name)
        return _Wired(room, self) if name in ("catalog", "features") else room

    def burn(self) -> None:
        if self.fuse == 0:
            raise Killed
        self.fuse -= 1


class _Wired:
    def __init__(self, room: Any, reach: Reach) -> None:
        self._room, self._reach = room, reach

    def __getattr__(self, name: str) -> Callable[..., Any]:
        act = getattr(self._room, name)
        if name not in ("commit", "delete", "tag", "forget", "replace"):
            return act  # type: ignore[no-any-return]

        def wired(*args: Any, **kwargs: Any) -> Any:
            done = act(*args, **kwargs)
            self._reach.burn()
            return done

        return wired


@dataclass
class Shop:
    """A project with a view of customers in two faces, chapters, training sets and models."""

    here: Any
    project: str
    badr: Any
    """Who approves erasures."""
    keys: tuple[FeatureField, ...] = (FeatureField("customer", "string"),)
    sealed: bool = False
    view: Ref = field(init=False)

    def __post_init__(self) -> None:
        entity = EntityDef(f"{self.project}/customer", self.keys, "customer")
        features = (
            FeatureDef("amount", "float64"),
            FeatureDef("city", "string"),
            FeatureDef("salary", "float64", label=Label.parse(SECRET)),
        )
        source = SourceDef("dataset", f"dataset:{self.project}/tx", event="event")
        view = ViewDef(
            f"{self.project}/spend", entity.name, source, features, label=Label.parse(LABEL), sealed=self.sealed
        )
        define_object(self.here, Ref("entity", self.project, "customer"), entity)
        self.view = define_object(self.here, Ref("view", self.project, "spend"), view)

    @property
    def arrival(self) -> ViewDetails:
        found: ViewDetails = self.here.features.about(self.view)
        return found

    def bring(self, rows: Sequence[tuple[str, int, float]], record: bool = True, **more: Sequence[Any]) -> RowSegment:
        """A chapter of (customer, event, amount)."""
        arrival: ViewDetails = self.here.features.begin(self.view)
        table = pa.table(
            {
                "customer": [one[0] for one in rows], "event": [one[1] for one in rows],
                "created": [one[1] for one in rows], "amount": [one[2] for one in rows],
                "city": [f"city of {one[0]}" for one in rows], "salary": [one[2] * 10 for one in rows], **more,
            }
        )  # fmt: skip
        chapter = publish_rows(self.here, make_batch(self.here, arrival, "ingest"), [table], arrival.seq)
        if record:
            self.here.features.record(self.view, chapter, dict(chapter.faces), arrival.seq)
        return chapter

    def read(self) -> list[tuple[str, int, float, str, float]]:
        """All rows that the stream names, as whoever builds a training set reads them."""
        arrival, found = self.arrival, []
        schema = make_row_schema(arrival.definition, arrival.entity)
        for chapter in arrival.stream.chapters:
            with open_segment(self.here, chapter, tuple(schema.faces), arrival) as parts:
                for part in parts:
                    rows = open_partition_segment(part, [one.type for one in schema.keys])
                    table = to_row_table(rows, schema.keys, ["amount", "city", "salary"])
                    found += [
                        (one["customer"], one["event"], one["amount"], one["city"], one["salary"])
                        for one in table.to_pylist()
                    ]
        return sorted(found)

    def publish_set(self, name: str, people: Sequence[Any], inputs: Mapping[str, Ref], **more: Any) -> Ref:
        """A training set."""
        table = pa.table({more.pop("column", "customer"): people, "y": list(range(len(people)))})
        with tempfile.TemporaryDirectory() as folder:
            pq.write_table(table, Path(folder) / "set.parquet")
            facts = PublishFacts("a set", tags=more.pop("tags", {}))
            source = PublishSource(Path(folder), table=described(table), passing=True)
            return run_publish(
                self.here, PublishOrder(Ref("dataset", self.project, name), source, facts, inputs=inputs)
            ).ref

    def rows_of_set(self, ref: Ref) -> list[dict[str, Any]]:
        _, snapshot = open_version(self.here, ref)
        data = b"".join(snapshot.read(snapshot.entry(b"set.parquet")))
        return pq.read_table(pa.BufferReader(data)).to_pylist()  # type: ignore[no-any-return]

    def erase(self, key: str, **more: Any) -> ErasureReport:
        reach, entity = Reach(self.here, more.pop("fuse", -1)), Ref("entity", self.project, "customer")
        return with_approval(lambda: erase(reach, entity, key, **more), self.here, self.badr)  # type: ignore[no-any-return]

    def approve(self, key: str) -> None:
        """Have the erasure of somebody approved, and do nothing yet."""
        entity = Ref("entity", self.project, "customer")
        approve_refused(refusal(lambda: erase(self.here, entity, key)), self.here, self.badr)


def described(table: pa.Table) -> TableDescription:
    """As a tool that knows its table says it, so that nobody has to read it."""
    return TableDescription(table.num_rows, tuple(TableColumn(name, "varchar") for name in table.column_names))


@pytest.fixture
def shop(town: Town) -> Shop:
    return Shop(town.as_("salem"), f"p{next(_NUMBERS)}", town.as_("badr"))


ROWS = [("ana", 1, 1.0), ("ana", 2, 2.0), ("bo", 1, 3.0), ("cy", 5, 4.0)]


def story(shop: Shop) -> dict[str, Ref]:
    """Two chapters, a stray one, sets of two versions and models of them."""
    one = shop.bring(ROWS)
    two = shop.bring([("ana", 7, 5.0), ("dee", 7, 6.0)])
    shop.bring([("ana", 9, 9.0)], record=False)
    three = shop.bring([("cy", 8, 8.0)])
    rows = {"rows": one.faces[""], "salary": one.faces[next(face for face in one.faces if face)]}
    old = shop.publish_set("train", ["bo", "ana"], rows)
    new = shop.publish_set("train", ["ana", "cy", None, "ana", "bo"], {**rows, "more": two.faces[""]})
    shop.here.catalog.tag(new, "good")
    other = shop.publish_set("others", ["cy", "cy"], {"rows": three.faces[""]})
    aside = make_quarantine_ref(shop.arrival.stream).name
    shop.publish_set(aside, ["ana", "zed"], {})
    shop.publish_set(aside, [7, 8], {})
    names = {name: f"model:{shop.project}/{name}" for name in ("old", "new", "other")}
    return {
        "set": new.bare, "others": other,
        "old": model(shop.here, "old", names["old"], inputs={"train": old}),
        "new": model(shop.here, "new", names["new"], inputs={"train": new}),
        "other": model(shop.here, "other", names["other"], inputs={"train": other}),
    }  # fmt: skip


def live(shop: Shop) -> list[str]:
    """Every version of a dataset that can be read."""
    page = shop.here.catalog.names(kind="dataset", project=shop.project)
    return sorted(str(version.ref) for named in page.names for version in list_live_versions(shop.here, named.ref))


def check_gone(shop: Shop, who: str) -> None:
    person = parse_person(shop.arrival.entity, who)
    for version in list_live_versions(shop.here, make_dataset_ref(shop.arrival.stream)):
        assert not holds_person(shop.here, version.ref, person), version.ref
    for name in ("train", "others", "spend.quarantine"):
        for version in list_live_versions(shop.here, Ref("dataset", shop.project, name)):
            assert who not in [row["customer"] for row in shop.rows_of_set(version.ref)], version.ref


def test_a_person_is_gone_from_rows_sets_and_quarantine_and_others_are_untouched(shop: Shop) -> None:
    made = story(shop)
    before = shop.read()
    plan = shop.erase("ana", dry=True)
    assert shop.read() == before, "a plan did something"
    assert plan.dry
    assert shop.arrival.stream.erased == ()

    done = shop.erase("ana", reason="request 7")
    assert shop.read() == [row for row in before if row[0] != "ana"]
    assert [mark[:32] for mark in shop.arrival.stream.erased] == [done.mark]
    check_gone(shop, "ana")
    newest = shop.here.catalog.show(made["set"])
    assert [row["customer"] for row in shop.rows_of_set(newest.ref)] == ["cy", None, "bo"]
    assert [row["y"] for row in shop.rows_of_set(newest.ref)] == [1, 2, 4], "label rows keep their order"
    assert newest.aliases == ("good",)
    assert {ref.bare for ref in done.removed} == {ref.bare for ref in plan.removed}
    assert set(plan.removed) == set(done.removed)
    assert made["others"] not in done.removed
    assert (done.kept, done.ok) == ((), True)
    assert [(one.ref, one.sure) for one in done.models] == [
        (made["new"], True), (made["old"], True), (made["other"], False)
    ]  # fmt: skip
    assert str(newest.ref) in done.models[0].do
    assert any(f"dataset:{shop.project}/tx" in note for note in done.notes)
    assert "falaj privacy erase" in done.notes[-1]  # requests that were kept are somebody else's duty
    stone = shop.here.catalog.show(done.removed[0])
    assert "request 7" in stone.message
    assert done.mark in stone.message
    assert "ana" not in str(done)
    assert shop.erase("ana", reason="request 7") == done, "the second time says something else"


def test_no_stored_byte_of_what_is_left_was_the_persons(shop: Shop) -> None:
    """Deleted versions do not live on in batches that others share, statistics, or tickets."""
    story(shop)
    done = shop.erase("ana")
    for text in live(shop):
        opened, _ = open_version(shop.here, Ref.parse(text))
        for batch in opened.tree.batches:
            for piece in _pieces(shop, batch.bundle):
                data = b"".join(shop.here.bytes.get(opened.ticket, piece))
                assert b"city of ana" not in data, text
                assert b"city of cy" in data or b"ana" not in data, text
    for ref in done.made:
        table = shop.here.catalog.show(ref).table
        for column in table.columns if table else ():
            if column.name == "customer":
                assert (column.low, column.high, column.category) == ("", "", "personal")


def _pieces(shop: Shop, bundle: str) -> list[str]:
    from falaj.store.blob_store import parse_digest
    from falaj.store.stored_objects import find_stored_object

    house = shop.here.house
    ctx = replace(house.system(), tenant="bank")
    with house.ledger.read(ctx) as tx:
        found = find_stored_object(tx, "bank", "ae-dubai", parse_digest(bundle))
    assert found is not None
    return [f"b3:{part}" for part in found.parts]


STEPS = 24
"""So many times the catalog changes something in this story."""


@pytest.mark.parametrize("step", [pytest.param(i, marks=[pytest.mark.slow] if i % 5 else []) for i in range(STEPS)])
def test_killed_anywhere_it_ends_the_same(town: Town, step: int) -> None:
    shop = Shop(town.as_("salem"), f"p{next(_NUMBERS)}", town.as_("badr"))
    made = story(shop)
    before = shop.read()
    with suppress(Killed):
        shop.erase("ana", fuse=step)
    done = shop.erase("ana")
    assert shop.read() == [row for row in before if row[0] != "ana"]
    check_gone(shop, "ana")
    assert shop.here.catalog.show(made["set"]).aliases == ("good",)
    assert done.ok
    assert [(one.ref, one.sure) for one in done.models] == [
        (made["new"], True), (made["old"], True), (made["other"], False)
    ]  # fmt: skip
    # Two faces of two chapters and a stray, two sets, one quarantine; and what shares stored bytes with one of them.
    assert len(done.removed) >= 2 * 3 + 2 + 1
    assert shop.erase("ana") == done


@pytest.mark.parametrize(("acts", "sealed"), [(2, False), (9, False), (2, True)])
def test_killed_outright_it_goes_on(town: Town, acts: int, sealed: bool) -> None:
    """A process of its own, killed with no chance to tidy up, somewhere after an act."""
    shop = Shop(town.as_("salem"), f"p{next(_NUMBERS)}", town.as_("badr"), sealed=sealed)
    shop.bring(ROWS)
    shop.bring([("ana", 7, 5.0), ("dee", 7, 6.0)])
    before = shop.read()
    shop.approve("ana")
    house = town.house.settings
    command = [sys.executable, "-m", "tests.features.eraser", house.home, house.zone]
    command += [town.tokens["salem"], shop.project, "ana"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(acts):
            assert child.stdout.readline()
        child.kill()
    assert child.returncode == -signal.SIGKILL
    done = shop.erase("ana")
    assert done.ok
    assert shop.read() == [row for row in before if row[0] != "ana"]
    assert shop.erase("ana") == done


@pytest.mark.parametrize("people", [("ana", "bo"), ("ana", "ana")])
def test_two_erasures_at_once_lose_nothing_and_leave_nobody(town: Town, people: tuple[str, str]) -> None:
    shop = Shop(town.as_("salem"), f"p{next(_NUMBERS)}", town.as_("badr"))
    made = story(shop)
    for who in dict.fromkeys(people):
        shop.approve(who)
    before = shop.read()
    with ThreadPoolExecutor(2) as pool:
        assert [done.ok for done in pool.map(shop.erase, people)] == [True, True]
    assert shop.read() == [row for row in before if row[0] not in people]
    for who in people:
        check_gone(shop, who)
    newest = shop.rows_of_set(shop.here.catalog.show(made["set"]).ref)
    assert [row["customer"] for row in newest] == [who for who in ["cy", None, "bo"] if who not in people]


def test_a_hold_is_kept_and_told_and_ends(shop: Shop) -> None:
    made = story(shop)
    old = made["set"].at("v1")
    shop.here.catalog.hold(old, "case 9")
    plan = shop.erase("ana", dry=True)
    done = shop.erase("ana")
    assert [one.ref for one in plan.kept] == [one.ref for one in done.kept] == [old]
    assert "case 9" in done.kept[0].why
    assert not done.ok
    assert [one.ref for one in done.models if one.sure] == [made["new"], made["old"]]
    assert shop.erase("ana") == done
    shop.here.catalog.release(old, "case 9")
    assert shop.erase("ana").ok
    check_gone(shop, "ana")


@pytest.mark.parametrize("sealed", [False, True])
def test_a_hold_on_what_it_was_made_from_keeps_a_version_that_is_older(town: Town, sealed: bool) -> None:
    shop = Shop(town.as_("salem"), f"p{next(_NUMBERS)}", town.as_("badr"), sealed=sealed)
    source = shop.publish_set("source", ["zoe"], {})
    one = shop.bring(ROWS)
    made = shop.publish_set("train", ["ana", "bo"], {"rows": one.faces[""], "more": source})
    assert shop.here.catalog.kept((made, source)) == ()
    shop.here.catalog.hold(source, "case 9")
    plan = shop.erase("ana", dry=True)
    done = shop.erase("ana")
    assert [each.ref for each in plan.kept] == [each.ref for each in done.kept] == [made]
    assert f"made from {source}, which is under legal hold" in plan.kept[0].why == done.kept[0].why
    told = {each.ref: each.why for each in shop.here.catalog.kept((made, source, one.faces[""].bare))}
    assert told == {made: done.kept[0].why, source: f"{source} is under legal hold: case 9"}
    shop.here.catalog.release(source, "case 9")
    assert shop.erase("ana").ok


def test_retention_and_stages_keep_too(shop: Shop) -> None:
    one = shop.bring(ROWS)
    kept = shop.publish_set("train", ["ana"], {"rows": one.faces[""]})
    shop.here.catalog.promote(kept, "staging")
    plan, done = shop.erase("ana", dry=True), shop.erase("ana")
    assert [each.ref for each in plan.kept] == [each.ref for each in done.kept]
    if shop.here.catalog.show(kept).stage == "staging":
        assert [(each.ref, "staging" in each.why) for each in done.kept] == [(kept, True)]


def test_tables_that_cannot_be_searched_are_named(shop: Shop) -> None:
    one = shop.bring(ROWS)
    plain = shop.publish_set("totals", [1, 2], {"rows": one.faces[""]}, column="n")
    spend = ColumnPick(f"{shop.project}/spend", ("amount",), keys={"customer": "payer"})
    service = define_object(
        shop.here, Ref("service", shop.project, "payers"), ServiceDef(f"{shop.project}/payers", (spend,))
    )
    mapped = shop.publish_set("payers", ["ana", "bo"], {"rows": one.faces[""], "service": service}, column="payer")
    done = shop.erase("ana")
    assert [each.ref for each in done.kept] == [plain]
    assert "no column customer" in done.kept[0].why
    assert mapped in done.removed
    assert [row["payer"] for row in shop.rows_of_set(mapped.bare)] == ["bo"]


def test_a_person_who_is_nowhere_changes_nothing(shop: Shop) -> None:
    story(shop)
    before = live(shop)
    done = shop.erase("nobody")
    assert live(shop) == before
    assert (done.removed, done.made, done.kept) == ((), (), ())
    assert [one.sure for one in done.models] == [False, False, False]


def test_all_rows_of_a_chapter_may_be_theirs(shop: Shop) -> None:
    shop.bring([("ana", 1, 1.0)])
    shop.bring([("bo", 1, 1.0)])
    shop.erase("ana")
    assert len(shop.arrival.stream.chapters) == 1
    assert [row[0] for row in shop.read()] == ["bo"]


def test_one_part_of_a_key_can_name_the_person(town: Town) -> None:
    shop = Shop(
        town.as_("salem"),
        f"p{next(_NUMBERS)}",
        town.as_("badr"),
        keys=(FeatureField("shop", "int64"), FeatureField("customer", "string")),
    )
    shop.bring(ROWS, shop=[1, 2, 1, 2])
    done = shop.erase("ana")
    assert sorted({row[0] for row in shop.read()}) == ["bo", "cy"]
    assert done.ok


@pytest.mark.parametrize("sealed", [False, True])
def test_from_the_source_to_the_answer(town: Town, tmp_path: Path, sealed: bool) -> None:
    """The whole way: ingested, pushed, filled, read, a training set; erased; and the source still has the person."""
    shop = Shop(town.as_("salem"), f"p{next(_NUMBERS)}", town.as_("badr"), sealed=sealed)
    features, people = shop.here.features, ["ana", "bo"]
    moments = pa.array([1_000_000, 2_000_000], pa.timestamp("us", "UTC"))
    table = pa.table({"customer": people, "event": moments, "amount": [1.0, 2.0], "city": people, "salary": [3.0, 4.0]})
    pq.write_table(table, tmp_path / "tx.parquet")
    shop.here.catalog.publish(f"dataset:{shop.project}/tx", str(tmp_path), label=LABEL)
    features.materialize(shop.view)
    features.push(shop.view, table.set_column(2, "amount", pa.array([5.0, 6.0])))
    assert features.read(shop.view, {"customer": people}).columns["amount"] == [5.0, 6.0]
    labels = pa.table({"customer": ["bo", "ana", "bo"], "event_timestamp": pa.array([5_000_000] * 3, moments.type)})
    made = features.history(labels, shop.view, name=f"dataset:{shop.project}/train").published
    scorer = model(shop.here, "scorer", f"model:{shop.project}/scorer", inputs={"train": made})

    done = shop.erase("ana")
    assert done.ok
    assert [(one.ref, one.sure) for one in done.models] == [(scorer, True)]
    assert made in done.removed
    answer = features.read(shop.view, {"customer": people})
    assert (answer.columns["amount"], answer.statuses["amount"]) == ([None, 6.0], ["NOT_FOUND", "PRESENT"])
    assert {row[0] for row in shop.read()} == {"bo"}
    again = features.history(labels, shop.view, name=f"dataset:{shop.project}/train").published
    assert [row["amount"] for row in shop.rows_of_set(again)] == [6.0, None, 6.0]

    features.ingest(shop.view, full=True)
    features.push(shop.view, table)
    features.materialize(shop.view)
    assert {row[0] for row in shop.read()} == {"bo"}, "an erased person came back"
    assert features.read(shop.view, {"customer": people}).statuses["amount"][0] == "NOT_FOUND"


def test_a_sealed_view_loses_the_key_and_keeps_its_bytes(town: Town) -> None:
    shop = Shop(town.as_("salem"), f"p{next(_NUMBERS)}", town.as_("badr"), sealed=True)
    one, two = shop.bring(ROWS), shop.bring([("ana", 7, 5.0), ("dee", 7, 6.0)])
    before = shop.read()
    assert len(before) == 6
    shop.here.catalog.hold(one.faces[""], "case 3")
    held = shop.erase("ana")
    keys = make_keys_ref(make_dataset_ref(shop.arrival.stream))
    assert {each.ref.bare for each in held.kept} == {one.faces[""].bare, keys}
    assert shop.read() == [row for row in before if row[0] != "ana"], "only a restricted table has the key"
    tables = {version.ref: version.restricted for version in list_live_versions(shop.here, keys)}
    assert tables.pop(shop.arrival.stream.keys) is False
    assert tables
    assert all(tables.values()), "the key is there for as long as the hold lasts, and nobody may open it"
    shop.here.catalog.release(one.faces[""], "case 3")
    done = shop.erase("ana")
    assert done.ok
    assert shop.read() == [row for row in before if row[0] != "ana"]
    assert {ref.bare for ref in done.removed} == {make_keys_ref(make_dataset_ref(shop.arrival.stream))}
    assert [version.ref for version in list_live_versions(shop.here, done.removed[0].bare)] == [
        shop.arrival.stream.keys
    ]
    for ref in (*one.faces.values(), *two.faces.values()):
        assert shop.here.catalog.verify(ref).ok, "the digests of what is left"
    assert shop.erase("ana") == done
    view, now = shop.arrival.view, shop.arrival.stream.keys
    back = refusal(lambda: shop.here.features.rekey(view, done.removed[0], now))
    assert isinstance(back, StaleRevision), "a table that is deleted came to count"
    shop.bring([("eve", 9, 9.0)])
    assert len(shop.read()) == 4


def test_sealed_rows_can_be_purged_too(town: Town) -> None:
    shop = Shop(town.as_("salem"), f"p{next(_NUMBERS)}", town.as_("badr"), sealed=True)
    one = shop.bring(ROWS)
    shop.bring([("ana", 7, 5.0)])
    before = shop.read()
    done = shop.erase("ana", purge=True)
    assert shop.read() == [row for row in before if row[0] != "ana"]
    assert set(one.faces.values()) <= set(done.removed)
    assert len(shop.arrival.stream.chapters) == 1
    assert done.ok
    assert shop.erase("ana", purge=True) == done


def test_what_whoever_erases_may_not_see_is_counted(town: Town) -> None:
    shop = Shop(town.as_("salem"), f"p{next(_NUMBERS)}", town.as_("badr"))
    shop.bring(ROWS)
    other = f"{shop.project}hidden/loans"
    push = SourceDef("push", event="event")
    view = ViewDef(other, f"{shop.project}/customer", push, (FeatureDef("x", "float64"),), label=Label.parse(LABEL))
    define_object(town.as_("mona"), Ref.parse(f"view:{other}"), view)
    rule = f'principal.roles.contains("data-steward") && resource.project == "{shop.project}hidden"'
    town.as_("fatima").policy.add("hidden", f"forbid (principal, action, resource) when {{ {rule} }};")
    done = shop.erase("ana")
    assert done.views == (shop.view,)
    assert (done.hidden, done.kept, done.ok) == (1, (), False)


def test_bad_requests(shop: Shop) -> None:
    shop.bring(ROWS)
    assert isinstance(refusal(lambda: shop.erase("")), Invalid)
    reach = Reach(shop.here)
    assert isinstance(refusal(lambda: erase(reach, Ref("entity", shop.project, "card"), "1")), NotFound)
    entity = EntityDef("p/card", (FeatureField("a", "int64"), FeatureField("b", "string")))
    assert isinstance(refusal(lambda: parse_person(entity, "1")), Invalid)
    numbered = EntityDef("p/card", (FeatureField("a", "int64"),))
    assert isinstance(refusal(lambda: parse_person(numbered, "x")), Invalid)
    assert parse_person(numbered, "7").value == 7
    assert isinstance(refusal(lambda: parse_person(EntityDef("p/c", (FeatureField("a", "bool"),)), "1")), Invalid)


def test_who_may_not_erase_is_refused(town: Town) -> None:
    shop = Shop(town.as_("amal"), f"p{next(_NUMBERS)}", town.as_("badr"))
    shop.bring(ROWS)
    assert isinstance(refusal(lambda: shop.erase("ana")), Denied)


REFS = [Ref("dataset", "p", "rows", f"v{i}") for i in range(1, 9)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.frozensets(st.sampled_from("abcdef"), max_size=3), st.booleans()), max_size=8))
def test_what_shares_bytes_goes_too_and_nothing_else(found: list[tuple[frozenset[str], bool]]) -> None:
    seen = [VersionState(ref, batches, holds) for ref, (batches, holds) in zip(REFS, found, strict=False)]
    gone = find_versions_to_remove(seen)
    assert {one.ref for one in seen if one.holds} <= gone
    left = [one for one in seen if one.ref not in gone]
    assert not any(a.batches & b.batches for a in left for b in seen if b.ref in gone)
    # Each that goes is tied to one that holds: taking away what holds leaves nothing to go.
    assert find_versions_to_remove([replace(one, holds=False) for one in seen]) == set()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_chapters_go_whole(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 6))
    faces = {face: [Ref("dataset", "p", f"rows{face}", f"v{i + 1}") for i in range(count)] for face in ("", "f")}
    used = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    chapters = [{face: refs[i] for face, refs in faces.items()} for i in range(count) if used[i]]
    seen = {
        face: [
            VersionState(ref, data.draw(st.frozensets(st.sampled_from("abcde"), min_size=1, max_size=2)),
                 face == "" and data.draw(st.booleans()), frozenset({f"p{i}"}))
            for i, ref in enumerate(refs)
        ]
        for face, refs in faces.items()
    }  # fmt: skip
    gone = find_row_versions_to_remove(seen, chapters)
    assert all(set(chapter.values()) <= gone or gone.isdisjoint(chapter.values()) for chapter in chapters)
    for i, one in enumerate(seen[""]):
        assert not one.holds or {one.ref, seen["f"][i].ref} <= gone
    if not any(one.holds for one in seen[""]):
        assert gone == set()
