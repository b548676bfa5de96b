"""The chapters of serving: a model made smaller, an endpoint asked by keys, and a careful change that is taken back."""

import json
import time
from importlib.util import find_spec
from typing import Any

from rich.markup import escape

from falaj.demo.access_chapters import DemoChapter
from falaj.demo.features import INPUT_NAMES
from falaj.demo.job_chapters import wait_until
from falaj.demo.stage import DemoStage

ENDPOINT_REF = "endpoint:fraud/score"
REPLICA_NEEDS = {"cluster": "hall", "cpus": 0.5, "memory": "256MiB"}
CUSTOMER_IDS = [f"c{number}" for number in range(40)]
LOAD_TEST_S = 30.0


def optimize_model(stage: DemoStage) -> str:
    """Export, try every way, measure, publish the fastest within the bound."""
    missing_packages = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if missing_packages or "network" not in stage.made:
        stage.say("[yellow]left out: pip install 'falaj\\[optimize,serve,train,features]', then tell it again[/yellow]")
        return f"left out: no {missing_packages[0] if missing_packages else 'model'}"
    amal, model = stage.as_("amal", "fraud"), stage.made["network"]
    options = {"methods": "fuse,int8-dynamic,distil", "epochs": "60", "rounds": "3"}
    optimized = amal.catalog.optimize(model, data=stage.made["train"], target="fraud", max_loss="1%", how=options)
    for line in optimized.lines[:8]:
        stage.say(f"[cyan]{escape(line)}[/cyan]")
    stage.made["served"] = optimized.ref or model
    if optimized.ref is None:
        return f"nothing beat {model}"
    stage.say(f"[bold]{optimized.ref}[/bold] is a child of {model}, with the evidence in it")
    return f"{optimized.chosen}: {optimized.ref}"


def deploy_endpoint(stage: DemoStage) -> str:
    """An endpoint of the Open Inference Protocol; whoever asks it brings keys and nothing else."""
    if "served" not in stage.made:
        return "left out: no model"
    amal, model = stage.as_("amal", "fraud"), stage.made["served"]
    promotion = amal.catalog.promote(str(model), "staging", reason="as good and faster")
    stage.say(f"only what passed a gate is served here: {model} → staging: [green]{promotion.state}[/green]")
    started_at = time.perf_counter()
    defaults = dict.fromkeys(INPUT_NAMES, "nan")
    stage.made["endpoint"] = ENDPOINT_REF
    view = amal.serve.deploy(ENDPOINT_REF, model, wait=True, defaults=defaults, sample=1.0, **REPLICA_NEEDS)
    stage.say(f"{model} answers as [bold]{view.name}[/bold] after {time.perf_counter() - started_at:.1f} s, as a job")
    stage.say(f"served with [bold]{view.revisions[0].features}[/bold], which it was trained on, and with nothing else")
    scored_customers = sorted(zip(_score_customers(stage, amal), CUSTOMER_IDS, strict=True), reverse=True)
    for chance, name in (scored_customers[0], scored_customers[-1]):
        stage.say(f"[cyan]{name:4}[/cyan] {chance:6.1%} fraud, asked by key alone")
    error = stage.refused(lambda: amal.serve.call(ENDPOINT_REF, keys={"customer": ["c1"]}))
    stage.say(f"[dim]{escape(error.message)}[/dim]")
    return (
        f"{len(scored_customers)} customers scored by their keys, from "
        f"{scored_customers[-1][0]:.0%} to {scored_customers[0][0]:.0%}"
    )


def run_canary(stage: DemoStage) -> str:
    """A canary that breaks: a share of the traffic, a verdict, and back."""
    if "served" not in stage.made:
        return "left out: no model"
    amal, broken_model = stage.as_("amal", "fraud"), _publish_broken_model(stage)
    amal.serve.deploy(ENDPOINT_REF, broken_model, canary="20%", judge=True, watch={"settle_s": "0"})
    stage.say(
        f"{broken_model} looks balances up in a table that is too short. It gets 20 % of the requests, and a judge"
    )
    deadline, request_count, failure_count = time.monotonic() + LOAD_TEST_S, 0, 0
    view = amal.serve.show(ENDPOINT_REF)
    while view.rollout.state == "running" and time.monotonic() < deadline:
        inputs = {"customer_id": CUSTOMER_IDS}
        (level,) = amal.serve.load_test(ENDPOINT_REF, inputs, 1.0, (4,), token=stage.token("amal")).levels
        request_count, failure_count = request_count + level.requests, failure_count + level.failed
        view = amal.serve.show(ENDPOINT_REF)
    stage.say(
        f"{request_count:,} requests later, {failure_count:,} of them failed: [bold]{escape(view.rollout.why)}[/bold]"
    )
    wait_until(lambda: amal.serve.show(ENDPOINT_REF), lambda endpoint_view: list(endpoint_view.traffic) == ["1"])
    _score_customers(stage, amal)
    amal.serve.stop(ENDPOINT_REF)
    return f"{view.rollout.state} by itself after {request_count:,} requests"


def _score_customers(stage: DemoStage, amal: Any) -> list[float]:
    response = amal.serve.call(ENDPOINT_REF, keys={"customer_id": CUSTOMER_IDS}, token=stage.token("amal"))
    return [float(row[0]) for row in response["fraud"]]


def _publish_broken_model(stage: DemoStage) -> str:
    """A model that nobody tried with real balances."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Slice", ["x", "first", "second", "axis"], ["balance"]),
        helper.make_node("Cast", ["balance"], ["place"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "place"], ["fraud"]),
    ]
    initializers = [helper.make_tensor("table", TensorProto.FLOAT, [100], [0.5] * 100)]
    index_tensors = {"first": [0], "second": [1], "axis": [1]}
    initializers += [helper.make_tensor(name, TensorProto.INT64, [1], value) for name, value in index_tensors.items()]
    value_infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name, width in (("x", len(INPUT_NAMES)), ("fraud", 1))
    ]
    graph = helper.make_graph(nodes, "table", value_infos[:1], value_infos[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = stage.home / "broken"
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    (folder / "falaj.json").write_text(json.dumps({"parameters": {"features.order": ",".join(INPUT_NAMES)}}))
    amal = stage.as_("amal", "fraud")
    version_ref = amal.catalog.publish("model:fraud/network", str(folder), inputs={"data": stage.made["train"]}).ref
    amal.catalog.promote(str(version_ref), "staging", reason="to be tried")
    return str(version_ref)


CHAPTERS = [
    DemoChapter(
        "Smaller and faster", "Every way is measured here, and what loses too much is refused.", optimize_model
    ),
    DemoChapter("Only keys", "What a request need not bring, the platform knows.", deploy_endpoint),
    DemoChapter(
        "A careful change", "A share of the traffic, a verdict that holds at any moment, and one way back.", run_canary
    ),
]
