"""The chapters of watching: a flow from data to endpoint, a world that changes, and a model that breaks."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
from rich.markup import escape

from falaj.demo.access_chapters import DemoChapter
from falaj.demo.job_chapters import wait_until
from falaj.demo.stage import DemoStage
from falaj.serve.endpoint_client import EndpointClient

ENDPOINT_REF, DATASET_REF, RETRAIN_FLOW = "endpoint:fraud/cards", "dataset:fraud/cards", "flow:fraud/retrain"
COLUMN_NAMES = ("amount", "hour", "distance_km", "age_days", "shops")
ROW_COUNT, ROWS_PER_REQUEST = 4000, 20
WATCH_OPTIONS = {
    "every_s": "3",
    "least_rows": "300",
    "retrain": RETRAIN_FLOW,
    "rollback": "true",
    "cool_s": "600",
}
REPLICA_NEEDS = {"cpus": 0.25, "memory": "256MiB"}
FLOW_SCRIPT = f'''"""From labelled rows to a model in service: `first` once, `retrain` whenever a verdict asks for it."""
import numpy as np

from falaj import flow, step
from falaj.core.flow_definition import Dataset, Model

SMALL = {{"cpus": 0.5, "memory": "512MiB", "retries": 1}}


@step(outputs={{"model": "model:fraud/cards"}}, **SMALL)
def train(data: Dataset):
    """Three quarters of the rows to learn from, the others to be measured on; the model brings its own profile."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from falaj.train.estimators import fit_estimator

    made = fit_estimator(make_pipeline(StandardScaler(), LogisticRegression()), data, target="fraud", valid=0.25)
    return {{"accuracy": made.metrics["accuracy"]}}


@step(**SMALL)
def validate(data: Dataset, champion: Model, challenger: Model):
    """Both on the same newest rows; right however often one looks."""
    import onnxruntime

    from falaj.drift.paired_test import judge_challenger
    from falaj.train.estimators import read_rows

    rows = read_rows(data, "fraud")
    x, truth = np.asarray(rows.x)[-1000:], np.asarray(rows.y)[-1000:]
    said = [onnxruntime.InferenceSession(one / "model.onnx").run(None, {{"X": x}})[1][:, 1] for one in (champion, challenger)]
    found = judge_challenger(*said, truth)
    return {{"better": found.passes, "why": found.why}}


@flow("fraud/first", params={{"data": "{DATASET_REF}"}})
def first(data):
    """Train, let through the gate, deploy."""
    made = train(data)
    passed = flow.verb("catalog.promote", name=made["model"], stage="staging", reason="the first one")
    with flow.after(passed):
        flow.verb("serve.add", endpoint="{ENDPOINT_REF}", model=made["model"], plan={{"needs": {REPLICA_NEEDS!r}, "rules": {{"tell_s": 2.0}}}})


@flow("fraud/retrain", params={{"data": "{DATASET_REF}", "model": "model:fraud/cards"}})
def retrain(data, model, endpoint="{ENDPOINT_REF}", cause="", since=0.0):
    """Train on the newest data, compare with the model in service, and give half of the traffic to what is better."""
    made = train(data)
    judged = validate(data, model, made["model"])
    with flow.when(judged["better"]):
        passed = flow.verb("catalog.promote", name=made["model"], stage="staging", reason=judged["why"])
        with flow.after(passed):
            trial = {{"kind": "canary", "share": 0.5, "judge": True, "plan": {{"settle_s": 0}}}}
            flow.verb("serve.add", endpoint=endpoint, model=made["model"], plan={{"trial": trial}})
