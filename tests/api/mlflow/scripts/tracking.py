"""The real MLflow client at work on experiments, runs, metrics and artefacts. Prints one JSON line at the end."""

# ruff: noqa: ICN001, PT018, PTH103 - a user's script, not a test module

import json
import math
import os
import tempfile
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag, ViewType
from mlflow.exceptions import MlflowException

client = MlflowClient()
out: dict[str, object] = {}


def code_of(act) -> str:
    try:
        act()
    except MlflowException as error:
        return error.error_code
    return "none"


# Experiments.
assert client.get_experiment("0").name == "Default"
churn = client.create_experiment("fraud/churn", tags={"team": "risk"})
odd_name = "تجربة / عدد 7: größer ‼"
odd = client.create_experiment(odd_name)
assert churn.isdecimal() and odd.isdecimal()
assert code_of(lambda: client.create_experiment("fraud/churn")) == "RESOURCE_ALREADY_EXISTS"
assert code_of(lambda: client.create_experiment("x", artifact_location="file:///etc")) == "INVALID_PARAMETER_VALUE"
assert code_of(lambda: client.get_experiment("424242")) == "RESOURCE_DOES_NOT_EXIST"
assert client.get_experiment_by_name("nowhere") is None
assert client.get_experiment_by_name(odd_name).experiment_id == odd
found = client.get_experiment_by_name("fraud/churn")
assert found.experiment_id == churn and found.tags == {"team": "risk"}, found
assert found.artifact_location == f"mlflow-artifacts:/{churn}"
client.set_experiment_tag(churn, "owner", "amal")
client.delete_experiment_tag(churn, "team")
assert client.get_experiment(churn).tags == {"owner": "amal"}
client.rename_experiment(odd, "plain again")
assert client.get_experiment(odd).name == "plain again"
assert client.get_experiment_by_name(odd_name) is None
again = client.create_experiment(odd_name)
assert again != odd
client.delete_experiment(again)
assert client.get_experiment(again).lifecycle_stage == "deleted"
names = {e.name for e in client.search_experiments()}
# What is in a deleted experiment is deleted with it, and comes back with it.
doomed = client.create_experiment("doomed")
kept, before = (client.create_run(doomed).info.run_id for _ in range(2))
client.delete_run(before)
client.delete_experiment(doomed)
assert code_of(lambda: client.log_metric(kept, "x", 1.0)) == "INVALID_PARAMETER_VALUE"
assert code_of(lambda: client.log_param(kept, "x", 1)) == "INVALID_PARAMETER_VALUE"
assert client.search_runs([doomed]) == []
client.restore_experiment(doomed)
client.log_metric(kept, "x", 1.0)
client.delete_experiment(doomed)
assert {"Default", "fraud/churn", "plain again"} <= names and odd_name not in names, names
assert {e.name for e in client.search_experiments(view_type=ViewType.DELETED_ONLY)} == {odd_name, "doomed"}
client.restore_experiment(again)
assert [e.name for e in client.search_experiments(filter_string="name LIKE 'fraud/%'")] == ["fraud/churn"]
assert [e.name for e in client.search_experiments(filter_string="tags.owner = 'amal'")] == ["fraud/churn"]
page = client.search_experiments(max_results=1, order_by=["name DESC"])
rest = client.search_experiments(max_results=10, order_by=["name DESC"], page_token=page.token)
everyone = [e.name for e in [*page, *rest]]
assert everyone == sorted(everyone, reverse=True) and len(everyone) == 4, everyone

# Runs, nested, with everything in them.
mlflow.set_experiment("fraud/churn")
with mlflow.start_run(run_name="outer", description="the outer one") as outer:
    mlflow.log_params({"lr": 0.1, "depth": 7})
    mlflow.log_metric("loss", 1.0, step=0)
    mlflow.log_metric("loss", 0.5, step=1)
    mlflow.log_metrics({"acc": 0.9, "odd": math.nan, "big": math.inf, "small": -math.inf}, step=3)
    mlflow.set_tag("stage", "test")
    with mlflow.start_run(run_name="inner", nested=True) as inner:
        mlflow.log_metric("loss", 0.25)
        mlflow.log_param("lr", "0.2")
    data = mlflow.data.from_dict({"a": [1, 2]}, name="tiny") if hasattr(mlflow.data, "from_dict") else None
    import pandas

    frame = pandas.DataFrame({"x": [1, 2, 3], "y": [0, 1, 0]})
    mlflow.log_input(mlflow.data.from_pandas(frame, name="frame", targets="y"), context="training")
