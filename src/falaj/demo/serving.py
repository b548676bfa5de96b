"""The chapters of serving: a model made smaller, an endpoint asked by keys, and a careful change that is taken back."""

import json
import time
from importlib.util import find_spec
from typing import Any

from rich.markup import escape

from falaj.demo.features import INPUTS
from falaj.demo.ground import Chapter
from falaj.demo.stage import Stage
from falaj.demo.turns import until

ENDPOINT = "endpoint:fraud/score"
SMALL = {"cluster": "hall", "cpus": 0.5, "memory": "256MiB"}
PEOPLE = [f"c{number}" for number in range(40)]
ASKED_S = 30.0


def shrink(stage: Stage) -> str:
    """Export, try every way, measure, publish the fastest within the bound."""
    lacking = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if lacking or "network" not in stage.made:
        stage.say("[yellow]left out: pip install 'falaj\\[optimize,serve,train,features]', then tell it again[/yellow]")
        return f"left out: no {lacking[0] if lacking else 'model'}"
    amal, model = stage.as_("amal", "fraud"), stage.made["network"]
    how = {"methods": "fuse,int8-dynamic,distil", "epochs": "60", "rounds": "3"}
    made = amal.catalog.optimize(model, data=stage.made["train"], target="fraud", max_loss="1%", how=how)
    for line in made.lines[:8]:
        stage.say(f"[cyan]{escape(line)}[/cyan]")
    stage.made["served"] = made.ref or model
    if made.ref is None:
        return f"nothing beat {model}"
    stage.say(f"[bold]{made.ref}[/bold] is a child of {model}, with the evidence in it")
    return f"{made.chosen}: {made.ref}"


def endpoint(stage: Stage) -> str:
    """An endpoint of the Open Inference Protocol; whoever asks it brings keys and nothing else."""
    if "served" not in stage.made:
        return "left out: no model"
    amal, model = stage.as_("amal", "fraud"), stage.made["served"]
    held = amal.catalog.promote(str(model), "staging", reason="as good and faster")
    stage.say(f"only what passed a gate is served here: {model} → staging: [green]{held.state}[/green]")
    began = time.perf_counter()
    defaults = dict.fromkeys(INPUTS, "nan")
    stage.made["endpoint"] = ENDPOINT
    view = amal.serve.deploy(ENDPOINT, model, wait=True, defaults=defaults, sample=1.0, **SMALL)
    stage.say(f"{model} answers as [bold]{view.name}[/bold] after {time.perf_counter() - began:.1f} s, as a job")
    stage.say(f"served with [bold]{view.revisions[0].features}[/bold], which it was trained on, and with nothing else")
    scored = sorted(zip(_asked(stage, amal), PEOPLE, strict=True), reverse=True)
    for chance, name in (scored[0], scored[-1]):
        stage.say(f"[cyan]{name:4}[/cyan] {chance:6.1%} fraud, asked by key alone")
    error = stage.refused(lambda: amal.serve.call(ENDPOINT, keys={"customer": ["c1"]}))
    stage.say(f"[dim]{escape(error.message)}[/dim]")
    return f"{len(scored)} customers scored by their keys, from {scored[-1][0]:.0%} to {scored[0][0]:.0%}"


def careful(stage: Stage) -> str:
    """A canary that breaks: a share of the traffic, a verdict, and back."""
    if "served" not in stage.made:
        return "left out: no model"
    amal, bad = stage.as_("amal", "fraud"), _broken(stage)
    amal.serve.deploy(ENDPOINT, bad, canary="20%", judge=True, watch={"settle_s": "0"})
    stage.say(f"{bad} looks balances up in a table that is too short. It gets 20 % of the requests, and a judge")
    end, asked, failed = time.monotonic() + ASKED_S, 0, 0
    view = amal.serve.show(ENDPOINT)
    while view.rollout.state == "running" and time.monotonic() < end:
        inputs = {"customer_id": PEOPLE}
        (level,) = amal.serve.load_test(ENDPOINT, inputs, 1.0, (4,), token=stage.token("amal")).levels
        asked, failed = asked + level.requests, failed + level.failed
        view = amal.serve.show(ENDPOINT)
    stage.say(f"{asked:,} requests later, {failed:,} of them failed: [bold]{escape(view.rollout.why)}[/bold]")
    until(lambda: amal.serve.show(ENDPOINT), lambda one: list(one.traffic) == ["1"])
    _asked(stage, amal)
    amal.serve.stop(ENDPOINT)
    return f"{view.rollout.state} by itself after {asked:,} requests"


def _asked(stage: Stage, amal: Any) -> list[float]:
    found = amal.serve.call(ENDPOINT, keys={"customer_id": PEOPLE}, token=stage.token("amal"))
    return [float(row[0]) for row in found["fraud"]]


def _broken(stage: Stage) -> str:
    """A model that nobody tried with real balances."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Slice", ["x", "first", "second", "axis"], ["balance"]),
        helper.make_node("Cast", ["balance"], ["place"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "place"], ["fraud"]),
    ]
    known = [helper.make_tensor("table", TensorProto.FLOAT, [100], [0.5] * 100)]
    words = {"first": [0], "second": [1], "axis": [1]}
    known += [helper.make_tensor(name, TensorProto.INT64, [1], value) for name, value in words.items()]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", wide])
        for name, wide in (("x", len(INPUTS)), ("fraud", 1))
    ]
    graph = helper.make_graph(nodes, "table", ends[:1], ends[1:], known)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = stage.home / "broken"
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    (folder / "falaj.json").write_text(json.dumps({"parameters": {"features.order": ",".join(INPUTS)}}))
    amal = stage.as_("amal", "fraud")
    made = amal.catalog.publish("model:fraud/network", str(folder), inputs={"data": stage.made["train"]}).ref
    amal.catalog.promote(str(made), "staging", reason="to be tried")
    return str(made)


CHAPTERS = [
    Chapter("Smaller and faster", "Every way is measured here, and what loses too much is refused.", shrink),
    Chapter("Only keys", "What a request need not bring, the platform knows.", endpoint),
    Chapter(
        "A careful change", "A share of the traffic, a verdict that holds at any moment, and one way back.", careful
    ),
]