'''  # noqa: E501


def run_pipeline(stage: DemoStage) -> str:
    """A Python file of steps, as jobs."""
    if find_spec("sklearn") is None or find_spec("onnxruntime") is None:
        stage.say("[yellow]left out: pip install 'falaj\\[optimize,serve,train]', then tell it again[/yellow]")
        return "left out: no scikit-learn"
    amal, flow_file = stage.as_("amal", "fraud"), stage.home / "cards" / "cards_flow.py"
    flow_file.parent.mkdir()
    flow_file.write_text(FLOW_SCRIPT)
    _publish_cards(stage, amal, "calm", changed=False)
    for name in ("retrain", "first"):
        saved_flow = amal.flows.save(str(flow_file), name=name)
        stage.say(f"[bold]{saved_flow.ref}[/bold]: {escape(saved_flow.steps)}")
    stage.made["flow"] = True
    _follow_run(stage, amal, amal.flows.start("flow:fraud/first").ref)
    stage.made["watched"] = ENDPOINT_REF
    wait_until(
        lambda: amal.serve.show(ENDPOINT_REF),
        lambda endpoint_view: endpoint_view.state == "ready" and endpoint_view.url,
    )
    return "from rows to an endpoint: 3 steps, each a job or a verb of amal's"


def show_drift(stage: DemoStage) -> str:
    """Calm windows, then other ones; an alert, a verdict, one retraining, a canary, a promotion."""
    if "watched" not in stage.made:
        return "left out: no endpoint"
    amal = stage.as_("amal", "fraud")
    amal.monitor.add(ENDPOINT_REF, more=WATCH_OPTIONS)
    stage.say("watched against what its training left with the model; on drift, [bold]flow:fraud/retrain[/bold], once")
    with _generate_traffic(stage, amal) as traffic:
        calm_view = wait_until(lambda: amal.monitor.show(ENDPOINT_REF), lambda item: item.windows >= 2)
        stage.say(
            f"{calm_view.windows} windows of live traffic, {calm_view.alarms} alarms: [green]{calm_view.state}[/green]"
        )
        _publish_cards(stage, amal, "eid", changed=True)
        traffic.changed = True
        stage.say("the week of Eid: people spend more, later, and further from home; fraud hides elsewhere")
        alarmed_view = wait_until(
            lambda: amal.monitor.show(ENDPOINT_REF), lambda item: any(v.action == "retrain" for v in item.verdicts)
        )
        for line in amal.monitor.report(ENDPOINT_REF, since="1h").lines[:14]:
            stage.say(f"[cyan]{escape(line)}[/cyan]")
        verdict = next(item for item in alarmed_view.verdicts if item.action == "retrain")
        stage.say(f"verdict: [bold]{verdict.action}[/bold], because of {', '.join(_list_columns(verdict))}")
        flow_run = wait_until(lambda: amal.flows.runs(flow=RETRAIN_FLOW).runs, bool)[0]
        _follow_run(stage, amal, flow_run.ref)
        final_view = wait_until(
            lambda: amal.monitor.show(ENDPOINT_REF), lambda item: item.state not in ("suspect", "confirmed", "acting")
        )
    verdict = next(item for item in final_view.verdicts if item.action == "retrain")
    runs = amal.flows.runs(flow=RETRAIN_FLOW).runs
    stage.say(
        f"{escape(verdict.outcome)}; {len(runs)} retraining for one cause, and now [green]{final_view.state}[/green]"
    )
    for item in amal.monitor.incidents(project="fraud"):
        stage.say(f"[dim]{item.ref} {item.state}: {escape(item.said[:150])}[/dim]")
    return f"drift found, {len(runs)} retraining, {verdict.outcome}"


def show_breakage(stage: DemoStage) -> str:
    """A revision that answers no number goes by itself."""
    if "watched" not in stage.made:
        return "left out: no endpoint"
    amal = stage.as_("amal", "fraud")
    with _generate_traffic(stage, amal):
        traffic_before = dict(amal.serve.show(ENDPOINT_REF).traffic)
        broken_model = _publish_nan_model(stage, amal)
        started_at = time.monotonic()
        amal.serve.deploy(ENDPOINT_REF, broken_model, wait=True)
        stage.say(f"{broken_model} passes its gate, and answers NaN to whatever it is asked")
        view = wait_until(lambda: amal.monitor.show(ENDPOINT_REF), lambda item: item.state == "frozen")
        wait_until(lambda: dict(amal.serve.show(ENDPOINT_REF).traffic), lambda item: item == traffic_before)
        duration_s = time.monotonic() - started_at
    verdict = next(item for item in view.verdicts if item.action == "rollback")
    stage.say(f"verdict: [bold]rollback[/bold], {escape(verdict.evidence[0].said)}; {escape(verdict.outcome)}")
    incident = next(item for item in amal.monitor.incidents(project="fraud") if item.what == "breakage")
    stage.say(f"[dim]{incident.ref} {incident.state}: {escape(incident.said[:150])}[/dim]")
    amal.monitor.resolve(incident.ref, cause="a logarithm of a negative number")
    amal.serve.stop(ENDPOINT_REF)
    return f"back by itself {duration_s:.0f} s after it was deployed, frozen until people look"


def _list_columns(verdict: Any) -> list[str]:
    return sorted({evidence.column for evidence in verdict.evidence if evidence.what == "input"})


class _TrafficThread(threading.Thread):
    """Cards that are used all the time."""

    def __init__(self, stage: DemoStage, amal: Any) -> None:
        super().__init__(daemon=True)
        self.changed = False
        self._caller = EndpointClient(amal, amal.serve.url(ENDPOINT_REF).url, token=stage.token("amal"))
        self._stop_event = threading.Event()

    def run(self) -> None:
        """Until it is over."""
        seed = 1000
        with httpx.Client(headers=self._caller.headers, timeout=30, trust_env=False) as http_client:
            while not self._stop_event.wait(0.002):
                seed += 1
                x, _ = _make_transactions(ROWS_PER_REQUEST, seed, changed=self.changed)
                tensor = {"name": "X", "datatype": "FP64", "shape": [*x.shape], "data": x.ravel().tolist()}
                with suppress(httpx.HTTPError):  # a switch of gateways is not what this chapter is about
                    http_client.post(f"{self._caller.url}/infer", json={"inputs": [tensor]})

    def stop(self) -> None:
        """The end of it."""
        self._stop_event.set()
        self.join(30)


@contextmanager
def _generate_traffic(stage: DemoStage, amal: Any) -> Iterator[_TrafficThread]:
    traffic = _TrafficThread(stage, amal)
    traffic.start()
    try:
        yield traffic
    finally:
        traffic.stop()


def _follow_run(stage: DemoStage, amal: Any, run_ref: Any) -> Any:
    """A run to its end, told step by step."""
    shown_steps: set[str] = set()
    while True:
        flow_run = amal.flows.look(run_ref)
        for flow_step in flow_run.steps:
            if flow_step.state in ("succeeded", "skipped", "failed") and flow_step.name not in shown_steps:
                colour = "green" if flow_step.state == "succeeded" else "yellow"
                stage.say(
                    f"{flow_step.name:16} [{colour}]{flow_step.state}[/{colour}] "
                    f"{escape(_format_step(flow_step)[:100])}"
                )
                shown_steps.add(flow_step.name)
        if flow_run.over:
            return flow_run
        time.sleep(0.1)


def _format_step(step: Any) -> str:
    """What a step gave, in short."""
    output_names = ("accuracy", "better", "model", "why", "state", "traffic")
    return ", ".join(f"{name}={step.outputs[name]}" for name in output_names if name in step.outputs) or step.note


def _make_transactions(rows: int, seed: int, *, changed: bool) -> tuple[Any, Any]:
    """Uses of cards, and which were fraud. After the change they lie elsewhere, and so does fraud."""
    import numpy as np

    generator = np.random.default_rng(seed)
    amount, hour = generator.lognormal(4, 0.8, rows), generator.normal(14, 4, rows)
    distance, age, shops = (
        generator.exponential(8, rows),
        generator.uniform(1, 2000, rows),
        generator.poisson(2, rows).astype(float),
    )
    if changed:
        amount, hour, distance = amount * 2.2, hour + 5, distance * 2.5
        risk = 0.02 * (distance - 20) - 0.6 * (shops - 2) - 0.1 * (hour - 19)
    else:
        risk = 0.01 * (amount - 70) + 0.6 * (shops - 2) - 0.1 * (hour - 14)
    x = np.stack([amount, hour, distance, age, shops], axis=1)
    return x, (risk + generator.normal(0, 0.4, rows) > 0.8).astype(int)


def _publish_cards(stage: DemoStage, amal: Any, name: str, *, changed: bool) -> None:
    import numpy as np

    folder = stage.home / "cards" / name
    folder.mkdir()
    x, fraud = _make_transactions(ROW_COUNT, 7, changed=changed)
    head = ",".join((*COLUMN_NAMES, "fraud"))
    np.savetxt(folder / "cards.csv", np.column_stack([x, fraud]), "%.6g", ",", header=head, comments="")
    published = amal.catalog.publish(DATASET_REF, str(folder), label="AE-PDPL,sensitive,purpose=fraud")
    stage.say(f"[bold]{published.ref}[/bold]: {ROW_COUNT:,} uses of cards, {fraud.mean():.0%} of them fraud")


def _publish_nan_model(stage: DemoStage, amal: Any) -> str:
    """Takes the logarithm of what may be negative."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Neg", ["X"], ["less"]),
        helper.make_node("Abs", ["less"], ["size"]),
        helper.make_node("Neg", ["size"], ["below"]),
        helper.make_node("Log", ["below"], ["none"]),
        helper.make_node("ReduceMean", ["none"], ["probabilities"], axes=[1], keepdims=1),
    ]
    value_infos = [
        helper.make_tensor_value_info(tensor_name, TensorProto.FLOAT, ["rows", width])
        for tensor_name, width in (("X", len(COLUMN_NAMES)), ("probabilities", 1))
    ]
    graph = helper.make_graph(nodes, "broken", value_infos[:1], value_infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = Path(stage.home, "nan")
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    version_ref = str(amal.catalog.publish("model:fraud/cards", str(folder), inputs={"data": DATASET_REF}).ref)
    amal.catalog.promote(version_ref, "staging", reason="to be tried")
    return version_ref


CHAPTERS = [
    DemoChapter("A flow", "A Python file of steps, each a job or a verb; killed anywhere, it goes on.", run_pipeline),
    DemoChapter(
        "The world changes", "Found where it is served, at bounded cost; answered once, in the open.", show_drift
    ),
    DemoChapter("A broken model", "What breaks goes back at once; statistics are for what may wait.", show_breakage),
]