run = client.get_run(outer.info.run_id)
assert run.info.status == "FINISHED" and run.info.end_time >= run.info.start_time
assert run.info.run_name == "outer" and run.data.tags["mlflow.runName"] == "outer"
assert run.data.tags["mlflow.note.content"] == "the outer one"
assert run.data.params == {"lr": "0.1", "depth": "7"}
assert run.data.metrics["loss"] == 0.5 and math.isnan(run.data.metrics["odd"])
assert run.data.metrics["big"] == math.inf and run.data.metrics["small"] == -math.inf
assert run.info.artifact_uri == f"mlflow-artifacts:/{churn}/{run.info.run_id}/artifacts"
assert run.inputs.dataset_inputs[0].dataset.name == "frame"
assert run.inputs.dataset_inputs[0].tags[0].value == "training"
assert client.get_run(inner.info.run_id).data.tags["mlflow.parentRunId"] == outer.info.run_id
assert code_of(lambda: client.log_param(outer.info.run_id, "lr", "0.9")) == "INVALID_PARAMETER_VALUE"
assert code_of(lambda: client.get_run("f" * 32)) == "RESOURCE_DOES_NOT_EXIST"
client.update_run(outer.info.run_id, status="RUNNING", name="renamed")
assert client.get_run(outer.info.run_id).info.status == "RUNNING"
client.set_terminated(outer.info.run_id, "FAILED")
assert client.get_run(outer.info.run_id).info.run_name == "renamed"
client.set_tag(outer.info.run_id, "mlflow.runName", "named by a tag")
assert client.get_run(outer.info.run_id).info.run_name == "named by a tag"
client.delete_tag(outer.info.run_id, "stage")
assert "stage" not in client.get_run(outer.info.run_id).data.tags
assert code_of(lambda: client.delete_tag(outer.info.run_id, "stage")) == "RESOURCE_DOES_NOT_EXIST"

# Batches, histories, curves of a hundred thousand points.
batch = client.create_run(churn, tags={"kind": "batch"}).info.run_id
client.log_batch(
    batch,
    [Metric(f"m{n}", n / 7, 1_700_000_000_000 + n, n) for n in range(900)],
    [Param("p", "1"), Param("q", "2")],
    [RunTag("t", "v")],
)
got = client.get_run(batch)
assert len(got.data.metrics) == 900 and got.data.params == {"p": "1", "q": "2"} and got.data.tags["t"] == "v"
POINTS = int(os.environ.get("POINTS", "100000"))
for first in range(0, POINTS, 1000):
    points = [Metric("curve", float(n % 97), 1_700_000_000_000 + n, n) for n in range(first, first + 1000)]
    client.log_batch(batch, points, synchronous=True)
history = client.get_metric_history(batch, "curve")
assert len(history) == POINTS and [p.step for p in history[:3]] == [0, 1, 2] and history[-1].step == POINTS - 1
assert client.get_metric_history(batch, "nothing") == []
client.log_metric(batch, "curve", 5.0, timestamp=1_800_000_000_000, step=3)
client.log_metric(batch, "epoch", 5.0, timestamp=0)
client.log_batch(batch, metrics=[Metric("epoch", 6.0, 0, 1)])
assert [(m.timestamp, m.step) for m in client.get_metric_history(batch, "epoch")] == [(0, 0), (0, 1)]
assert client.get_run(batch).data.metrics["curve"] == float((POINTS - 1) % 97)

# Search: filters, orders, pages, deleted ones.
for n in range(25):
    one = client.create_run(churn, run_name=f"search-{n:02d}", tags={"set": "search", "odd": str(n % 2)})
    client.log_batch(
        one.info.run_id, [Metric("score", n / 10, 1_700_000_000_000, 0)], [Param("model", "tree" if n % 3 else "net")]
    )


