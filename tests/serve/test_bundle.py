"""Bundles: signed, deterministic, refused when a byte differs, served without a platform; and what they tell, once."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound
from falaj.drift.profiles import build_profile, encode_profile, hash_profile
from falaj.drift.records import PROFILE_FILE
from falaj.drift.tally import DataTally
from falaj.infer import edge
from falaj.serve import edge_files
from tests.infer import models
from tests.people import enroll
from tests.serve.ground import logged
from tests.serve.laptop import SMALL, Laptop
from tests.town import LABEL, Town, refusal

SCORE = "endpoint:fraud/score"
X = np.random.default_rng(0).random((200, 32)).astype(np.float32)
PROFILE = build_profile(
    {f"x[{at}]": X[:, at] for at in range(32)},
    predictions={"y": models.mlp_of(X)[:, 0]},
    tensors={"x": tuple(f"x[{at}]" for at in range(32)), "y": ("y",)},
)
ROW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 32], "data": [0.5] * 32}]}


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    made = Laptop(tmp_path_factory.mktemp("laptop"))
    folder = models.mlp(made.home / "watched")
    (folder / PROFILE_FILE).write_bytes(encode_profile(PROFILE))
    made.here.serve.deploy(SCORE, made.here.catalog.publish("model:fraud/scorer", str(folder)).ref, sample=1.0, **SMALL)
    yield made
    made.here.close()


@pytest.fixture(scope="module")
def made(laptop: Laptop) -> Any:
    return laptop.here.serve.bundle(SCORE, str(laptop.home / "edge.tar"), revision=1, to="branch 12")


def rewritten(bundle: str, to: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], Any]) -> Path:
    """The same archive with its members changed."""
    with tarfile.open(bundle) as tar:
        members = [(one, tar.extractfile(one).read()) for one in tar]  # type: ignore[union-attr]
    change(members)
    with tarfile.open(to, "w") as tar:
        for entry, data in members:
            entry.size = len(data) if entry.isreg() else 0
            tar.addfile(entry, io.BytesIO(data))
    return to


def test_a_bundle_holds_what_the_manifest_says_and_no_secret(made: Any) -> None:
    with tarfile.open(made.path) as tar:
        names = tar.getnames()
        manifest = json.loads(tar.extractfile("manifest.json").read())  # type: ignore[union-attr]
    assert names[:2] == ["manifest.json", "signature.json"]
    assert names[2:] == sorted(manifest["files"])
    assert {"model/model.onnx", "README.md", "requirements.txt", edge_files.SERVER_FILE} <= set(names)
    assert (manifest["name"], manifest["revision"], str(made.model)) == ("fraud.score", 1, manifest["model"])
    assert made.keys[0].encode() not in Path(made.path).read_bytes()
    assert "onnxruntime==" in next(iter(_texts(made.path, "requirements.txt")))


def test_the_same_revision_gives_the_same_files(laptop: Laptop, made: Any, tmp_path: Path) -> None:
    again = laptop.here.serve.bundle(SCORE, str(tmp_path / "again.tar"), revision=1)
    parts = []
    for path in (made.path, again.path):
        with tarfile.open(path) as tar:
            parts.append({one.name: (one.mtime, one.uid, tar.extractfile(one).read()) for one in tar})  # type: ignore[union-attr]
    differ = {name for name in parts[0] if parts[0][name] != parts[1][name]}
    assert differ == {"manifest.json", "signature.json"}
    assert isinstance(refusal(lambda: laptop.here.serve.bundle(SCORE, again.path, revision=1)), Conflict)


def test_a_bundle_is_proved_offline(made: Any, tmp_path: Path) -> None:
    bundle = edge.open_bundle(Path(made.path), tmp_path, made.signed_by)
    assert bundle.fingerprint == made.signed_by
    assert (Path(bundle.model) / "model.onnx").is_file()
    assert edge.open_bundle(Path(made.path), None).model == ""
    assert (tmp_path / "trusted").read_text() == made.signed_by


def flip(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    at = next(i for i, (one, _) in enumerate(members) if one.name == "model/model.onnx")
    data = bytearray(members[at][1])
    data[-1] ^= 1
    members[at] = members[at][0], bytes(data)


def other_manifest(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members[0] = members[0][0], members[0][1].replace(b'"revision": 1', b'"revision": 2')


def without_server(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members[:] = [one for one in members if one[0].name != edge_files.SERVER_FILE]


def stranger(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members.append((tarfile.TarInfo("model/../../evil"), b"x"))


def twice(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members.append(members[-1])


def link(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    at = next(i for i, (one, _) in enumerate(members) if one.name == "model/model.onnx")
    entry = tarfile.TarInfo("model/model.onnx")
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
    members[at] = entry, b""


def unsigned(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    del members[1]


def garbled(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    members[1] = members[1][0], b'{"key": 7}'


@pytest.mark.parametrize("change", [flip, other_manifest, without_server, stranger, twice, link, unsigned, garbled])
def test_whatever_differs_is_refused(made: Any, tmp_path: Path, change: Any) -> None:
    bad = rewritten(made.path, tmp_path / "bad.tar", change)
    assert isinstance(refusal(lambda: edge.open_bundle(bad, None)), CorruptData)
    folder = tmp_path / "edge"
    folder.mkdir()
    assert isinstance(refusal(lambda: edge.open_bundle(bad, folder)), CorruptData)
    assert not (tmp_path / "evil").exists()


def test_no_archive_and_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\0" * 10_240)
    (tmp_path / "y").write_bytes(b"hello")
    for name in ("x", "y"):
        assert isinstance(refusal(lambda name=name: edge.open_bundle(tmp_path / name, None)), CorruptData)


def test_a_folder_stays_with_the_key_it_began_with(made: Any, tmp_path: Path) -> None:
    (tmp_path / "trusted").write_text("0" * 64)
    told = refusal(lambda: edge.open_bundle(Path(made.path), tmp_path))
    assert isinstance(told, CorruptData)
    assert made.signed_by in str(told)


def test_a_bundle_serves_alone_and_tells_later(laptop: Laptop, made: Any, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONSAFEPATH": "1"}
    words = [sys.executable, made.server, "serve", made.path, "--http", "127.0.0.1:0", "--folder", str(tmp_path / "e")]
    server = subprocess.Popen(
        [*words, "--trust", made.signed_by], stdout=subprocess.PIPE, env=environment, cwd=tmp_path, text=True
    )
    try:
        assert server.stdout is not None
        said = json.loads(server.stdout.readline())
        url = f"http://{said['http']}/v2/models/fraud.score/infer"
        answers = [_call(url, made.keys[0], f"q{number}") for number in range(5)]
        assert {answer["model_version"] for answer in answers} == {"1"}
        with pytest.raises(urllib.error.HTTPError) as refused:
            _call(url, "guess", "q9")
        assert refused.value.code == 401
        refused.value.close()
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=20)
    assert server.returncode == 0
    logs = str(tmp_path / "e" / "logs")
    first = laptop.here.serve.sync(logs)
    assert (first.requests, first.counts) == (5, 1)
    again = laptop.here.serve.sync(logs)
    assert (again.requests, again.counts) == (0, 0)
    lines = laptop.here.serve.logs(SCORE).lines
    assert {line.id for line in lines} == {f"q{number}" for number in range(5)}
    assert lines[0].request["x"] == [[0.5] * 32]
    assert lines[0].response["y"] == [[pytest.approx(answers[0]["outputs"][0]["data"][0])]]
    counted = laptop.here.house.desks["serve"].counts.since("house", laptop.show().ref, 0)["edge"]
    assert (counted.requests, counted.errors, counted.revision) == (5, 0, 1)
    sketched = laptop.here.house.desks["serve"].sketches.read("house", laptop.show().ref)
    assert [DataTally.from_bytes(one.data, PROFILE).rows for one in sketched] == [
        5
    ]  # Once, though it was synced twice.
    assert (sketched[0].revision, sketched[0].profile) == (1, hash_profile(PROFILE))
    done = laptop.here.serve.collect(SCORE, "dataset:fraud/score-log")
    assert laptop.here.catalog.show(done.ref).table.rows == 5


def test_lines_that_are_none_are_refused(laptop: Laptop) -> None:
    count = '{"requests": 1, "errors": 2, "at": 1, "version": 1, "mean_us": 1}'
    times = [
        count.replace('"at": 1', f'"at": {at}').replace('"errors": 2', '"errors": 0') for at in ("1e400", "NaN", "-1")
    ]
    tally = {"at": 5, "until": 6, "version": 1, "life": "ab", "n": 1, "profile": "f" * 64, "tally": ""}
    odd = [{"tally": "RkpUMQ=="}, {"n": 0}, {"life": "../x"}, {"profile": "f"}, {"until": 4}, {"at": None}]
    tallies = [json.dumps({**tally, **change}) for change in ({}, *odd)]
    for lines in ("[]", "{", '{"inputs": []}', '{"requests": 1, "at": 1}', count, *times, *tallies):
        assert isinstance(refusal(lambda lines=lines: laptop.here.serve.absorb(SCORE, "b", lines)), Invalid), lines
    strange = '{"requests":1,"errors":0,"at":1,"version":77,"mean_us":1}'
    assert isinstance(refusal(lambda: laptop.here.serve.absorb(SCORE, "b", strange)), Invalid)
    assert isinstance(refusal(lambda: laptop.here.serve.pack(SCORE, ("short",), "x")), Invalid)


def test_whoever_may_not_carry_it_out_hears_it_before_a_byte_is_written(tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    for name, place in (("ines", "IE"), ("adil", "AE")):
        town.tokens[name] = enroll(town.as_("fatima"), name, ("ml-engineer",), jurisdiction=place)
    town.as_("admin").clusters.change("local", {"tenants": "bank"})
    mona = town.as_("mona")
    ref = mona.catalog.publish("model:fraud/scorer", str(models.mlp(tmp_path / "mlp")), label=LABEL).ref
    mona.serve.add(SCORE, ref)
    for who in ("ines", "omar", "sara"):
        told = refusal(lambda who=who: town.as_(who).serve.bundle(SCORE, str(tmp_path / f"{who}.tar"), revision=1))
        assert isinstance(told, Denied) or who == "sara"
        assert not (tmp_path / f"{who}.tar").exists()
    assert town.as_("adil").serve.bundle(SCORE, str(tmp_path / "ok.tar"), revision=1).revision == 1
    assert [event.body["to"] for event in town.events(verb="serve.pack")] == ["ok.tar"]
    _read_at_home_only(town)
    town.close()


def _read_at_home_only(town: Town) -> None:
    """What was kept of requests is under the label of the endpoint, also as a dataset."""
    house = town.house
    (route,) = house.desks["serve"].routes(house.system()).values()
    house.desks["serve"].journal.append(route, [logged(house.system().now(), "q1", "c1")])
    assert [line.id for line in town.as_("adil").serve.logs(SCORE).lines] == ["q1"]
    for who in ("ines", "sara", "omar"):
        for act in (lambda here: here.serve.logs(SCORE), lambda here: here.serve.forget(SCORE, ("c1",))):
            assert isinstance(refusal(lambda act=act, who=who: act(town.as_(who))), (Denied, NotFound))
    assert isinstance(refusal(lambda: town.as_("adil", "marketing").serve.logs(SCORE)), Denied)
    made = town.as_("adil").serve.collect(SCORE, "dataset:fraud/log").ref
    assert "AE-PDPL" in town.as_("adil").catalog.show(made).label.regimes


def _call(url: str, key: str, id_: str) -> Any:
    body = json.dumps({**ROW, "id": id_}).encode()
    asked = urllib.request.Request(url, body, {"Authorization": f"Bearer {key}"})  # noqa: S310
    with urllib.request.urlopen(asked, timeout=20) as answer:  # noqa: S310
        return json.load(answer)


def _texts(path: str, name: str) -> Iterator[str]:
    with tarfile.open(path) as tar:
        yield tar.extractfile(name).read().decode()  # type: ignore[union-attr]
