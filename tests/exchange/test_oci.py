"""A real registry: versions go in and come out byte for byte, for us and for ORAS; and what hostile ones try."""

import base64
import contextlib
import gzip
import hashlib
import http.server
import io
import ipaddress
import json
import os
import re
import socket
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from falaj.core.errors import CorruptData, Denied, FalajError, Invalid, NotFound, Unauthenticated, Unavailable
from falaj.exchange import oci_registry as registry_module
from falaj.exchange.oci import (
    ARTIFACT_TYPE,
    ORAS_UNPACK_ANNOTATION,
    SIGNATURE,
    TAR_MEDIA_TYPE,
    TITLE_ANNOTATION,
    UNPACK_ANNOTATION,
    ArtifactReceiver,
)
from falaj.exchange.oci_registry import MANIFEST_TYPE, PASSWORD_VARIABLE, RegistryClient, RegistryLocation
from tests.servers import peers
from tests.servers.process import Missing
from tests.servers.registry import PASSWORD as SECRET
from tests.servers.registry import USER, RegistryServer
from tests.town import LABEL, Town, refusal

ORAS = ("oras==0.2.39",)
Names = Callable[[], str]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALAJ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    town = Town(tmp_path_factory.mktemp("town"))
    yield town
    town.close()


@pytest.fixture
def place(oci_registry: RegistryServer, request: pytest.FixtureRequest) -> str:
    """A repository of this test's own."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:100]
    return f"{oci_registry.host}/tests/{name}"


def folder_of(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != ".falaj"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def manifest_of(place: str, tag: str = "v1") -> dict[str, Any]:
    host, _, repository = place.partition("/")
    answer = httpx.get(f"http://{host}/v2/{repository}/manifests/{tag}", headers={"Accept": MANIFEST_TYPE})
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def put_blob(place: str, data: bytes) -> dict[str, Any]:
    host, _, repository = place.partition("/")
    begun = httpx.post(f"http://{host}/v2/{repository}/blobs/uploads/")
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    where = httpx.URL(begun.headers["Location"]).copy_merge_params({"digest": digest})
    httpx.put(where, content=data).raise_for_status()
    return {"mediaType": "application/octet-stream", "digest": digest, "size": len(data)}


def put_artefact(place: str, layers: list[dict[str, Any]], config: bytes = b"{}", media: str = "x/y") -> None:
    """What a stranger pushes, in his own words."""
    host, _, repository = place.partition("/")
    manifest = {
        "schemaVersion": 2, "mediaType": MANIFEST_TYPE,
        "config": {**put_blob(place, config), "mediaType": media}, "layers": layers,
    }  # fmt: skip
    url = f"http://{host}/v2/{repository}/manifests/latest"
    httpx.put(url, content=json.dumps(manifest), headers={"Content-Type": MANIFEST_TYPE}).raise_for_status()


FILES = {"model.onnx": b"\x08\x07" + bytes(200), "deep/er/a b.txt": b"words", "\u0645\u0627\u0621": b"x", "empty": b""}


def test_a_version_goes_in_and_comes_out_elsewhere(
    town: Town, oci_registry: RegistryServer, place: str, tmp_path: Path
) -> None:
    amal = town.as_("amal")
    source = folder_of(tmp_path / "source", FILES)
    (source / "model.onnx").chmod(0o755)
    ref = amal.catalog.publish("dataset:fraud/oci", str(source), label=LABEL, message="first").ref
    done = amal.catalog.push(ref, place, country="AE")
    assert (done.place, done.num_files, done.moved_bytes > 200) == (f"{place}:v1", 4, True)
    host, _, repository = place.partition("/")
    assert httpx.get(f"http://{host}/v2/{repository}/tags/list").json()["tags"] == ["v1"]
    manifest = manifest_of(place)
    assert (manifest["mediaType"], manifest["artifactType"]) == (MANIFEST_TYPE, ARTIFACT_TYPE)
    assert {layer["annotations"][TITLE_ANNOTATION] for layer in manifest["layers"]} == set(FILES)
    assert manifest["config"]["mediaType"] == ARTIFACT_TYPE
    posts = oci_registry.requests("POST")
    again = amal.catalog.push(ref, place, country="AE")
    assert (again.moved_bytes, again.digest, oci_registry.requests("POST")) == (0, done.digest, posts)
    other = Town(tmp_path / "other")
    try:
        sara = other.as_("amal")
        back = sara.catalog.pull("dataset:fraud/in", f"{place}:v1")
        assert (back.num_files, back.digest, back.signature) == (4, done.digest, "none")
        sara.catalog.checkout(back.ref, str(tmp_path / "out"))
        version = sara.catalog.show(back.ref)
    finally:
        other.close()
    assert files_of(tmp_path / "out") == FILES
    assert (tmp_path / "out/model.onnx").stat().st_mode & 0o100
    first = amal.catalog.show(ref)
    assert (version.root, version.label, version.message) == (first.root, first.label, "first")
    assert version.tags["oci.digest"] == done.digest
    assert sara.catalog.pull.__doc__


def test_by_digest_and_by_a_tag_that_is_not_there(town: Town, place: str, tmp_path: Path) -> None:
    amal = town.as_("amal")
    ref = amal.catalog.publish("dataset:fraud/digest", str(folder_of(tmp_path / "s", FILES)), label=LABEL).ref
    done = amal.catalog.push(ref, f"{place}:mine", country="AE")
    repository = done.place.removesuffix(":mine")
    assert amal.catalog.pull("dataset:fraud/digest2", f"{repository}@{done.digest}").num_files == 4
    assert isinstance(refusal(lambda: amal.catalog.pull("dataset:fraud/x", f"{repository}:none")), NotFound)
    assert isinstance(
        refusal(lambda: amal.catalog.pull("dataset:fraud/x", f"{repository}@sha256:{'0' * 64}")), NotFound
    )


def test_many_files_are_one_tar_and_the_same_each_time(town: Town, place: str, tmp_path: Path) -> None:
    amal = town.as_("amal")
    files = {f"{number % 7}/{number:04}.txt": b"%d" % number for number in range(150)}
    source = folder_of(tmp_path / "s", files)
    Path(os.fsdecode(os.fsencode(source) + b"/not utf \xff")).write_bytes(b"odd")
    (source / ("long" * 30)).mkdir()
    (source / ("long" * 30) / ("name" * 30)).write_bytes(b"long")
    ref = amal.catalog.publish("dataset:fraud/many", str(source), label=LABEL).ref
    done = amal.catalog.push(ref, place, country="AE")
    (layer,) = manifest_of(place)["layers"]
    assert (layer["mediaType"], layer["annotations"]) == (
        TAR_MEDIA_TYPE,
        {TITLE_ANNOTATION: "many.tar", UNPACK_ANNOTATION: "true"},
    )
    assert amal.catalog.push(ref, f"{place}:again", country="AE").digest == done.digest
    back = amal.catalog.pull("dataset:fraud/many2", f"{place}:v1")
    assert amal.catalog.show(back.ref).root == amal.catalog.show(ref).root


def test_a_flipped_byte_is_found(town: Town, oci_registry: RegistryServer, place: str, tmp_path: Path) -> None:
    amal = town.as_("amal")
    files = {"a": os.urandom(1000), "b": os.urandom(1000)}
    ref = amal.catalog.publish("dataset:fraud/flip", str(folder_of(tmp_path / "s", files)), label=LABEL).ref
    amal.catalog.push(ref, place, country="AE")
    blob = oci_registry.blob(manifest_of(place)["layers"][1]["digest"])
    whole = blob.read_bytes()
    for spoiled in (bytes([whole[0] ^ 1]) + whole[1:], whole[:-1], whole + b"x", b""):
        blob.write_bytes(spoiled)
        error = refusal(lambda: amal.catalog.pull("dataset:fraud/flipped", f"{place}:v1"))
        assert isinstance(error, CorruptData), error
    assert isinstance(refusal(lambda: amal.catalog.show("dataset:fraud/flipped")), FalajError)
    blob.write_bytes(whole)
    assert amal.catalog.pull("dataset:fraud/flipped", f"{place}:v1").num_files == 2


def test_no_link_goes_out(town: Town, place: str, tmp_path: Path) -> None:
    amal = town.as_("amal")
    source = folder_of(tmp_path / "s", {"a": b"a"})
    (source / "b").symlink_to("a")
    ref = amal.catalog.publish("dataset:fraud/linked", str(source), label=LABEL).ref
    assert "is a link" in refusal(lambda: amal.catalog.push(ref, place, country="AE")).message


def test_what_may_not_leave_stays(town: Town, oci_registry: RegistryServer, place: str, tmp_path: Path) -> None:
    """A push is a movement: place() is asked where the registry stands, before a byte is sent, and a no is recorded."""
    amal = town.as_("amal")
    source = str(folder_of(tmp_path / "s", {"a": b"rows of a bank"}))
    ref = amal.catalog.publish("dataset:fraud/stays", source, label="AE-CBUAE,secret,purpose=fraud").ref
    posts = oci_registry.requests("POST")
    unknown = refusal(lambda: amal.catalog.push(ref, place))
    assert isinstance(unknown, Denied)
    assert "--country AE" in unknown.hint
    abroad = refusal(lambda: amal.catalog.push(ref, place, country="us"))
    assert isinstance(abroad, Denied)
    assert "AE-CBUAE" in abroad.message
    assert isinstance(refusal(lambda: amal.catalog.push(ref, place, country="Utopia")), Invalid)
    assert oci_registry.requests("POST") == posts
    told = [event.body for event in town.events(verb="guard.deny") if event.body["about"] == "dataset:fraud/stays"]
    assert [each["action"] for each in told] == ["catalog.carry"] * 2
    assert isinstance(refusal(lambda: town.as_("amal", "").catalog.push(ref, place, country="AE")), Denied)
    assert amal.catalog.push(ref, place, country="ae").num_files == 1
    [gone] = [event.body for event in town.events(verb="catalog.carry") if event.subject == ref]
    assert (gone["to"], gone["country"]) == (f"{place}:v1", "AE")
    free = amal.catalog.publish("dataset:fraud/free", source).ref
    assert amal.catalog.push(free, f"{place}-free").num_files == 1, "what is open may go to the unknown"


def test_the_installation_knows_where_a_registry_stands(
    oci_registry: RegistryServer, place: str, tmp_path: Path
) -> None:
    """Whoever pushes there need not say it, and cannot say otherwise."""
    town = Town(tmp_path / "town", registries={oci_registry.host: "AE", "ghcr.example": "US"})
    try:
        amal = town.as_("amal")
        source = str(folder_of(tmp_path / "s", {"a": b"rows"}))
        ref = amal.catalog.publish("dataset:fraud/known", source, label="AE-CBUAE,purpose=fraud").ref
        assert amal.catalog.push(ref, place).num_files == 1
        assert isinstance(refusal(lambda: amal.catalog.push(ref, "ghcr.example/bank/tx")), Denied)
        for same in ("ghcr.example", "GHCR.example", "ghcr.example:443"):
            lie = refusal(lambda same=same: amal.catalog.push(ref, f"{same}/bank/tx", country="AE"))
            assert "stands in US" in lie.message
    finally:
        town.close()


def test_a_registry_that_cannot_be_reached_is_told_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # a port on which nobody listens
        with RegistryClient(RegistryLocation.parse(f"127.0.0.1:{taken.getsockname()[1]}/bank/tx")) as registry:
            error = refusal(registry.manifest)
    assert isinstance(error, Unavailable)
    assert "cannot be reached" in error.message
    assert "port" in error.hint


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8)


def pem_of(key: Any) -> bytes:
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return bytes(key.public_key().public_bytes(*form))


def test_a_models_signature_goes_along_and_counts(town: Town, place: str, tmp_path: Path) -> None:
    mona = town.as_("mona")
    source = folder_of(tmp_path / "s", {"model.safetensors": safetensors(), "config.json": b"{}"})
    ref = mona.catalog.publish("model:fraud/signed", str(source), label=LABEL).ref
    opened = mona.catalog.open(ref)
    assert opened.signature
    mona.catalog.push(ref, place, country="AE")
    assert [layer["mediaType"] for layer in manifest_of(place)["layers"]][-1] == SIGNATURE
    back = mona.catalog.pull("model:fraud/back", f"{place}:v1")
    assert (back.num_files, back.signature) == (2, "by the key that came with it")
    assert mona.catalog.show(back.ref).card.format == "safetensors"
    key = tmp_path / "key.pem"
    key.write_text(opened.key)
    assert mona.catalog.pull("model:fraud/back", f"{place}:v1", key=str(key)).signature == "by the key you named"
    # Without the key that came along there is a signature all the same, and --key checks it.
    signed = manifest_of(place)
    put_artefact(place, signed["layers"], b"{}", ARTIFACT_TYPE)
    assert "nobody checked it" in mona.catalog.pull("model:fraud/back", place).signature
    assert mona.catalog.pull("model:fraud/back", place, key=str(key)).signature == "by the key you named"
    # What is no such key is told before anything is fetched: the address is nobody's.
    for wrong in (b"\xff\xfe\x00 no text", b"{}", pem_of(rsa_key()[0])):
        key.write_bytes(wrong)
        error = refusal(lambda: mona.catalog.pull("model:fraud/back", "127.0.0.1:1/fraud/signed:v1", key=str(key)))
        assert isinstance(error, Invalid)
        assert "holds no public key" in error.message
    key.write_bytes(pem_of(ec.generate_private_key(ec.SECP256R1())))
    assert isinstance(refusal(lambda: mona.catalog.pull("model:fraud/back", f"{place}:v1", key=str(key))), CorruptData)
    # A file that nobody signed, slipped in beside the signed ones.
    extra = {**put_blob(place, b"evil"), "annotations": {TITLE_ANNOTATION: "evil.py"}}
    put_artefact(place, [*signed["layers"], extra], json.dumps({"key": opened.key}).encode(), ARTIFACT_TYPE)
    assert "evil.py" in refusal(lambda: mona.catalog.pull("model:fraud/back", place)).message
    put_artefact(place, [extra])
    assert isinstance(refusal(lambda: mona.catalog.pull("model:fraud/back", place, key=str(key))), Denied)


def test_oras_pulls_ours_and_we_pull_its(town: Town, oci_registry: RegistryServer, place: str, tmp_path: Path) -> None:
    try:
        python = peers.peer("oras", *ORAS) / "python"
    except Missing as missing:
        pytest.skip(str(missing))
    amal = town.as_("amal")
    ref = amal.catalog.publish("dataset:fraud/oras", str(folder_of(tmp_path / "s", FILES)), label=LABEL).ref
    amal.catalog.push(ref, place, country="AE")
    work = folder_of(tmp_path / "work", {"one.bin": b"one", "tree/two.txt": b"two", "tree/deep/three.txt": b"3"})
    script = (
        "import oras.client, sys\n"
        "client = oras.client.OrasClient(insecure=True, tls_verify=False)\n"
        "client.pull(target=sys.argv[1] + ':v1', outdir='pulled')\n"
        "client.push(target=sys.argv[1] + ':theirs', files=['one.bin', 'tree'])\n"
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
    subprocess.run([python, "-c", script, place], cwd=work, env=env, check=True, capture_output=True)
    assert files_of(work / "pulled") == FILES
    back = amal.catalog.pull("dataset:fraud/theirs", f"{place}:theirs", label=LABEL)
    amal.catalog.checkout(back.ref, str(tmp_path / "out"))
    assert files_of(tmp_path / "out") == {"one.bin": b"one", "tree/two.txt": b"two", "tree/deep/three.txt": b"3"}


# --- hostile artefacts


def pulled(place: str, folder: Path) -> dict[str, bytes]:
    """What arrives in the folder that would be published."""
    stage, work = folder / "stage", folder / "work"
    for each in (stage, work):
        each.mkdir(exist_ok=True, parents=True)
    with RegistryClient(RegistryLocation.parse(place)) as registry:
        receiver = ArtifactReceiver(registry, work, stage)
        receiver.receive(lambda amount: None)
    return files_of(stage)


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    ("title", "says"),
    [
        *((title, "leads out of its folder") for title in ("../evil", "/etc/evil", "a/../../evil", ".", "a\0b")),
        *(("", "layers without names"), ("x/" * 2500, "has 5,000 characters"), ("n" * 300, "cannot lie where it says")),
    ],
)
def test_titles_that_lead_out_are_refused(place: str, tmp_path: Path, title: str, says: str) -> None:
    put_artefact(place, [{**put_blob(place, b"evil"), "annotations": {TITLE_ANNOTATION: title}}])
    with pytest.raises(Invalid, match=says):
        pulled(place, tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_two_files_of_one_name_are_refused(place: str, tmp_path: Path) -> None:
    layer = put_blob(place, b"x")
    for first, second in (("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a", "./a")):
        put_artefact(place, [{**layer, "annotations": {TITLE_ANNOTATION: title}} for title in (first, second)])
        with pytest.raises(Invalid):
            pulled(place, tmp_path / hashlib.md5(f"{first} {second}".encode(), usedforsecurity=False).hexdigest())


@pytest.mark.parametrize(
    "data",
    [
        tar_of((member("../evil"), b"x")),
        tar_of((member("/evil"), b"x")),
        tar_of((member("a", tarfile.SYMTYPE, "/etc/passwd"), b"")),
        tar_of((member("a", tarfile.SYMTYPE, "b"), b""), (member("a/b"), b"x")),
        tar_of((member("a", tarfile.LNKTYPE, "/etc/passwd"), b"")),
        tar_of((member("a", tarfile.CHRTYPE), b"")),
        tar_of((member("a", tarfile.FIFOTYPE), b"")),
        tar_of((member("a"), b"x"), (member("a"), b"y")),
        tar_of((member("a"), b"x" * 5000))[:2000],
        b"not an archive at all" * 100,
        b"",
    ],
    ids=["up", "absolute", "link", "through", "hard", "device", "pipe", "twice", "cut", "none", "empty"],
)
@pytest.mark.parametrize("how", ["tar", "gzip"])
def test_archives_that_do_harm_are_refused(place: str, tmp_path: Path, data: bytes, how: str) -> None:
    notes = {ORAS_UNPACK_ANNOTATION: "true"} if how == "gzip" else {UNPACK_ANNOTATION: "true"}
    blob = put_blob(place, gzip.compress(data) if how == "gzip" else data)
    put_artefact(place, [{**blob, "mediaType": TAR_MEDIA_TYPE, "annotations": {TITLE_ANNOTATION: "x", **notes}}])
    with pytest.raises((Invalid, CorruptData)):
        pulled(place, tmp_path)
    assert not (tmp_path / "evil").exists()


def test_a_bomb_does_not_go_off(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falaj.exchange.oci.MIN_UNPACK_LIMIT_BYTES", 1 << 20)
    bomb = put_blob(place, gzip.compress(bytes(64 << 20)))
    put_artefact(place, [{**bomb, "annotations": {TITLE_ANNOTATION: "x", ORAS_UNPACK_ANNOTATION: "true"}}])
    with pytest.raises(Invalid, match="made to do harm"):
        pulled(place, tmp_path)
    # A header that claims to be larger than any is never read.
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 33
    blob = put_blob(place, header.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    put_artefact(
        place,
        [{**blob, "mediaType": TAR_MEDIA_TYPE, "annotations": {TITLE_ANNOTATION: "x", UNPACK_ANNOTATION: "true"}}],
    )
    with pytest.raises(CorruptData):
        pulled(place, tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"digest": "sha256:../../etc/passwd"},
        {"digest": "md5:" + "0" * 32},
        {"digest": "sha256:" + "A" * 64},
        {"size": -1},
        {"size": "1"},
        {"size": 1e300},
        {"annotations": {TITLE_ANNOTATION: 7}},
        {"annotations": [TITLE_ANNOTATION]},
        {"mediaType": None},
    ],
)
def test_descriptors_that_say_nonsense_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    layer = {
        "mediaType": "x/y",
        "digest": f"sha256:{'0' * 64}",
        "size": 1,
        "annotations": {TITLE_ANNOTATION: "a"},
        **wrong,
    }
    config = {"mediaType": "x/y", "digest": f"sha256:{'0' * 64}", "size": 2}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": [layer]}
    with stranger(lambda ask: (200, {}, json.dumps(manifest).encode())) as host, pytest.raises(Invalid):
        pulled(f"{host}/a/b", tmp_path)


@pytest.mark.parametrize(
    "body",
    [b"x" * (5 << 20), b"[" * 200_000, b'{"a":' * 100_000, b"{}", b"null", b"\xff", b'{"manifests": [], "size": 2}'],
    ids=["huge", "deep", "deep-object", "empty", "null", "bytes", "index"],
)  # fmt: skip
def test_manifests_that_are_none_are_refused(tmp_path: Path, body: bytes) -> None:
    with stranger(lambda ask: (200, {}, body)) as host, pytest.raises(Invalid):
        pulled(f"{host}/a/b", tmp_path)


def test_a_manifest_that_is_not_its_digest_is_refused(tmp_path: Path) -> None:
    with stranger(lambda ask: (200, {}, b"{}")) as host, pytest.raises(CorruptData):
        pulled(f"{host}/a/b@sha256:{'0' * 64}", tmp_path)


def test_more_than_fits_is_not_begun(tmp_path: Path) -> None:
    layer = {
        "mediaType": "x/y",
        "digest": f"sha256:{'0' * 64}",
        "size": 1 << 60,
        "annotations": {TITLE_ANNOTATION: "a"},
    }
    config = {"mediaType": "x/y", "digest": f"sha256:{'0' * 64}", "size": 2}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": [layer]}
    with stranger(lambda ask: (200, {}, json.dumps(manifest).encode())) as host:
        assert "are free" in refusal(lambda: pulled(f"{host}/a/b", tmp_path)).message


# --- who you are


class Ask(http.server.BaseHTTPRequestHandler):
    """One request to a server of the test's own."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, headers, body = self.server.reply(self)  # type: ignore[attr-defined]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def stranger(reply: Callable[[Ask], tuple[int, dict[str, str], bytes]]) -> Iterator[str]:
    """A server that answers as it is told."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ask)
    server.reply = reply  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def guarded() -> Iterator[RegistryServer]:
    try:
        server = RegistryServer("htpasswd")
    except Missing as missing:
        pytest.skip(str(missing))
    with server:
        yield server


def test_a_password_is_asked_for(
    guarded: RegistryServer, town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    amal = town.as_("amal")
    ref = amal.catalog.publish("dataset:fraud/guarded", str(folder_of(tmp_path / "s", FILES)), label=LABEL).ref
    place = f"{guarded.host}/bank/tx"
    assert isinstance(refusal(lambda: amal.catalog.push(ref, place, country="AE")), Unauthenticated)
    assert PASSWORD_VARIABLE in refusal(lambda: amal.catalog.push(ref, place, user=USER, country="AE")).hint
    monkeypatch.setenv(PASSWORD_VARIABLE, "wrong")
    assert isinstance(refusal(lambda: amal.catalog.push(ref, place, user=USER, country="AE")), Denied)
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    assert amal.catalog.push(ref, place, user=USER, country="AE").num_files == 4
    assert isinstance(refusal(lambda: amal.catalog.pull("dataset:fraud/g", f"{place}:v1")), Unauthenticated)
    monkeypatch.delenv(PASSWORD_VARIABLE)
    # As `docker login` leaves it.
    auth = base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
    folder_of(tmp_path / "docker", {"config.json": json.dumps({"auths": {guarded.host: {"auth": auth}}}).encode()})
    assert amal.catalog.pull("dataset:fraud/g", f"{place}:v1").num_files == 4


def rsa_key() -> tuple[rsa.RSAPrivateKey, x509.Certificate]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")]), datetime.now(UTC)

    certificate = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(7)
        .not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    return key, certificate


def test_a_token_is_fetched_where_the_registry_says(
    oci_registry: RegistryServer, town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token dance with a real registry: it sends us to an issuer, which gives a token for this repository."""
    key, certificate = rsa_key()
    pem = tmp_path / "issuer.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    asked: list[dict[str, list[str]]] = []

    def issue(ask: Ask) -> tuple[int, dict[str, str], bytes]:
        said = parse_qs(urlsplit(ask.path).query)
        asked.append(said)
        basic = "Basic " + base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
        if ask.headers.get("Authorization") != basic:
            return 401, {}, b"{}"
        kind, name, actions = said["scope"][0].split(":")
        now = datetime.now(UTC)
        claims = {
            "iss": "tests", "sub": USER, "aud": said["service"][0], "iat": now, "nbf": now - timedelta(minutes=1),
            "exp": now + timedelta(minutes=5), "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
        }  # fmt: skip
        x5c = [base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()]
        return 200, {}, json.dumps({"token": jwt.encode(claims, key, "RS256", headers={"x5c": x5c})}).encode()

    amal = town.as_("amal")
    ref = amal.catalog.publish("dataset:fraud/token", str(folder_of(tmp_path / "s", FILES)), label=LABEL).ref
    with stranger(issue) as issuer:
        token = {"realm": f"http://{issuer}/token", "service": "tests", "issuer": "tests", "rootcertbundle": str(pem)}
        with RegistryServer({"token": token}) as server:
            place = f"{server.host}/bank/tx"
            assert isinstance(refusal(lambda: amal.catalog.push(ref, place, country="AE")), Unauthenticated)
            monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
            assert amal.catalog.push(ref, place, user=USER, country="AE").num_files == 4
            assert asked[-1] == {"service": ["tests"], "scope": ["repository:bank/tx:pull,push"]}
            assert amal.catalog.pull("dataset:fraud/token2", f"{place}:v1", user=USER).num_files == 4
            assert asked[-1]["scope"] == ["repository:bank/tx:pull"]