def ids(where: str, **more) -> list[str]:
    return [r.info.run_name for r in client.search_runs([churn], where, **more)]


assert ids("tags.set = 'search' and metrics.score >= 2.2", order_by=["metrics.score ASC"]) == [
    "search-22",
    "search-23",
    "search-24",
]
assert len(ids("tags.`set` = 'search' AND params.model = 'net'")) == 9
assert len(ids("tags.set = 'search' and params.model != 'net' and attributes.status = 'RUNNING'")) == 16
assert ids("attributes.run_name = 'search-07'") == ["search-07"]
assert (
    ids("tags.mlflow.runName LIKE 'search-1%' and tags.odd = '1'", order_by=["attributes.run_name DESC"])[0]
    == "search-19"
)
assert ids(f"attributes.run_id IN ('{batch}')") == [got.info.run_name]
assert code_of(lambda: ids("metrics.score > 'text'")) == "INVALID_PARAMETER_VALUE"
assert code_of(lambda: ids("drop table runs")) == "INVALID_PARAMETER_VALUE"
walked, token = [], None
while True:
    page = client.search_runs(
        [churn], "tags.set = 'search'", order_by=["metrics.score DESC"], max_results=7, page_token=token
    )
    walked += [r.info.run_name for r in page]
    token = page.token
    if not token:
        break
assert walked == [f"search-{n:02d}" for n in reversed(range(25))], walked
gone = client.search_runs([churn], "attributes.run_name = 'search-00'")[0].info.run_id
client.delete_run(gone)
assert len(ids("tags.set = 'search'")) == 24
assert len(client.search_runs([churn], "tags.set = 'search'", run_view_type=ViewType.DELETED_ONLY)) == 1
assert code_of(lambda: client.log_metric(gone, "x", 1.0)) == "INVALID_PARAMETER_VALUE"
client.restore_run(gone)
frame = mlflow.search_runs(["0", churn], "tags.set = 'search'")
assert len(frame) == 25 and "metrics.score" in frame.columns

# Artefacts, with names of every sort, and a big one.
with tempfile.TemporaryDirectory() as folder:
    tree = Path(folder, "tree")
    files = {
        "plain.txt": b"plain",
        "with space.txt": b"space",
        "unicode-٣-größe.bin": b"\x00\xff",
        "deep/er/and deeper/x.json": b"{}",
        "percent 100%.txt": b"percent",
        "a+b&c=d;e,f'g(h)!.txt": b"signs",
        "empty": b"",
        ".hidden": b"h",
    }
    for name, body in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(body)
    client.log_artifacts(batch, str(tree), "some dir")
    big = Path(folder, "big.bin")
    size = int(os.environ.get("BIG", str(50 << 20)))
    big.write_bytes(os.urandom(1 << 20) * (size >> 20))
    client.log_artifact(batch, str(big))
    client.log_text(batch, "hello", "notes/hello.txt")
    client.log_dict(batch, {"a": 1}, "notes/a.json")
    top = {f.path: (f.is_dir, f.file_size) for f in client.list_artifacts(batch)}
    assert top == {"some dir": (True, None), "big.bin": (False, size), "notes": (True, None)}, top
    assert {f.path for f in client.list_artifacts(batch, "notes")} == {"notes/hello.txt", "notes/a.json"}
    back = Path(client.download_artifacts(batch, "", folder + "/back" if os.makedirs(folder + "/back") is None else ""))
    for name, body in files.items():
        assert (back / "some dir" / name).read_bytes() == body, name
    assert (back / "big.bin").read_bytes() == big.read_bytes()
    assert mlflow.artifacts.load_text(f"runs:/{batch}/notes/hello.txt") == "hello"
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    repository = get_artifact_repository(client.get_run(batch).info.artifact_uri)
    repository.delete_artifacts("big.bin")
    assert "big.bin" not in {f.path for f in client.list_artifacts(batch)}
    repository.delete_artifacts("some dir")
    assert {f.path for f in client.list_artifacts(batch)} == {"notes"}

out |= {"experiment": churn, "run": batch, "outer": outer.info.run_id}
print(json.dumps(out))
