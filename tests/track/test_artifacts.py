"""Files of runs: paths that stay inside, bytes that stay alive, folders that become models."""

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.server import LocalClient, Server, load_settings
from falaj.store.stored_objects import list_objects_after
from falaj.track.record_views import build_run_terms
from falaj.track.records import Metric
from tests.town import LABEL, Town, refusal

EXPERIMENT = "experiment:fraud/scoring"
_HEAD = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
WEIGHTS = len(_HEAD).to_bytes(8, "little") + _HEAD + b"\0\0\0\0"


def test_a_file_comes_back_whole_and_in_ranges(amal: Any, run: Ref) -> None:
    data = bytes(range(256)) * 20_000
    made = amal.track.attach(run, "model/weights.bin", data)
    assert (made.size_bytes, made.path) == (len(data), "model/weights.bin")
    got = amal.track.fetch(run, "model/weights.bin")
    assert got.size == len(data)
    assert got.read() == data
    assert (
        amal.track.fetch(run, "model/weights.bin", start=1_000_000, stop=1_000_010).read() == data[1_000_000:1_000_010]
    )
    amal.track.attach(run, "empty", b"")
    assert amal.track.fetch(run, "empty").read() == b""


def test_folders_are_listed_level_by_level(amal: Any, run: Ref) -> None:
    for path, data in (
        ("a.txt", b"1"),
        ("d/b.txt", b"22"),
        ("d/e/c.txt", b"333"),
        ("d2", b"4444"),
        ("صورة/م.png", b"5"),
    ):
        amal.track.attach(run, path, data)
    assert [(one.path, one.folder, one.size_bytes) for one in amal.track.artifacts(run)] == [
        ("a.txt", False, 1),
        ("d", True, 5),
        ("d2", False, 4),
        ("صورة", True, 1),
    ]
    assert [(one.path, one.folder) for one in amal.track.artifacts(run, "d")] == [("d/b.txt", False), ("d/e", True)]
    assert [one.path for one in amal.track.artifacts(run, deep=True)] == [
        "a.txt",
        "d/b.txt",
        "d/e/c.txt",
        "d2",
        "صورة/م.png",
    ]
    assert amal.track.artifacts(run, "nothing") == ()
    assert amal.track.artifacts(run, "a.txt") == ()


def test_the_same_path_replaces_and_detach_removes(amal: Any, run: Ref) -> None:
    amal.track.attach(run, "a", b"1")
    amal.track.attach(run, "a", b"2")
    assert amal.track.fetch(run, "a").read() == b"2"
    amal.track.attach(run, "d/x", b"1")
    amal.track.attach(run, "d/y", b"1")
    assert amal.track.detach(run, "d") == 2
    assert amal.track.detach(run, "a") == 1
    assert amal.track.artifacts(run) == ()
    for act in (lambda: amal.track.detach(run, "a"), lambda: amal.track.fetch(run, "a")):
        assert isinstance(refusal(act), NotFound)


@pytest.mark.parametrize("path", ["", "/a", "a/", "../a", "a/../b", ".", "a//b", "a\\b", "a\nb", "a\0", "x" * 1001])
def test_a_path_that_leads_out_is_refused(amal: Any, run: Ref, path: str) -> None:
    with pytest.raises(Invalid):
        amal.track.attach(run, path, b"x")
    with pytest.raises(Invalid):
        amal.track.fetch(run, path)


def test_a_name_is_a_file_or_a_folder(amal: Any, run: Ref) -> None:
    amal.track.attach(run, "a/b", b"x")
    for path in ("a", "a/b/c"):
        assert isinstance(refusal(lambda path=path: amal.track.attach(run, path, b"x")), Conflict)


def test_a_root_key_is_no_file_of_a_run(amal: Any, run: Ref) -> None:
    wrong = refusal(lambda: amal.track.attach(run, "house/keys/falaj.1.key", b"falaj-root-1 plain AAAA"))
    assert isinstance(wrong, Invalid)
    assert f"a file of {run.bare} is a root key of a platform" in str(wrong)
    assert amal.track.artifacts(run) == ()


def test_nobody_else_reads_them(town: Town, amal: Any, run: Ref) -> None:
    amal.track.attach(run, "a", b"secret")
    sara, badr = town.as_("sara"), town.as_("badr")
    assert isinstance(refusal(lambda: sara.track.fetch(run, "a")), NotFound)
    assert isinstance(refusal(lambda: sara.track.artifacts(run)), NotFound)
    assert isinstance(refusal(lambda: badr.track.fetch(run, "a")), Denied)
    assert badr.track.artifacts(run)


