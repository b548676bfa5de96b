"""Drift is found in live traffic and answered with one new model, though the platform is killed on the way."""

import http.client
import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from falaj.drift.profiles import build_profile, encode_profile
from falaj.drift.records import PROFILE_FILE
from tests.infer.models import _Kit
from tests.jobs.lab import until
from tests.stories.serving_ground import SCORE, SMALL, up

RETRAIN = Path(__file__).parents[2] / "examples" / "retrain_flow.py"
WIDE, ROWS = 6, 50
WEIGHTS = np.array([1.5, 1.0, 0, 0, 0, 0], np.float32)
PLAN = {
    "every_s": "5", "least_rows": "300", "retrain": "flow:fraud/retrain", "rollback": "true", "cool_s": "600",
    "params": json.dumps({"canary": "0"}),
}  # fmt: skip


def world(rows: int, seed: int, *, drifted: bool) -> tuple[Any, Any]:
    """Rows, and what is true of them. Drifted, two columns lie elsewhere, and another rule holds."""
    x = np.random.default_rng(seed).normal(size=(rows, WIDE)).astype(np.float32)
    if drifted:
        x[:, 0] += 2.0
        x[:, 2] -= 1.5
        return x, (x[:, 0] - 2.0 - x[:, 1] > 0).astype(np.int64)
    return x, (x @ WEIGHTS > 0).astype(np.int64)


def champion(folder: Path) -> Path:
    """A model that is right about the old world, with the profile of that: input `x` [-1, 6], output `y` [-1, 1]."""
    kit = _Kit(1)
    logit = kit.add("MatMul", "x", kit._keep(4 * WEIGHTS.reshape(-1, 1)))
    kit.add("Sigmoid", logit, out="y")
    kit.save(folder, [("x", "FP32", ("batch", WIDE))], [("y", "FP32", ("batch", 1))])
    x, truth = world(20_000, 1, drifted=False)
    columns = {f"x[{at}]": x[:, at] for at in range(WIDE)}
    score = 1 / (1 + np.exp(-4 * (x @ WEIGHTS)))
    tensors = {"x": tuple(columns), "y": ("y",)}
    made = build_profile(columns, predictions={"y": score}, label=truth, label_name="target", tensors=tensors)
    (folder / PROFILE_FILE).write_bytes(encode_profile(made))
    return folder


def table(folder: Path, *, drifted: bool) -> Path:
    folder.mkdir(parents=True)
    x, truth = world(6_000, 2, drifted=drifted)
    head = ",".join([*(f"x{at}" for at in range(WIDE)), "target"])
    np.savetxt(folder / "rows.csv", np.column_stack([x, truth]), delimiter=",", header=head, comments="", fmt="%.6g")
    return folder


def answers(door: str) -> bool:
    """A gateway that comes after another listens elsewhere, and says so a moment later."""
    place = urlsplit(door)
    with suppress(OSError), socket.create_connection((str(place.hostname), place.port or 0), 5):
        return True
    return False


class Traffic(threading.Thread):
    """Asks all the time, wherever the endpoint is; what cannot be answered just now is asked again."""

    def __init__(self, door: str, token: str) -> None:
        super().__init__(daemon=True)
        self.door, self._token = door, token
        self.drifted = False
        self.answered: dict[str, int] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        seed = 100
        while not self._ended.wait(0.05):
            seed += 1
            x, _ = world(ROWS, seed, drifted=self.drifted)
            try:
                self._ask(x)
            except (OSError, http.client.HTTPException):
                self._ended.wait(0.2)

    def _ask(self, x: Any) -> None:
        place = urlsplit(self.door)
        line = http.client.HTTPConnection(str(place.hostname), place.port, timeout=10)
        row = {"name": "x", "datatype": "FP32", "shape": [ROWS, WIDE], "data": x.ravel().tolist()}
        try:
            line.request("POST", place.path, json.dumps({"inputs": [row]}), {"Authorization": f"Bearer {self._token}"})
            answer = line.getresponse()
            answer.read()
        finally:
            line.close()
        if answer.status == 200:
            revision = answer.headers["falaj-revision"]
            self.answered[revision] = self.answered.get(revision, 0) + 1

    def stop(self) -> None:
        self._ended.set()
        self.join(30)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_drift_to_retrain_once(tmp_path: Path) -> None:
    with up(tmp_path) as process:
        there = process.there
        here = there.here
        here.catalog.publish("dataset:fraud/transactions", str(table(tmp_path / "old", drifted=False)))
        model = here.catalog.publish("model:fraud/scorer", str(champion(tmp_path / "champion"))).ref
        here.flows.save(str(RETRAIN))
        here.serve.deploy(SCORE, model, tell_s=1.0, **SMALL)
        there.until(lambda view: view.state == "ready")
        here.monitor.add(SCORE, more=PLAN)
        traffic = Traffic(until(there.door, answers), there.token)
        traffic.start()
        try:
            calm = until(lambda: here.monitor.show(SCORE), lambda one: one.windows >= 1)
            assert (calm.state, calm.alarms, calm.verdicts) == ("ok", 0, ())

            here.catalog.publish("dataset:fraud/transactions", str(table(tmp_path / "new", drifted=True)))
            traffic.drifted = True
            until(lambda: here.monitor.verdicts(SCORE), lambda found: any(one.action == "retrain" for one in found))
            process.kill()  # the verdict is durable; whether its flow has begun, nobody knows
            there = process.start()
            here = there.here
            traffic.door = until(there.door, answers)
            view = until(lambda: here.monitor.show(SCORE), lambda one: one.state == "cooling")
            retrain = next(one for one in view.verdicts if one.action == "retrain")
            assert (retrain.state, retrain.outcome) == ("done", "revision 2 promoted"), retrain
            assert {one.column for one in retrain.evidence if one.what == "input"} >= {"x[0]", "x[2]"}
            alert = next(one for one in view.verdicts if one.action == "alert")
            assert (alert.cause, alert.what) == (retrain.cause, "drift")

            before = traffic.answered.get("2", 0)
            until(lambda: traffic.answered.get("2", 0), lambda count: count > before + 20)
            until(lambda: here.monitor.show(SCORE), lambda one: one.last is not None and one.last.revision == 2)
            runs = here.flows.runs(flow="flow:fraud/retrain").runs
            assert [(one.state, one.cause) for one in runs] == [("succeeded", retrain.id)], "one run, and no more"
            assert sum(one.action == "retrain" for one in here.monitor.verdicts(SCORE)) == 1
            incidents = here.monitor.incidents(project="fraud")
            assert [(one.state, one.what) for one in incidents] == [("resolved", "drift")]
        finally:
            traffic.stop()
