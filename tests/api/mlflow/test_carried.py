"""What MLflow's clients log of a run on PostgreSQL: checked, recorded and durable as on any other store."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.people import enroll, enroll_tenant
from tests.replica import Replica


def ask(server: Replica, token: str, path: str, **body: Any) -> Any:
    """One call of the API; its answer, or what refuses it."""
    head = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    request = urllib.request.Request(f"{server.url}/api/2.0/mlflow/{path}", json.dumps(body).encode(), head)  # noqa: S310 - ours
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - our own server
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return json.load(refused)


def test_batches_with_parameters_are_kept_refused_and_recorded_one_by_one(tmp_path: Path, postgres_url: str) -> None:
    with Replica(tmp_path, {"FALAJ_STORE": postgres_url}) as server:
        boss = enroll_tenant(server.as_(), "bank", "fatima")
        token = enroll(server.as_(boss), "amal", ("ml-engineer",), jurisdiction="AE")
        auditor = enroll(server.as_(boss), "omar", ("auditor",), jurisdiction="AE")
        run = ask(server, token, "runs/create")["run"]["info"]["run_id"]
        for n in range(6):
            points = [{"key": "loss", "value": n, "timestamp": n, "step": n}]
            params = [{"key": f"p{n}", "value": str(n)}, {"key": "same", "value": "x"}]
            assert ask(server, token, "runs/log-batch", run_id=run, metrics=points, params=params) == {}
        assert ask(server, token, "runs/set-tag", run_id=run, key="team", value="risk") == {}
        refused = ask(server, token, "runs/log-parameter", run_id=run, key="same", value="y")
        assert refused["error_code"] == "INVALID_PARAMETER_VALUE"
        assert "cannot become" in refused["message"]
        server.kill()
    with Replica(tmp_path, {"FALAJ_STORE": postgres_url}, first=False) as server:
        shown = server.as_(token).track.list().runs[0]
        assert shown.params == {"same": "x", **{f"p{n}": str(n) for n in range(6)}}
        assert shown.tags["team"] == "risk"
        assert shown.metrics["loss"].value == 5
        logged = [fact for fact in server.as_(auditor).audit.log(verb="track.log").entries if fact.actor == "amal"]
        assert len(logged) == 7