def test_their_bytes_are_kept_as_long_as_they_are(town: Town, amal: Any, run: Ref) -> None:
    house = town.house
    amal.track.attach(run, "a", b"kept")
    amal.track.attach(run, "b", b"gone")
    amal.track.detach(run, "b")
    later = replace(house.context(town.actor("ola")), now=lambda: time.time() + 30 * 86_400)
    for days in (30, 60, 90):
        house.storage.collector.collect(replace(later, now=lambda days=days: time.time() + days * 86_400))
    assert amal.track.fetch(run, "a").read() == b"kept"
    with house.ledger.read(house.context(town.actor("amal"))) as tx:
        objects, _ = list_objects_after(tx, "bank")
    assert len(objects) == 1


def test_a_folder_becomes_a_version_of_a_model(town: Town, amal: Any) -> None:
    town.as_("salem").store.put("blob:fraud/tx", b"rows", label=LABEL)
    run = amal.track.start(EXPERIMENT, params={"lr": "0.1"}, inputs={"data": "blob:fraud/tx"}).ref
    amal.track.log(run, metrics=(Metric("auc", 0.9), Metric("odd", float("nan"))))
    for path, data in (("model/MLmodel", b"yaml"), ("model/data/weights", b"w" * 100_000), ("other", b"x")):
        amal.track.attach(run, path, data)
    with town.house.ledger.read(town.house.context(town.actor("amal"))) as tx:
        before = {one.digest for one in list_objects_after(tx, "bank", limit=1000)[0]}
    version = amal.track.register(run, "model", "model:fraud/scorer", message="first", tags={"a": "b"})
    assert str(version) == "model:fraud/scorer@v1"
    shown = amal.catalog.show(version)
    assert (shown.num_files, shown.size_bytes, shown.message) == (2, 100_004, "first")
    assert shown.label.classification == 2
    assert shown.card.metrics == {"auc": 0.9}
    assert shown.card.params == {"lr": "0.1"}
    assert shown.inputs["run"].bare == run
    assert Ref.parse("blob:fraud/tx@v1") in shown.inputs.values()
    with town.house.ledger.read(town.house.context(town.actor("amal"))) as tx:
        new = [one for one in list_objects_after(tx, "bank", limit=1000)[0] if one.digest not in before]
    assert sum(one.size for one in new if not one.bundle) < 10_000, "no byte of a file is copied"
    amal.track.attach(run, "model/MLmodel", b"yaml2")
    assert amal.track.register(run, "model", "model:fraud/scorer").version == "v2"


