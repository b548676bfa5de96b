"""The chapters of versions: a dataset by its changes, a model with its story, other eyes, an MLflow client."""

import json
import random
import shutil
import subprocess  # nosec B404
import sys
from pathlib import Path
from typing import Any

import httpx

from falaj.demo.access_chapters import DemoChapter
from falaj.demo.stage import DemoStage

DATASET_REF, MODEL_REF = "dataset:fraud/transactions", "model:fraud/scorer"
DATA_LABEL = "AE-PDPL,sensitive,purpose=fraud"
TRAIN_SCRIPT = '''"""A fraud score in pure Python: logistic regression by gradient descent, deterministic."""
import csv, json, math, os
from pathlib import Path

rows = []
for file in sorted(Path(os.environ["FALAJ_INPUT_DATA"]).glob("*.csv")):
    rows += [(float(r["amount"]) / 1000, float(r["night"]), int(r["fraud"])) for r in csv.DictReader(file.open())]
steps = int(os.environ.get("FALAJ_PARAM_STEPS", "40"))
w = [0.0, 0.0, 0.0]
for _ in range(steps):
    slope = [0.0, 0.0, 0.0]
    for amount, night, fraud in rows:
        miss = 1 / (1 + math.exp(-(w[0] * amount + w[1] * night + w[2]))) - fraud
        slope = [slope[0] + miss * amount, slope[1] + miss * night, slope[2] + miss]
    w = [a - 4 * b / len(rows) for a, b in zip(w, slope)]
right = sum((w[0] * a + w[1] * n + w[2] > 0) == bool(f) for a, n, f in rows)
out = Path(os.environ["FALAJ_OUTPUT"])
(out / "model.json").write_text(json.dumps({"weights": w, "inputs": ["amount", "night"]}))
print(right / len(rows))
'''


def publish_dataset(stage: DemoStage) -> str:
    """A folder, then a small change of it."""
    amal, folder = stage.as_("amal", "fraud"), stage.home / "transactions"
    _write_days(folder, range(200))
    first = amal.catalog.publish(DATASET_REF, str(folder), label=DATA_LABEL, message="200 days")
    stage.say(f"amal publishes {first.num_files} files, {first.size_bytes:,} bytes → [bold]{first.ref}[/bold]")
    _write_days(folder, (7, 8), seed=1)
    second = amal.catalog.publish(DATASET_REF, str(folder), message="two days corrected")
    stage.say(
        f"two files change → [bold]{second.ref}[/bold]: {second.new_bytes:,} new bytes, {second.kept_files} not read"
    )
    unchanged = amal.catalog.publish(DATASET_REF, str(folder))
    stage.say(f"nothing changes → still {unchanged.ref}, in {unchanged.seconds:.2f} s")
    diff = amal.catalog.diff(first.ref, second.ref)
    stage.say("diff: " + ", ".join(f"{file.how} {file.path}" for file in diff.files))
    restored = amal.catalog.checkout(first.ref, str(stage.home / "as-it-was"))
    stage.say(f"the first version comes back: {restored.num_files} files, every byte checked")
    stage.made["data"] = second.ref
    return f"{second.new_bytes:,} bytes for the second version"


def train_and_reproduce(stage: DemoStage) -> str:
    """Train, publish with everything it is made of, and make it again."""
    amal = stage.as_("amal", "fraud")
    first = _train_and_publish(stage, amal, steps=40)
    provenance_text = amal.catalog.provenance(str(first))
    for line in provenance_text.splitlines()[:12]:
        stage.say(f"[dim]{line}[/dim]")
    reproduction = amal.catalog.reproduce(str(first))
    outcome = "the same bytes" if reproduction.ok else "NOT the same"
    stage.say(f"falaj reproduce {first}: data, code and parameters fetched, run again → [green]{outcome}[/green]")
    stage.made["model"] = first
    return f"{first}, signed, {outcome} again"


def promote_model(stage: DemoStage) -> str:
    """Evidence and other eyes before production; one command to go back."""
    amal, badr = stage.as_("amal", "fraud"), stage.as_("badr", "fraud")
    gate_rules = ("accuracy >= current", "signature", "1 approvals")
    stage.as_("salem").catalog.require("gate:fraud/production", gate_rules)
    for version in (stage.made["model"], _train_and_publish(stage, amal, steps=400)):
        promotion = amal.catalog.promote(str(version), "production", reason="better on the same data")
        stage.say(
            f"amal promotes {version}: {promotion.state}; {len(promotion.evidence)} pieces of evidence, {promotion.why}"
        )
        badr.approvals.give(str(promotion.approval), promotion.digest)
        result = amal.catalog.promote(str(version), "production")
        stage.say(f"badr approves exactly {promotion.digest[:20]}…: [green]{result.state}[/green]")
    rollback = amal.catalog.rollback(MODEL_REF, reason="complaints from customers")
    stage.say(f"one command back: production is {rollback.ref} again")
    for alias_move in amal.catalog.history(f"{MODEL_REF}@production"):
        stage.say(
            f"[dim]{alias_move.how:9} {alias_move.ref}  by {alias_move.by}  approved "
            f"by {', '.join(alias_move.approved_by) or '-'}[/dim]"
        )
    return "two promotions, one rollback, all on record"