def test_credentials_do_not_follow_a_redirect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    data, seen = b"the bytes", []
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"

    def elsewhere(ask: Ask) -> tuple[int, dict[str, str], bytes]:
        seen.append(ask.headers.get("Authorization"))
        return 200, {}, data

    with stranger(elsewhere) as other:

        def send_on(ask: Ask) -> tuple[int, dict[str, str], bytes]:
            if ask.headers.get("Authorization") is None:
                return 401, {"WWW-Authenticate": 'Basic realm="x"'}, b""
            return 307, {"Location": f"http://{other}/blob?signature=abc"}, b""

        with stranger(send_on) as host, RegistryClient(RegistryLocation.parse(f"{host}/a/b"), USER) as registry:
            registry.download(digest, len(data), tmp_path / "out", lambda amount: None)
    assert (seen, (tmp_path / "out").read_bytes()) == ([None], data)


@pytest.mark.parametrize(
    "where",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://example.invalid/",
        "file:///etc/passwd",
        "ftp://x/",
        "http://[",
    ],
)
def test_a_redirect_or_a_realm_off_tls_is_refused(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    for status, headers in ((302, {"Location": where}), (401, {"WWW-Authenticate": f'Bearer realm="{where}"'})):
        answer = (status, headers, b"")
        with (
            stranger(lambda ask, answer=answer: answer) as host,  # type: ignore[misc]
            RegistryClient(RegistryLocation.parse(f"{host}/a/b"), USER) as registry,
            pytest.raises(Denied, match="only TLS"),
        ):
            registry.manifest()


def test_circles_end(tmp_path: Path) -> None:
    with stranger(lambda ask: (302, {"Location": ask.path}, b"")) as host, pytest.raises(Unavailable, match="circles"):
        pulled(f"{host}/a/b", tmp_path)


def test_tls_is_the_rule(tmp_path: Path) -> None:
    key, certificate = rsa_key()
    files = (tmp_path / "ca.pem", tmp_path / "key.pem")
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    other = tmp_path / "other.pem"
    other.write_bytes(rsa_key()[1].public_bytes(serialization.Encoding.PEM))
    try:
        server = RegistryServer(tls=files)
    except Missing as missing:
        pytest.skip(str(missing))
    with server:
        place = RegistryLocation.parse(f"{server.host}/a/b")
        with RegistryClient(place, authority=str(files[0])) as registry:
            assert not registry.has(f"sha256:{'0' * 64}")
        with RegistryClient(place, authority=str(other)) as registry, pytest.raises(Denied, match="vouches"):
            registry.manifest()
    with pytest.raises(Invalid, match="no certificates"):
        RegistryClient(place, authority=str(tmp_path / "none.pem"))
    with RegistryClient(RegistryLocation.parse("registry.example/a/b")) as registry:
        assert registry._base.scheme == "https"


# --- lines that break


class Breaking:
    """Stands before a registry and cuts a connection after so many bytes, a few times."""

    def __init__(self, to: str, after: int, times: int) -> None:
        self._to, self._after, self._left = to.split(":"), after, times
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._ends = [self._socket]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            server = socket.create_connection((self._to[0], int(self._to[1])))
            self._ends += [client, server]
            moved = [0]
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._carry, args=(source, sink, moved))
                thread.start()
                self._threads.append(thread)

    def _carry(self, source: socket.socket, sink: socket.socket, moved: list[int]) -> None:
        try:
            while data := source.recv(65536):
                moved[0] += len(data)
                if self._left and moved[0] > self._after:
                    self._left -= 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> "Breaking":
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for end in self._ends:
            end.close()