def test_where_a_version_may_lie_is_asked_of_the_label_it_gets(
    town: Town, amal: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    town.as_("salem").store.put("blob:fraud/tx", b"rows", label=LABEL)
    with closing(Server(load_settings(str(tmp_path), {"zone": "eu-west"}))) as abroad:
        there = LocalClient(abroad, town.actor("amal"), "fraud")
        run = there.track.start(EXPERIMENT).ref
        there.track.attach(run, "model/weights", b"w")
        look = abroad.catalog.look

        def meanwhile(*given: Any) -> Any:
            # `use` itself refuses this; a run that an older release let carry it is still asked about.
            with town.house.ledger.write(town.house.context(town.actor("amal"))) as tx:
                old = tx.need(run)
                tx.put(old.key, old.body, rev=old.rev, label=Label.parse(LABEL), terms=build_run_terms(old.body))
                tx.emit("track.use", old.ref)
            return look(*given)

        monkeypatch.setattr(abroad.catalog, "look", meanwhile)
        error = refusal(lambda: there.track.register(run, "model", "model:fraud/scorer"))
        assert (isinstance(error, Denied), "AE-PDPL" in error.message) == (True, True), error
        assert isinstance(refusal(lambda: amal.catalog.show("model:fraud/scorer")), NotFound)
        assert town.events(verb="guard.deny")[-1].body["action"] == "track.register"


def test_where_a_run_may_carry_the_label_of_its_data_is_asked_of_its_own_zone(
    town: Town, amal: Any, tmp_path: Path
) -> None:
    town.as_("salem").store.put("blob:fraud/tx", b"rows", label=LABEL)
    with closing(Server(load_settings(str(tmp_path), {"zone": "eu-west"}))) as abroad:
        run = LocalClient(abroad, town.actor("amal"), "fraud").track.start(EXPERIMENT).ref
    error = refusal(lambda: amal.track.use(run, inputs=("blob:fraud/tx",)))
    assert (isinstance(error, Denied), "AE-PDPL" in error.message) == (True, True), error
    assert amal.track.show(run).label.classification == 0
    mine = amal.track.start(EXPERIMENT).ref
    assert amal.track.use(mine, inputs=("blob:fraud/tx",)).label.classification == 2


MLMODEL = b"""\
artifact_path: model
flavors:
  python_function:
    loader_module: mlflow.sklearn
    python_version: 3.11.9
signature:
  inputs: '[{"type": "double", "name": "amount", "required": true}, {"type": "string", "name":
    "it''s a country", "required": false}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1]}}]'
  params: null
"""
REQUIREMENTS = b"mlflow==3.17.2\nScikit-Learn[alldeps] == 1.9.1 ; python_version > '3'\nnumpy>=2\n# pandas==1\n-r x\n"


def test_a_registered_model_is_signed_looked_into_and_described(amal: Any, run: Ref, tmp_path: Any) -> None:
    files = {"m/MLmodel": MLMODEL, "m/requirements.txt": REQUIREMENTS, "m/model.safetensors": WEIGHTS, "m/empty": b""}
    for path, data in files.items():
        amal.track.attach(run, path, data)
    version = amal.track.register(run, "m", "model:fraud/scorer")
    card = amal.catalog.show(version).card
    assert (card.format, card.code_bearing) == ("safetensors", False)
    assert [one["name"] for one in card.signature["inputs"]] == ["amount", "it's a country"]
    assert card.signature["outputs"][0]["tensor-spec"]["shape"] == [-1]
    assert card.environment == {"python": "3.11.9", "mlflow": "3.17.2", "scikit-learn": "1.9.1"}
    assert "signature    valid, key " in amal.catalog.provenance(version)
    assert amal.catalog.checkout(str(version), str(tmp_path / "out")).signed
    rows = {row.rule: row.passed for row in amal.catalog.judge(version, "production").evidence}
    assert (rows["signature"], rows["safe format"]) == (True, True)
    assert amal.track.register(run, "m", "model:fraud/scorer") == version, "the same files, and nothing new of them"


@pytest.mark.parametrize(
    "told",
    [
        b"signature: {inputs: '{'}",
        b"signature: [1]\nflavors: 7",
        b"a: &a [x]\nsignature: *a",
        b"a: &a {b: 1}\nsignature: {<<: *a, inputs: *a}",
        b"signature: !!python/object/apply:os.system ['true']",
        b"[" * 50_000,
        b"\xff\xfe",
        b"signature:\n  inputs: '" + b"[" * 100_000 + b"'",
        b"x: " + b"y" * (600 << 10),
    ],
)
def test_what_a_stranger_says_of_a_model_is_read_or_left(amal: Any, run: Ref, told: bytes) -> None:
    for path, data in (("m/MLmodel", told), ("m/requirements.txt", told), ("m/model.safetensors", WEIGHTS)):
        amal.track.attach(run, path, data)
    shown = amal.catalog.show(amal.track.register(run, "m", "model:fraud/scorer"))
    assert (shown.card.signature, shown.card.environment, shown.signed) == ({}, {}, True)


def test_a_hostile_file_is_kept_and_told(amal: Any, run: Ref) -> None:
    amal.track.attach(run, "model.safetensors", b"\xff" * 64)
    version = amal.track.register(run, "", "model:fraud/scorer")
    assert amal.catalog.show(version).card.code_bearing
    assert amal.catalog.judge(version, "staging").state == "refused"


def test_a_registered_model_can_be_read(town: Town, amal: Any, run: Ref, tmp_path: Any) -> None:
    for path, data in (("model/a", b"1" * 5000), ("model/b/c", b"2")):
        amal.track.attach(run, path, data)
    version = amal.track.register(run, "model", "model:fraud/scorer")
    amal.catalog.checkout(str(version), str(tmp_path / "out"))
    assert (tmp_path / "out" / "a").read_bytes() == b"1" * 5000
    assert (tmp_path / "out" / "b" / "c").read_bytes() == b"2"
    one = amal.track.register(run, "model/a", "model:fraud/single")
    assert amal.catalog.show(one).num_files == 1


def test_a_model_keeps_its_bytes_when_the_run_lets_go(town: Town, amal: Any, run: Ref, tmp_path: Any) -> None:
    amal.track.attach(run, "model/a", b"weights")
    version = amal.track.register(run, "model", "model:fraud/scorer")
    amal.track.detach(run, "model")
    for days in (30, 60, 90):
        ctx = replace(town.house.context(town.actor("ola")), now=lambda days=days: time.time() + days * 86_400)
        town.house.storage.collector.collect(ctx)
    amal.catalog.checkout(str(version), str(tmp_path / "out"))
    assert (tmp_path / "out" / "a").read_bytes() == b"weights"


def test_what_cannot_be_registered(town: Town, amal: Any, run: Ref) -> None:
    amal.track.attach(run, "model/a", b"x")
    for path, model in (("model", "dataset:fraud/x"), ("model", "model:fraud/x@v1"), ("../m", "model:fraud/x")):
        assert isinstance(refusal(lambda path=path, model=model: amal.track.register(run, path, model)), Invalid)
    assert isinstance(refusal(lambda: amal.track.register(run, "nothing", "model:fraud/x")), NotFound)
    for person in ("sara", "badr"):
        assert isinstance(
            refusal(lambda person=person: town.as_(person).track.register(run, "model", "model:fraud/x")), FalajError
        )
