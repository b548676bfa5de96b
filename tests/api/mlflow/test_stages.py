"""Stages through MLflow's own calls: the gate, the people it asks for, and what a client is told meanwhile."""

import httpx
import pytest

from tests.api.mlflow.conftest import Place

BASE = "/api/2.0/mlflow"
ROOT = "/api/2.0/mlflow-artifacts/artifacts"


@pytest.fixture
def version(place: Place) -> str:
    """A version of safe files, made as a client makes one; its number."""
    headers = {"authorization": f"Bearer {place.tokens['amal']}"}
    with httpx.Client(base_url=place.url, headers=headers, trust_env=False, timeout=30) as amal:
        run = amal.post(f"{BASE}/runs/create", json={"experiment_id": "0"}).json()["run"]["info"]
        at = run["artifact_uri"].removeprefix("mlflow-artifacts:/")
        head = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        body = len(head).to_bytes(8, "little") + head + b"\0\0\0\0"
        assert amal.put(f"{ROOT}/{at}/model/model.safetensors", content=body).status_code == 200
        amal.post(f"{BASE}/registered-models/create", json={"name": "safe"})
        source = {"name": "safe", "source": f"runs:/{run['run_id']}/model", "run_id": run["run_id"]}
        made = amal.post(f"{BASE}/model-versions/create", json=source)
        assert made.status_code == 200, made.text
        number: str = made.json()["model_version"]["version"]
        return number


def test_a_stage_waits_for_people_and_says_for_whom(place: Place, version: str) -> None:
    headers = {"authorization": f"Bearer {place.tokens['amal']}"}
    with httpx.Client(base_url=place.url, headers=headers, trust_env=False, timeout=30) as amal:
        wish = {"name": "safe", "version": version, "stage": "Production"}
        got = amal.post(f"{BASE}/model-versions/transition-stage", json=wish)
        assert (got.status_code, got.json()["error_code"]) == (403, "PERMISSION_DENIED")
        assert "waits for 1 more person" in got.json()["message"]
        shown = amal.get(f"{BASE}/model-versions/get", params={"name": "safe", "version": version})
        assert shown.json()["model_version"]["current_stage"] == "None"
        alias = amal.post(
            f"{BASE}/registered-models/alias", json={"name": "safe", "alias": "production", "version": version}
        )
        assert alias.status_code == 403
        got = amal.post(f"{BASE}/model-versions/transition-stage", json={**wish, "stage": "Nowhere"})
        assert got.status_code == 400
        asked = place.replica.as_(place.tokens["amal"]).catalog.judge(f"model:main/safe@v{version}", "production")
        place.replica.as_(place.tokens["badr"]).approvals.give(asked.approval, asked.digest)
        got = amal.post(f"{BASE}/model-versions/transition-stage", json=wish)
        assert (got.status_code, got.json()["model_version"]["current_stage"]) == (200, "Production"), got.text


def test_who_may_not_erase_deletes_no_version(place: Place, version: str) -> None:
    headers = {"authorization": f"Bearer {place.tokens['mona']}"}
    with httpx.Client(base_url=place.url, headers=headers, trust_env=False, timeout=30) as mona:
        asked = {"name": "safe", "version": version}
        got = mona.request("DELETE", f"{BASE}/model-versions/delete", json=asked)
        assert (got.status_code, got.json()["error_code"]) == (403, "PERMISSION_DENIED")
        assert mona.get(f"{BASE}/model-versions/get", params=asked).status_code == 200


def test_files_of_a_version_are_read_from_the_catalog(place: Place, version: str) -> None:
    headers = {"authorization": f"Bearer {place.tokens['amal']}"}
    with httpx.Client(base_url=place.url, headers=headers, trust_env=False, timeout=30) as amal:
        asked = {"name": "safe", "version": version}
        uri = amal.get(f"{BASE}/model-versions/get-download-uri", params=asked).json()["artifact_uri"]
        at = uri.removeprefix("mlflow-artifacts:/")
        assert at == f"registry/main/safe/v{version}"
        files = amal.get(ROOT, params={"path": at}).json()["files"]
        assert [(one["path"], one["is_dir"]) for one in files] == [("model.safetensors", False)]
        assert amal.get(f"{ROOT}/{at}/model.safetensors").content.endswith(b"\0\0\0\0")
        assert amal.get(f"{ROOT}/{at}/none").status_code == 404
        assert amal.put(f"{ROOT}/{at}/new", content=b"x").status_code == 400
        assert amal.delete(f"{ROOT}/{at}/model.safetensors").status_code == 400
    with httpx.Client(
        base_url=place.url, headers={"authorization": f"Bearer {place.tokens['sara']}"}, trust_env=False
    ) as sara:
        assert sara.get(f"{ROOT}/{at}/model.safetensors").status_code == 404