def track_with_mlflow(stage: DemoStage) -> str:
    """What an MLflow client says, word for word."""
    amal = stage.as_("amal", "fraud")
    with httpx.Client(base_url=f"{stage.url}/api/2.0/mlflow", headers=stage.header("amal"), trust_env=False) as mlflow:
        experiment = _call_mlflow(mlflow, "experiments/create", name="fraud/scorer")
        for rate in (0.1, 0.5):
            run = _call_mlflow(mlflow, "runs/create", experiment_id=experiment["experiment_id"])["run"]["info"][
                "run_id"
            ]
            _call_mlflow(mlflow, "runs/log-parameter", run_id=run, key="rate", value=str(rate))
            points = [_build_point(step, 2.0 ** (-rate * step / 10)) for step in range(100)]
            _call_mlflow(mlflow, "runs/log-batch", run_id=run, metrics=points)
            _call_mlflow(mlflow, "runs/update", run_id=run, status="FINISHED", end_time=2000)
    stage.say("MLFLOW_TRACKING_URI and MLFLOW_TRACKING_TOKEN point at Falaj; nothing else changes")
    run_page = amal.track.list(project="fraud", where="metrics.loss < 0.6", order=("metrics.loss ASC",))
    for run in run_page.runs:
        stage.say(f"run {run.ref.name[:8]}…  rate {run.params['rate']}  loss {run.metrics['loss'].value:.4f}")
    return f"{len(run_page.runs)} runs by MLflow's own protocol"


def _write_days(folder: Path, days: Any, seed: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    for day in days:
        generator = random.Random(f"{seed}/{day}")  # noqa: S311 # nosec B311 - made-up data
        lines = ["amount,night,fraud"]
        for _ in range(20):
            amount, night = generator.randrange(10, 4000), generator.randrange(2)
            lines.append(f"{amount},{night},{int(amount / 1000 + night > 3.2)}")
        (folder / f"day-{day:03}.csv").write_text("\n".join(lines) + "\n")


def _train_and_publish(stage: DemoStage, amal: Any, steps: int) -> Any:
    """As a data scientist would: a script, its output, and one publish that says what it was made from."""
    code, output_folder = stage.home / "code", stage.home / f"out-{steps}"
    shutil.rmtree(output_folder, ignore_errors=True)
    code.mkdir(exist_ok=True)
    output_folder.mkdir()
    (code / "train.py").write_text(TRAIN_SCRIPT)
    data = stage.home / "transactions"
    env = {"FALAJ_INPUT_DATA": str(data), "FALAJ_OUTPUT": str(output_folder), "FALAJ_PARAM_STEPS": str(steps)}
    completed = subprocess.run(  # nosec B603
        [sys.executable, "train.py"], cwd=code, env=env, capture_output=True, text=True, check=True
    )
    accuracy = float(completed.stdout)
    published = amal.catalog.publish(
        MODEL_REF,
        str(output_folder),
        inputs={"data": stage.made["data"]},
        code=str(code),
        command="python train.py",
        params={"steps": str(steps)},
        metrics={"accuracy": accuracy},
    )
    stage.say(f"trained for {steps} steps: accuracy {accuracy:.3f} → [bold]{published.ref}[/bold]")
    return published.ref


def _call_mlflow(mlflow: httpx.Client, path: str, **fields: Any) -> Any:
    return mlflow.post(f"/{path}", content=json.dumps(fields), headers={"content-type": "application/json"}).json()


def _build_point(step: int, value: float) -> dict[str, Any]:
    return {"key": "loss", "value": value, "timestamp": 1000 + step, "step": step}


CHAPTERS = [
    DemoChapter(
        "A dataset by its changes", "Immutable versions; only what is new is read, sent and stored.", publish_dataset
    ),
    DemoChapter(
        "A model with its story",
        "Data, code, parameters, packages, people: enough to make it again.",
        train_and_reproduce,
    ),
    DemoChapter(
        "Other eyes before production",
        "Evidence first, then people, then one record of what was live when.",
        promote_model,
    ),
    DemoChapter(
        "MLflow clients speak to it", "The experiments people have already, under the same guard.", track_with_mlflow
    ),
]
