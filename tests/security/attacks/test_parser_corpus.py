"""Proves the threat-model row "a hostile file or body breaks, stops or fills the platform that reads it".

Each case goes through the entry point that a user has: publish, inspect, pull, the API. It is refused with an error of
ours, or taken for what it is; the helper that parses it stays within its limits of memory and processor time, and
nothing is written outside. HTTP/1 and HTTP/2 framing is attacked in the tests of the API and the gateway.
"""

import base64
import http.client
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from falaj.agent import zone_proxy
from falaj.api.grpc_server import create_grpc_server
from falaj.catalog import model_parser
from falaj.console.pages.jobs import job_figures
from falaj.console.pages.serve.input_forms import parse_signature_inputs
from falaj.content import duck_engine
from falaj.content.isolated_parser import ParserLimits
from falaj.core.errors import CorruptData, FalajError, Invalid
from falaj.exchange.untrusted_input import read_yaml
from falaj.track.records import DEFAULT_EXPERIMENT
from tests.api.mlflow.conftest import Place, place  # noqa: F401 - a fixture
from tests.api.test_grpc import Held, refused
from tests.exchange.test_oci import MANIFEST_TYPE, TAR_MEDIA_TYPE, TITLE_ANNOTATION, UNPACK_ANNOTATION, pulled, stranger
from tests.security.attacks import hostile_files
from tests.town import Town

PWNED = Path("/tmp/falaj-corpus-pwned")
PEAK_BYTES = 3 << 30
"""Of the largest helper: the engine's own limit of 1 GiB, one column of a bomb, and the libraries."""
TABLES, MODELS = hostile_files.generate_tables(), hostile_files.generate_models()
ARCHIVES, BODIES = hostile_files.generate_archives(), hostile_files.generate_json_bodies()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    town = Town(tmp_path_factory.mktemp("corpus") / "town")
    yield town
    town.close()


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A helper gets 10 s of processor time; none of the cases may come near the wall clock's limit."""
    limits = ParserLimits(data_bytes=2 << 30, cpu_seconds=10, wall_seconds=400.0, spill_bytes=8 << 30)
    monkeypatch.setattr(duck_engine, "ParserLimits", lambda *_: limits)
    monkeypatch.setattr(model_parser, "PARSER_LIMITS", limits)
    yield
    assert not PWNED.exists()
    # A process that was forked from this one has at least this one's peak in its own figure.
    own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < max(PEAK_BYTES, 1.1 * own_peak)


def write_files(folder: Path, files: hostile_files.Files) -> Path:
    for name, data in files.items():
        (folder / name).write_bytes(data() if callable(data) else data)
    return folder


def publish(town: Town, ref: str, folder: Path) -> Any:
    """The published version, or the error that refused it; any other exception is the finding."""
    try:
        return town.as_("mona").catalog.publish(ref, str(folder))
    except (Invalid, CorruptData) as error:
        return error


@pytest.mark.parametrize("case", sorted(TABLES))
def test_hostile_table_is_published_without_a_schema_or_refused(case: str, town: Town, tmp_path: Path) -> None:
    outcome = publish(town, f"dataset:fraud/{case.replace(' ', '-')}", write_files(tmp_path, TABLES[case]))
    assert "Traceback" not in str(outcome)
    assert "duckdb" not in str(outcome).lower()


@pytest.mark.parametrize("case", sorted(MODELS))
def test_hostile_model_is_refused_or_known_for_what_it_is(case: str, town: Town, tmp_path: Path) -> None:
    outcome = publish(town, f"model:fraud/{case.replace(' ', '-')}", write_files(tmp_path, MODELS[case]))
    assert "Traceback" not in str(outcome)
    if not isinstance(outcome, FalajError):
        looked = town.as_("mona").catalog.inspect(outcome.ref)  # the server's own look, which reads MLmodel too
        assert looked.format in (*model_parser_formats(), "json", "text", "other")


def model_parser_formats() -> tuple[str, ...]:
    from falaj.content.model_formats import CODE_FORMATS, SAFE_FORMATS

    return (*SAFE_FORMATS, *CODE_FORMATS)


@pytest.mark.parametrize("case", sorted(ARCHIVES))
def test_hostile_tar_layer_is_refused_and_nothing_lies_outside(case: str, tmp_path: Path) -> None:
    import hashlib

    data = ARCHIVES[case]
    layer = {
        "mediaType": TAR_MEDIA_TYPE, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data),
        "annotations": {TITLE_ANNOTATION: "x", UNPACK_ANNOTATION: "true"},
    }  # fmt: skip
    config = {"mediaType": "application/json", "digest": f"sha256:{hashlib.sha256(b'{}').hexdigest()}", "size": 2}
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": [layer]}
    ).encode()

    def reply(request: Any) -> tuple[int, dict[str, str], bytes]:
        if "/manifests/" in request.path:
            return 200, {"content-type": MANIFEST_TYPE}, manifest
        return 200, {}, data if layer["digest"] in request.path else b"{}"

    (tmp_path / "in").mkdir()
    with stranger(reply) as host, pytest.raises((Invalid, CorruptData)):
        pulled(f"{host}/a/b", tmp_path / "in")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert not list(tmp_path.rglob("evil"))
    assert not Path("/tmp/evil").exists()


