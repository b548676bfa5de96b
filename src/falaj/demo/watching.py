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

from falaj.demo.ground import Chapter
from falaj.demo.stage import Stage
from falaj.demo.turns import until
from falaj.serve.calling import Caller

ENDPOINT, DATA, RETRAIN = "endpoint:fraud/cards", "dataset:fraud/cards", "flow:fraud/retrain"
COLUMNS = ("amount", "hour", "distance_km", "age_days", "shops")
ROWS, ASKED = 4000, 20
PLAN = {
    "every_s": "3", "least_rows": "300", "retrain": RETRAIN, "rollback": "true", "cool_s": "600",
}  # fmt: skip
SMALL = {"cpus": 0.25, "memory": "256MiB"}
FLOW = f'''"""From labelled rows to a model in service: `first` once, `retrain` whenever a verdict asks for it."""
import numpy as np

from falaj import flow, step
from falaj.core.flow import Dataset, Model

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

    from falaj.drift.paired import judge
    from falaj.train.estimators import read_rows

    rows = read_rows(data, "fraud")
    x, truth = np.asarray(rows.x)[-1000:], np.asarray(rows.y)[-1000:]
    said = [onnxruntime.InferenceSession(one / "model.onnx").run(None, {{"X": x}})[1][:, 1] for one in (champion, challenger)]
    found = judge(*said, truth)
    return {{"better": found.passes, "why": found.why}}


@flow("fraud/first", params={{"data": "{DATA}"}})
def first(data):
    """Train, let through the gate, deploy."""
    made = train(data)
    passed = flow.verb("catalog.promote", name=made["model"], stage="staging", reason="the first one")
    with flow.after(passed):
        flow.verb("serve.add", endpoint="{ENDPOINT}", model=made["model"], plan={{"needs": {SMALL!r}, "rules": {{"tell_s": 2.0}}}})


@flow("fraud/retrain", params={{"data": "{DATA}", "model": "model:fraud/cards"}})
def retrain(data, model, endpoint="{ENDPOINT}", cause="", since=0.0):
    """Train on the newest data, compare with the model in service, and give half of the traffic to what is better."""
    made = train(data)
    judged = validate(data, model, made["model"])
    with flow.when(judged["better"]):
        passed = flow.verb("catalog.promote", name=made["model"], stage="staging", reason=judged["why"])
        with flow.after(passed):
            trial = {{"kind": "canary", "share": 0.5, "judge": True, "plan": {{"settle_s": 0}}}}
            flow.verb("serve.add", endpoint=endpoint, model=made["model"], plan={{"trial": trial}})
'''  # noqa: E501


def pipeline(stage: Stage) -> str:
    """A Python file of steps, as jobs."""
    if find_spec("sklearn") is None or find_spec("onnxruntime") is None:
        stage.say("[yellow]left out: pip install 'falaj\\[optimize,serve,train]', then tell it again[/yellow]")
        return "left out: no scikit-learn"
    amal, file = stage.as_("amal", "fraud"), stage.home / "cards" / "cards_flow.py"
    file.parent.mkdir()
    file.write_text(FLOW)
    _publish(stage, amal, "calm", changed=False)
    for name in ("retrain", "first"):
        saved = amal.flows.save(str(file), name=name)
        stage.say(f"[bold]{saved.ref}[/bold]: {escape(saved.steps)}")
    stage.made["flow"] = True
    _run(stage, amal, amal.flows.start("flow:fraud/first").ref)
    stage.made["watched"] = ENDPOINT
    until(lambda: amal.serve.show(ENDPOINT), lambda one: one.state == "ready" and one.url)
    return "from rows to an endpoint: 3 steps, each a job or a verb of amal's"


