"""What MLflow's own server was broken by, tried on ours: every path, every disguise, every stranger."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from falaj.api.mlflow import artifacts, experiments, logged_models, model_registry, runs, traces
from falaj.api.mlflow.coding import MlflowEndpoint
from falaj.api.mlflow.routes import ENDPOINT_MODULES
from tests.api.mlflow.conftest import Place

ROOT = "/api/2.0/mlflow-artifacts/artifacts"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
ENDPOINTS: list[MlflowEndpoint] = [one for part in ENDPOINT_MODULES for one in part.ENDPOINTS]
ABSENT = [
    # CVE-2026-0545, CVE-2026-2652: jobs; CVE-2026-64849: webhooks; CVE-2026-2651: multipart uploads; the gateway.
    "/ajax-api/3.0/jobs/search",
    "/api/3.0/jobs",
    "/api/2.0/mlflow/webhooks",
    "/api/2.0/mlflow/webhooks/1/test",
    "/api/2.0/mlflow-artifacts/mpu/create/0/x/artifacts",
    "/api/2.0/mlflow-artifacts/mpu/complete/0/x/artifacts",
    "/api/2.0/mlflow-artifacts/presigned/0/x/artifacts/f",
    "/api/2.0/mlflow/artifacts/presigned-upload-url",
    "/api/3.0/mlflow/gateway/secrets/list",
    "/api/2.0/mlflow/gateway-proxy",
    "/ajax-api/2.0/mlflow/gateway-proxy",
    "/api/3.0/mlflow/prompt-optimization/jobs",
    "/api/2.0/mlflow/users/create",
    "/api/2.0/preview/mlflow/runs/get",
    "/ajax-api/2.0/mlflow/runs/get",
    "/get-artifact",
    "/model-versions/get-artifact",
    "/ajax-api/2.0/mlflow/upload-artifact",
    "/ajax-api/2.0/mlflow/get-trace-artifact",
    "/graphql",
    "/static-files/index.html",
    "/v1/traces",
    "/api/2.0/mlflow/users/get",
]
CLIMBS = [
    "..",
    "../../../../etc/passwd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "%2e%2e%2fetc%2fpasswd",
    ".%2e/x",
    "..\\..\\windows\\win.ini",
    "..%5c..%5cwindows%5cwin.ini",
    "%5c%5cserver%5cshare",
    "/etc/passwd",
    "//etc/passwd",
    "%2fetc%2fpasswd",
    "a//b",
    "a/./b",
    "a/../b",
    "a/%2e/b",
    "a/..;/b",  # only a name, and harmless: kept or missing, never followed
    "x%00.txt",
    "x%0a.txt",
    "%c0%ae%c0%ae/x",
    "%ff",
    "%",
    "%zz",
    "a%",
    "x" * 300,
    "a/" * 1500 + "b",
    "file:%2f%2f%2fetc%2fpasswd",  # a name with a colon and slashes in it: no name
    "?path=/etc/passwd",
    "x?y",
]


@pytest.fixture
def amal(place: Place) -> Iterator[httpx.Client]:
    yield from _as(place, "amal")


@pytest.fixture
def sara(place: Place) -> Iterator[httpx.Client]:
    yield from _as(place, "sara")


def _as(place: Place, who: str) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {place.tokens[who]}"}
    with httpx.Client(base_url=place.url, headers=headers, trust_env=False, timeout=30) as client:
        yield client


def raw(place: Place, method: str, path: str, who: str = "amal", body: bytes = b"") -> tuple[int, bytes]:
    """Exactly this path, as no client library would send it."""
    host = place.url.partition("://")[2]
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.putrequest(method, path, skip_accept_encoding=True)
    if who:
        connection.putheader("authorization", f"Bearer {place.tokens[who]}")
    connection.putheader("content-length", str(len(body)))
    connection.putheader("content-type", "application/octet-stream")
    connection.endheaders(body)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def ask(client: httpx.Client, method: str, where: str, **body: Any) -> httpx.Response:
    if method == "GET":
        return client.get(where, params=body)
    return client.request(method, where, json=body)


def new_run(client: httpx.Client) -> tuple[str, str]:
    found = ask(client, "POST", "/api/2.0/mlflow/runs/create", experiment_id="0").json()["run"]["info"]
    return found["run_id"], found["artifact_uri"].removeprefix("mlflow-artifacts:/")


def test_nobody_gets_past_any_path_with_any_method(place: Place) -> None:
    paths = {one.path for one in ENDPOINTS} | {ROOT, f"{ROOT}/x", "/version", "/api/3.0/mlflow/server-info", *ABSENT}
    with httpx.Client(base_url=place.url, trust_env=False) as nobody:
        for path in sorted(paths):
            for method in METHODS:
                got = nobody.request(method, path.replace("{", "").replace("}", ""))
                assert got.status_code == 401, (method, path, got.status_code)
                if method != "HEAD" and path.startswith("/api/"):
                    assert got.json()["error_code"] == "UNAUTHENTICATED"


def test_what_is_not_there_is_not_there(amal: httpx.Client) -> None:
    for path in ABSENT:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            got = amal.request(method, path)
            assert got.status_code in (404, 405), (method, path, got.status_code)
            if path.startswith("/api/"):
                assert got.json()["error_code"] == "ENDPOINT_NOT_FOUND"


def test_a_wrong_method_is_told_the_right_ones(amal: httpx.Client) -> None:
    got = amal.get("/api/2.0/mlflow/runs/create")
    assert (got.status_code, got.headers["allow"], got.json()["error_code"]) == (405, "POST", "ENDPOINT_NOT_FOUND")
    got = amal.post(f"{ROOT}/0/x")
    assert (got.status_code, got.headers["allow"]) == (405, "DELETE, GET, PUT")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_no_disguise_of_a_path_leaves_a_run(place: Place, amal: httpx.Client, method: str) -> None:
    # CVE-2023-1177, -2356, -2780, -6018, -6831, -6909, -6977; 2024-1483, -1560, -1593, -2928, -3848, -8859; 2026-2614.
    run, root = new_run(amal)
    secret = Path("/etc/passwd").read_bytes()
    for climb in CLIMBS:
        for base in (f"{ROOT}/{root}/", f"{ROOT}/", f"{ROOT}/{root.partition('/')[0]}/{run}/"):
            status, body = raw(place, method, base + climb, body=b"evil" if method == "PUT" else b"")
            if method == "PUT" and climb == "a/..;/b" and root in base:
                assert status == 200
                continue
            assert status in (400, 404, 405, 413, 414, 431), (method, base + climb, status, body[:200])
            assert secret[:20] not in body
    names = {one["path"] for one in amal.get(ROOT, params={"path": root}).json().get("files", [])}
    assert names <= {"a"}


@pytest.mark.parametrize(
    "path", ["..", "../..", "/etc", "0/../..", "a\\b", "", "/", "%2e%2e", "file:///etc", "0/x/artifacts/../.."]
)
def test_listing_climbs_nowhere(amal: httpx.Client, path: str) -> None:
    run, root = new_run(amal)
    for where in (path, f"{root}/{path}"):
        got = amal.get(ROOT, params={"path": where})
        assert got.status_code in (400, 404) or got.json() == {"files": []}, (where, got.text)
    got = amal.get("/api/2.0/mlflow/artifacts/list", params={"run_id": run, "path": path})
    assert got.status_code in (400, 404) or got.json() == {"files": []}, (path, got.text)


@pytest.mark.parametrize(
    "source",
    [
        "file:///etc/passwd",
        "FILE:/etc/passwd",
        "/etc/passwd",
        "./x",
        "C:\\x",
        "\\\\server\\share",
        "s3://b/x",
        "gs://b/x",
        "http://169.254.169.254/latest/meta-data",
        "https://evil.example/x",
        "ftp://x/y",
        "dbfs:/x",
        "mlflow-artifacts://evil.example/0/x/artifacts",
        "mlflow-artifacts:///0/x/artifacts",
        "mlflow-artifacts:/0/{run}/artifacts/../../x",
        "mlflow-artifacts:/0/{run}/artifacts/%2e%2e/x",
        "mlflow-artifacts:/0/{run}/artifacts#/etc",
        "mlflow-artifacts:/0/{run}/artifacts?x=/etc",
        "mlflow-artifacts:/registry/main/scorer/v1",
        "runs:/{run}/../../../etc",
        "runs:/{run}/..%2f..%2fetc",
        "runs://evil@x/{run}/m",
        "runs:/{run}\\..\\x",
        "models:/scorer/1/../../x",
        "models:/m-1/../..",
        "models:/../x",
        "prompt-template",
        "",
    ],
)
def test_a_version_has_no_source_outside(amal: httpx.Client, source: str) -> None:
    # CVE-2023-1176, 2023-30172, 2023-3765, 2024-27134 and their like: a source is a file of the server's.
    run, _ = new_run(amal)
    ask(amal, "POST", "/api/2.0/mlflow/registered-models/create", name="scorer")
    got = ask(
        amal, "POST", "/api/2.0/mlflow/model-versions/create", name="scorer", source=source.format(run=run), run_id=run,
        tags=[{"key": "mlflow.prompt.is_prompt", "value": "true"}],
    )  # fmt: skip
    assert got.status_code in (400, 404), got.text
    assert got.json()["error_code"] in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")


@pytest.mark.parametrize(
    "name", ["../../x", "a/b/c", "..", "x:y", "/etc/passwd", "a\\..\\b/c", "x\n", "%2e%2e/x", "\x00"]
)
def test_a_model_has_no_name_that_climbs(amal: httpx.Client, name: str) -> None:
    for path in ("create", "rename"):
        body = {"name": name} if path == "create" else {"name": "scorer", "new_name": name}
        got = ask(amal, "POST", f"/api/2.0/mlflow/registered-models/{path}", **body)
        assert got.status_code in (400, 404), got.text


def test_an_artifact_location_is_refused(amal: httpx.Client) -> None:
    for place in ("file:///etc", "/etc", "http://127.0.0.1:1/", "s3://x", "ftp://x", "mlflow-artifacts-x:/"):
        body = {"name": f"at {place}", "artifact_location": place}
        assert ask(amal, "POST", "/api/2.0/mlflow/experiments/create", **body).status_code == 400, place


def test_the_other_tenant_sees_and_changes_nothing(amal: httpx.Client, sara: httpx.Client) -> None:
    # CVE-2024-4263 and L2: every way to a thing, not only the main one.
    run, root = new_run(amal)
    base = "/api/2.0/mlflow"
    assert raw_put(amal, f"{ROOT}/{root}/f.txt", b"mine").status_code == 200
    ask(amal, "POST", f"{base}/registered-models/create", name="ours")
    model = ask(amal, "POST", f"{base}/logged-models", experiment_id="0", name="m").json()["model"]["info"]
    experiment = ask(amal, "POST", f"{base}/experiments/create", name="only the bank's").json()["experiment_id"]
    tries = [
        ("GET", f"{base}/runs/get", {"run_id": run}),
        ("POST", f"{base}/runs/log-metric", {"run_id": run, "key": "k", "value": 1.0, "timestamp": 1}),
        ("POST", f"{base}/runs/log-batch", {"run_id": run, "tags": [{"key": "a", "value": "b"}]}),
        ("POST", f"{base}/runs/set-tag", {"run_id": run, "key": "a", "value": "b"}),
        ("POST", f"{base}/runs/update", {"run_id": run, "status": "KILLED"}),
        ("POST", f"{base}/runs/delete", {"run_id": run}),
        ("GET", f"{base}/metrics/get-history", {"run_id": run, "metric_key": "k"}),
        ("GET", f"{base}/metrics/get-history-bulk-interval", {"run_ids": run, "metric_key": "k"}),
        ("GET", f"{base}/artifacts/list", {"run_id": run}),
        ("GET", ROOT, {"path": root}),
        ("GET", f"{ROOT}/{root}/f.txt", {}),
        ("DELETE", f"{ROOT}/{root}/f.txt", {}),
        ("GET", f"{base}/experiments/get", {"experiment_id": experiment}),
        ("GET", f"{base}/experiments/get-by-name", {"experiment_name": "only the bank's"}),
        ("POST", f"{base}/experiments/delete", {"experiment_id": experiment}),
        ("POST", f"{base}/runs/search", {"experiment_ids": [experiment]}),
        ("GET", f"{base}/registered-models/get", {"name": "ours"}),
        ("DELETE", f"{base}/registered-models/delete", {"name": "ours"}),
        ("GET", f"{base}/logged-models/{model['model_id']}", {}),
        ("DELETE", f"{base}/logged-models/{model['model_id']}", {}),
        ("POST", f"{base}/model-versions/create", {"name": "ours", "source": f"runs:/{run}/f.txt"}),
    ]
    for method, path, body in tries:
        got = ask(sara, method, path, **body) if body or method == "POST" else sara.request(method, path)
        assert got.status_code == 404, (method, path, got.status_code, got.text)
        assert got.json()["error_code"] == "RESOURCE_DOES_NOT_EXIST"
    assert raw_put(sara, f"{ROOT}/{root}/f.txt", b"theirs").status_code == 404
    ask(sara, "POST", f"{base}/registered-models/create", name="theirs")
    got = ask(sara, "POST", f"{base}/model-versions/create", name="theirs", source=f"runs:/{run}/f.txt")
    assert got.status_code == 404
    assert {one["name"] for one in sara.get(f"{base}/registered-models/search").json()["registered_models"]} == {
        "theirs"
    }
    names = {one["name"] for one in ask(sara, "POST", f"{base}/experiments/search").json()["experiments"]}
    assert names == {"Default"}
    assert amal.get(f"{ROOT}/{root}/f.txt").content == b"mine"
    assert ask(amal, "GET", f"{base}/runs/get", run_id=run).json()["run"]["info"]["status"] == "RUNNING"


def raw_put(client: httpx.Client, path: str, body: bytes) -> httpx.Response:
    return client.put(path, content=body, headers={"content-type": "text/plain"})


def test_an_answer_is_data_and_no_page(amal: httpx.Client) -> None:
    # CVE-2023-6568, 2024-27132: what somebody wrote is shown as a page of ours.
    _, root = new_run(amal)
    raw_put(amal, f"{ROOT}/{root}/x.html", b"<script>alert(1)</script>")
    got = amal.get(f"{ROOT}/{root}/x.html")
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in got.headers["content-security-policy"]
    bad = amal.post("/api/2.0/mlflow/<script>alert(1)</script>")
    assert bad.headers["content-type"] == "application/json"
    assert "<script>" not in bad.text


def test_pages_of_other_origins_change_nothing(amal: httpx.Client) -> None:
    # CVE-2026-27482 and L9, on methods that others forgot.
    run, root = new_run(amal)
    unsafe = [("DELETE", f"{ROOT}/{root}/x"), ("PUT", f"{ROOT}/{root}/x"), ("POST", "/api/2.0/mlflow/runs/delete")]
    for method, path in [*unsafe, ("PATCH", "/api/2.0/mlflow/registered-models/update")]:
        got = amal.request(method, path, headers={"origin": "https://evil.example"}, json={"run_id": run})
        assert (got.status_code, got.json()["error_code"]) == (403, "PERMISSION_DENIED")


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b"{",
        b'"x"',
        b"[" * 5000,
        b'{"run_id": 5}',
        b'{"run_id": null}',
        b"\xff\xfe",
        b'{"run_id": ["x"]}',
    ],
)
def test_odd_bodies_are_refused_in_words(amal: httpx.Client, body: bytes) -> None:
    for path in ("runs/log-batch", "runs/search", "experiments/create", "model-versions/create", "logged-models"):
        got = amal.post(f"/api/2.0/mlflow/{path}", content=body, headers={"content-type": "application/json"})
        assert got.status_code in (400, 200), (path, body[:20], got.text)
        if got.status_code == 400:
            assert got.json()["error_code"] == "INVALID_PARAMETER_VALUE"


@pytest.mark.parametrize("odd", ["1" + "0" * 400, "-" + "9" * 30, "1e999", '"x"', "{}", "true", "[1]"])
def test_odd_numbers_are_refused_in_words(amal: httpx.Client, odd: str) -> None:
    run, _ = new_run(amal)
    for field in ("timestamp", "step", "value"):
        good = {"timestamp": "1", "step": "1", "value": "1.5", field: odd}
        body = ", ".join(f'"{key}": {value}' for key, value in good.items())
        text = f'{{"run_id": "{run}", "key": "k", {body}}}'
        got = amal.post("/api/2.0/mlflow/runs/log-metric", content=text, headers={"content-type": "application/json"})
        assert got.status_code in (400, 200), (field, odd, got.text)
        assert amal.get("/api/2.0/mlflow/runs/get", params={"run_id": run}).status_code == 200
    for page in (odd.strip('"'), "-1", "0"):
        got = amal.get(
            "/api/2.0/mlflow/metrics/get-history", params={"run_id": run, "metric_key": "k", "max_results": page}
        )
        assert got.status_code in (400, 200), (page, got.text)


def test_queries_are_read_strictly(amal: httpx.Client) -> None:
    run, _ = new_run(amal)
    assert amal.get(f"/api/2.0/mlflow/runs/get?run_id={run}").status_code == 200
    for query in (
        f"run_id={run}&run_id={run}",
        "run_id=%ff",
        "&".join(f"a{n}=1" for n in range(1200)),
        f"run_id={run}%00",
    ):
        assert amal.get(f"/api/2.0/mlflow/runs/get?{query}").status_code in (400, 404), query[:40]


def test_tags_of_ours_are_not_a_client_s_to_set(amal: httpx.Client) -> None:
    # CVE-2024-3573 and 2026-2614: tags that switch a check off.
    ask(amal, "POST", "/api/2.0/mlflow/registered-models/create", name="tagged")
    for key in model_registry.RESERVED_TAGS:
        got = ask(amal, "POST", "/api/2.0/mlflow/registered-models/set-tag", name="tagged", key=key, value="model:x/y")
        assert got.status_code == 400
        body = {"name": f"tagged-{key}", "tags": [{"key": key, "value": "model:main/scorer"}]}
        assert ask(amal, "POST", "/api/2.0/mlflow/registered-models/create", **body).status_code == 400


def test_every_answer_comes_down_to_verbs() -> None:
    """Nothing of the facade opens a file, a socket or a model: its modules import nothing that could."""
    forbidden = {
        "os",
        "io",
        "pathlib",
        "socket",
        "subprocess",
        "pickle",
        "httpx",
        "urllib.request",
        "shutil",
        "tempfile",
    }
    for module in (artifacts, experiments, logged_models, model_registry, runs, traces):
        names = {getattr(value, "__name__", "") for value in vars(module).values()}
        assert not names & forbidden, module
        text = Path(str(module.__file__)).read_text()
        assert "open(" not in text.replace("_open(", "").replace(".open(", ""), module
    assert json.loads(json.dumps([one.action for one in ENDPOINTS]))