@contextmanager
def through(server: RegistryServer, after: int, times: int, repository: str) -> Iterator[RegistryClient]:
    with (
        Breaking(server.host, after, times) as line,
        RegistryClient(RegistryLocation.parse(f"{line.host}/{repository}"), write=True) as registry,
    ):
        yield registry


def test_a_broken_line_is_taken_up_again(
    oci_registry: RegistryServer, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "UPLOAD_CHUNK_BYTES", 256 << 10)
    file = tmp_path / "file"
    file.write_bytes(os.urandom(1_000_000))
    digest = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    repository = place.partition("/")[2]
    with through(oci_registry, 400_000, 1, repository) as registry:
        assert registry.upload(file, digest, lambda amount: None)
        assert not registry.upload(file, digest, lambda amount: None)
    assert oci_registry.blob(digest).read_bytes() == file.read_bytes()
    with through(oci_registry, 300_000, 2, repository) as registry:
        registry.download(digest, 1_000_000, tmp_path / "back", lambda amount: None)
    assert (tmp_path / "back").read_bytes() == file.read_bytes()
    with through(oci_registry, 300_000, 9, repository) as registry, pytest.raises(Unavailable):
        registry.download(digest, 1_000_000, tmp_path / "never", lambda amount: None)
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("registry.example/fraud/scorer", ("registry.example", "fraud/scorer", "latest")),
        ("registry.example:5000/a/b/c:V1.2_x", ("registry.example:5000", "a/b/c", "V1.2_x")),
        ("[::1]:5000/a@sha256:" + "0" * 64, ("[::1]:5000", "a", "sha256:" + "0" * 64)),
        ("localhost/a__b/c-d.e", ("localhost", "a__b/c-d.e", "latest")),
    ],
)
def test_places(text: str, parsed: tuple[str, str, str]) -> None:
    place = RegistryLocation.parse(text)
    assert (place.host, place.repository, place.reference) == parsed
    assert place.loopback is (parsed[0] in ("localhost", "[::1]:5000"))


@pytest.mark.parametrize(
    "text",
    [
        "", "scorer", "https://registry.example/a/b", "user:pass@registry.example/a/b", "registry.example/A/b",
        "registry.example/a/../b", "registry.example/a@sha256:00", "registry.example/a@md5:00",
        "registry.example/a?x=y", "registry.example/a b", "registry.example//a", "registry.example/a:b/c", "-x/a",
        "registry.example/a#b", "registry.example\\evil/a", "registry.example/a:" + "t" * 200,
    ],
)  # fmt: skip
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(Invalid, match="no place in a registry"):
        RegistryLocation.parse(text)