@pytest.mark.parametrize("case", sorted(hostile_files.generate_yaml()))
def test_hostile_yaml_document_is_refused_or_plain(case: str) -> None:
    """What `falaj catalog import` reads of other people's projects."""
    try:
        read = read_yaml(hostile_files.generate_yaml()[case], "the file")
    except Invalid:
        return
    assert isinstance(read, dict)


@pytest.mark.parametrize("path", ["/v1/catalog/list", "/v1/jobs/add", "/api/2.0/mlflow/runs/log-batch"])
def test_hostile_json_body_is_a_client_error(path: str, place: Place) -> None:  # noqa: F811
    headers = {"Authorization": f"Bearer {place.tokens['amal']}", "Content-Type": "application/json"}
    host, _, port = place.url.removeprefix("http://").partition(":")
    for case, body in BODIES.items():
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        assert answer.status < 500, (case, answer.status, text[:300])
        assert b"Traceback" not in text
        if case not in ("empty", "duplicate keys", "lone surrogate"):
            assert answer.status >= 400, (case, answer.status)


def test_hostile_protobuf_message_is_a_client_error() -> None:
    with create_grpc_server(Held(), "127.0.0.1:0") as server, grpc.insecure_channel(server.address) as channel:
        for case, message in hostile_files.generate_protobuf().items():
            code, _ = refused(channel, message)
            assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED), (case, code)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", '{"a": "\\ud800"}', '{"a": 1e999}', "nothing"], ids=range(5))
def test_hostile_json_inside_a_text_is_a_client_error(text: str, place: Place) -> None:  # noqa: F811
    """MLflow's clients send JSON as text inside JSON; the depth of a body is no bound on it."""
    with httpx.Client(base_url=place.url, headers={"Authorization": f"Bearer {place.tokens['amal']}"}) as http:
        run = http.post("/api/2.0/mlflow/runs/create", json={"experiment_id": "0"}).json()["run"]["info"]["run_id"]
        answer = http.post("/api/2.0/mlflow/runs/log-model", json={"run_id": run, "model_json": text})
        assert answer.status_code == 400, answer.text[:300]
        tag = {"run_id": run, "key": "mlflow.log-model.history", "value": text[:4000]}
        assert http.post("/api/2.0/mlflow/runs/set-tag", json=tag).status_code == 200
        answer = http.post("/api/2.0/mlflow/runs/log-model", json={"run_id": run, "model_json": "{}"})
        assert answer.status_code == 400, answer.text[:300]


def test_trace_note_that_is_no_json_breaks_nobodys_list(place: Place) -> None:  # noqa: F811
    """Notes are set as text by our own clients and shown as JSON to MLflow's."""
    name, location = f"tr-{'a' * 32}", {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
    info = {
        "trace_id": name, "trace_location": location, "request_time": "2026-01-01T00:00:00Z", "state": "OK",
        "execution_duration": "1s", "trace_metadata": {}, "tags": {},
    }  # fmt: skip
    with httpx.Client(base_url=place.url, headers={"Authorization": f"Bearer {place.tokens['amal']}"}) as http:
        created = http.post("/api/3.0/mlflow/traces", json={"trace": {"trace_info": info}})
        assert created.status_code == 200, created.text
        ref = str(place.replica.as_(place.tokens["amal"]).traces.list(DEFAULT_EXPERIMENT).traces[0].ref.bare)
        for note in ("no json", "[" * 5000, "[]"):
            place.replica.as_(place.tokens["amal"]).traces.change(ref, notes={"a": note})
            assert http.get(f"/api/3.0/mlflow/traces/{name}").status_code == 200
            search = http.post("/api/3.0/mlflow/traces/search", json={"locations": [location]})
            assert search.status_code == 200, search.text
            assert http.get(f"/api/3.0/mlflow/traces/{name}/assessments/a").status_code == 404


def test_deep_json_that_others_wrote_breaks_no_page() -> None:
    """A model's signature, a job's profile and a ticket are JSON that their writer chose."""
    deep = "[" * 100_000
    assert parse_signature_inputs({"inputs": deep}) == ()
    assert job_figures._parse_summary(deep.encode()) == {}
    for parse in (zone_proxy._read_ticket, lambda text: zone_proxy._parse_json_object(text.encode())):
        with pytest.raises(Invalid):
            parse(base64.urlsafe_b64encode(deep.encode()).decode() if parse is zone_proxy._read_ticket else deep)