def drift(stage: Stage) -> str:
    """Calm windows, then other ones; an alert, a verdict, one retraining, a canary, a promotion."""
    if "watched" not in stage.made:
        return "left out: no endpoint"
    amal = stage.as_("amal", "fraud")
    amal.monitor.add(ENDPOINT, more=PLAN)
    stage.say("watched against what its training left with the model; on drift, [bold]flow:fraud/retrain[/bold], once")
    with _traffic(stage, amal) as traffic:
        calm = until(lambda: amal.monitor.show(ENDPOINT), lambda one: one.windows >= 2)
        stage.say(f"{calm.windows} windows of live traffic, {calm.alarms} alarms: [green]{calm.state}[/green]")
        _publish(stage, amal, "eid", changed=True)
        traffic.changed = True
        stage.say("the week of Eid: people spend more, later, and further from home; fraud hides elsewhere")
        view = until(lambda: amal.monitor.show(ENDPOINT), lambda one: any(v.action == "retrain" for v in one.verdicts))
        for line in amal.monitor.report(ENDPOINT, since="1h").lines[:14]:
            stage.say(f"[cyan]{escape(line)}[/cyan]")
        verdict = next(one for one in view.verdicts if one.action == "retrain")
        stage.say(f"verdict: [bold]{verdict.action}[/bold], because of {', '.join(_columns(verdict))}")
        turn = until(lambda: amal.flows.runs(flow=RETRAIN).runs, bool)[0]
        _run(stage, amal, turn.ref)
        done = until(
            lambda: amal.monitor.show(ENDPOINT), lambda one: one.state not in ("suspect", "confirmed", "acting")
        )
    verdict = next(one for one in done.verdicts if one.action == "retrain")
    runs = amal.flows.runs(flow=RETRAIN).runs
    stage.say(f"{escape(verdict.outcome)}; {len(runs)} retraining for one cause, and now [green]{done.state}[/green]")
    for one in amal.monitor.incidents(project="fraud"):
        stage.say(f"[dim]{one.ref} {one.state}: {escape(one.said[:150])}[/dim]")
    return f"drift found, {len(runs)} retraining, {verdict.outcome}"


def breakage(stage: Stage) -> str:
    """A revision that answers no number goes by itself."""
    if "watched" not in stage.made:
        return "left out: no endpoint"
    amal = stage.as_("amal", "fraud")
    with _traffic(stage, amal):
        before = dict(amal.serve.show(ENDPOINT).traffic)
        bad = _broken(stage, amal)
        began = time.monotonic()
        amal.serve.deploy(ENDPOINT, bad, wait=True)
        stage.say(f"{bad} passes its gate, and answers NaN to whatever it is asked")
        view = until(lambda: amal.monitor.show(ENDPOINT), lambda one: one.state == "frozen")
        until(lambda: dict(amal.serve.show(ENDPOINT).traffic), lambda one: one == before)
        took = time.monotonic() - began
    verdict = next(one for one in view.verdicts if one.action == "rollback")
    stage.say(f"verdict: [bold]rollback[/bold], {escape(verdict.evidence[0].said)}; {escape(verdict.outcome)}")
    incident = next(one for one in amal.monitor.incidents(project="fraud") if one.what == "breakage")
    stage.say(f"[dim]{incident.ref} {incident.state}: {escape(incident.said[:150])}[/dim]")
    amal.monitor.resolve(incident.ref, cause="a logarithm of a negative number")
    amal.serve.stop(ENDPOINT)
    return f"back by itself {took:.0f} s after it was deployed, frozen until people look"


def _columns(verdict: Any) -> list[str]:
    return sorted({one.column for one in verdict.evidence if one.what == "input"})


class _Traffic(threading.Thread):
    """Cards that are used all the time."""

    def __init__(self, stage: Stage, amal: Any) -> None:
        super().__init__(daemon=True)
        self.changed = False
        self._caller = Caller(amal, amal.serve.url(ENDPOINT).url, token=stage.token("amal"))
        self._ended = threading.Event()

    def run(self) -> None:
        """Until it is over."""
        seed = 1000
        with httpx.Client(headers=self._caller.headers, timeout=30, trust_env=False) as line:
            while not self._ended.wait(0.002):
                seed += 1
                x, _ = _world(ASKED, seed, changed=self.changed)
                given = {"name": "X", "datatype": "FP64", "shape": [*x.shape], "data": x.ravel().tolist()}
                with suppress(httpx.HTTPError):  # a switch of gateways is not what this chapter is about
                    line.post(f"{self._caller.url}/infer", json={"inputs": [given]})

    def stop(self) -> None:
        """The end of it."""
        self._ended.set()
        self.join(30)


@contextmanager
def _traffic(stage: Stage, amal: Any) -> Iterator[_Traffic]:
    made = _Traffic(stage, amal)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def _run(stage: Stage, amal: Any, turn: Any) -> Any:
    """A run to its end, told step by step."""
    told: set[str] = set()
    while True:
        found = amal.flows.look(turn)
        for one in found.steps:
            if one.state in ("succeeded", "skipped", "failed") and one.name not in told:
                colour = "green" if one.state == "succeeded" else "yellow"
                stage.say(f"{one.name:16} [{colour}]{one.state}[/{colour}] {escape(_told(one)[:100])}")
                told.add(one.name)
        if found.over:
            return found
        time.sleep(0.1)


def _told(step: Any) -> str:
    """What a step gave, in short."""
    known = ("accuracy", "better", "model", "why", "state", "traffic")
    return ", ".join(f"{name}={step.outputs[name]}" for name in known if name in step.outputs) or step.note


def _world(rows: int, seed: int, *, changed: bool) -> tuple[Any, Any]:
    """Uses of cards, and which were fraud. After the change they lie elsewhere, and so does fraud."""
    import numpy as np

    draw = np.random.default_rng(seed)
    amount, hour = draw.lognormal(4, 0.8, rows), draw.normal(14, 4, rows)
    distance, age, shops = draw.exponential(8, rows), draw.uniform(1, 2000, rows), draw.poisson(2, rows).astype(float)
    if changed:
        amount, hour, distance = amount * 2.2, hour + 5, distance * 2.5
        risk = 0.02 * (distance - 20) - 0.6 * (shops - 2) - 0.1 * (hour - 19)
    else:
        risk = 0.01 * (amount - 70) + 0.6 * (shops - 2) - 0.1 * (hour - 14)
    x = np.stack([amount, hour, distance, age, shops], axis=1)
    return x, (risk + draw.normal(0, 0.4, rows) > 0.8).astype(int)


def _publish(stage: Stage, amal: Any, name: str, *, changed: bool) -> None:
    import numpy as np

    folder = stage.home / "cards" / name
    folder.mkdir()
    x, fraud = _world(ROWS, 7, changed=changed)
    head = ",".join((*COLUMNS, "fraud"))
    np.savetxt(folder / "cards.csv", np.column_stack([x, fraud]), "%.6g", ",", header=head, comments="")
    made = amal.catalog.publish(DATA, str(folder), label="AE-PDPL,sensitive,purpose=fraud")
    stage.say(f"[bold]{made.ref}[/bold]: {ROWS:,} uses of cards, {fraud.mean():.0%} of them fraud")


def _broken(stage: Stage, amal: Any) -> str:
    """Takes the logarithm of what may be negative."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Neg", ["X"], ["less"]), helper.make_node("Abs", ["less"], ["size"]),
        helper.make_node("Neg", ["size"], ["below"]), helper.make_node("Log", ["below"], ["none"]),
        helper.make_node("ReduceMean", ["none"], ["probabilities"], axes=[1], keepdims=1),
    ]  # fmt: skip
    ends = [
        helper.make_tensor_value_info(one, TensorProto.FLOAT, ["rows", wide])
        for one, wide in (("X", len(COLUMNS)), ("probabilities", 1))
    ]
    graph = helper.make_graph(nodes, "broken", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = Path(stage.home, "nan")
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    made = str(amal.catalog.publish("model:fraud/cards", str(folder), inputs={"data": DATA}).ref)
    amal.catalog.promote(made, "staging", reason="to be tried")
    return made


CHAPTERS = [
    Chapter("A flow", "A Python file of steps, each a job or a verb; killed anywhere, it goes on.", pipeline),
    Chapter("The world changes", "Found where it is served, at bounded cost; answered once, in the open.", drift),
    Chapter("A broken model", "What breaks goes back at once; statistics are for what may wait.", breakage),
]
