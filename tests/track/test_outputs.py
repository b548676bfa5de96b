"""Models that runs logged: what they come from, what they carry, and what becomes of both when they are registered."""

import json
import pickle
from typing import Any

import pytest

from falaj.cli.output import format_cell
from falaj.core.ref import Ref
from falaj.track.outputs import ModelMeasurement
from falaj.track.records import Metric, UsedData
from tests.town import LABEL, Town

EXPERIMENT, DATA = "experiment:fraud/scoring", Ref.parse("blob:fraud/tx@v1")
HEAD = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
WEIGHTS = len(HEAD).to_bytes(8, "little") + HEAD + b"\0\0\0\0"


@pytest.fixture
def data(town: Town) -> Ref:
    town.as_("salem").store.put("blob:fraud/tx", b"rows", label=LABEL)
    return DATA


def log_model(here: Any, run: Ref, *, linked: bool = True) -> Ref:
    """A model as MLflow's client logs one: announced, sent, ready, linked."""
    made: Ref = here.outputs.create(EXPERIMENT, "scorer", run=run).ref
    here.track.attach(made, "model.safetensors", WEIGHTS)
    here.outputs.change(made, status="ready")
    if linked:
        here.outputs.link(run, (made,))
    return made


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("first", ["data", "model"])
def test_a_registered_model_comes_from_the_data_of_its_run(
    town: Town, amal: Any, run: Ref, data: Ref, first: str, linked: bool
) -> None:
    if first == "data":
        amal.track.use(run, inputs=(data,))
    made = log_model(amal, run, linked=linked)
    if first == "model":
        amal.track.use(run, inputs=(data,))
    amal.track.log(run, params={"more": "said"})
    amal.outputs.change(made, tags={"more": "said"})
    version = amal.track.register(made, "", "model:fraud/scorer")
    shown = amal.catalog.show(version)
    assert shown.label.words == LABEL
    assert data in shown.inputs.values()
    assert {shown.inputs["run"].bare, shown.inputs["output"].bare} == {run, made}
    touched = town.as_("omar").audit.impact(data).affected
    assert str(version) in touched
    assert {f"output:{made.project}/{made.name}", str(run)} <= {ref.partition("@")[0] for ref in touched}
    with town.house.ledger.read(town.house.context(town.actor("amal"))) as tx:
        assert tx.need(made).label.words == LABEL, "whoever may not read the data may not read what was made of it"
    up = town.as_("omar").audit.draw(version, direction="up", form="json")
    edges = {(edge["input"].partition("@")[0], edge["output"]) for edge in json.loads(up)["edges"]}
    assert (str(run), str(shown.inputs["output"])) in edges, "the very revision that was registered has its run"
    assert (str(data.bare), str(shown.inputs["run"])) in edges


def test_arrows_point_from_a_run_to_what_it_logged(town: Town, amal: Any, run: Ref) -> None:
    made = log_model(amal, run)
    told = json.loads(town.as_("omar").audit.draw(run, direction="up", form="json"))
    assert not [edge for edge in told["edges"] if edge["input"].startswith("output:")], (
        "a run is not made from its models"
    )
    down = json.loads(town.as_("omar").audit.draw(run, direction="down", form="json"))
    assert {edge["output"].partition("@")[0] for edge in down["edges"]} == {str(made)}


def test_a_model_that_was_announced_without_a_run_is_of_the_one_that_says_so(town: Town, amal: Any, data: Ref) -> None:
    run = amal.track.start(EXPERIMENT, inputs={"data": data}).ref
    made = amal.outputs.create(EXPERIMENT, "scorer").ref
    amal.track.attach(made, "model.safetensors", WEIGHTS)
    amal.outputs.link(run, (made,))
    assert amal.outputs.show(made).run == run.name
    shown = amal.catalog.show(amal.track.register(made, "", "model:fraud/scorer"))
    assert (shown.label.words, shown.inputs["data"]) == (LABEL, data)


def test_data_is_an_input_whatever_it_is_called(amal: Any, run: Ref, data: Ref) -> None:
    names = ("run", "output", "عملاء / 7", "", "a", "a-1", "a")
    amal.track.use(run, tuple(UsedData(name, ref=data, digest=str(n)) for n, name in enumerate(names)), inputs=(data,))
    inputs = amal.catalog.show(amal.track.register(log_model(amal, run), "", "model:fraud/scorer")).inputs
    assert {inputs["run"].kind, inputs["output"].kind} == {"run", "output"}
    assert [ref for ref in inputs.values() if ref == data] == [data] * len(names)


def test_provenance_names_what_was_written_over_since(town: Town, amal: Any, run: Ref) -> None:
    made = log_model(amal, run)
    version = amal.track.register(made, "", "model:fraud/scorer")
    before = amal.catalog.show(version).inputs["output"]
    amal.outputs.change(made, tags={"later": "said"})
    amal.track.log(run, tags={"later": "said"})
    told = amal.catalog.provenance(version)
    assert f"output = {before}" in told
    assert f"run = {run}@" in told
    assert "hidden" not in told


def test_measurements_are_shown_with_their_names(amal: Any, run: Ref) -> None:
    made = log_model(amal, run)
    amal.outputs.change(made, metrics=(ModelMeasurement(Metric("auc", 0.9, step=3), data="test"),))
    assert "auc" in format_cell("metrics", amal.outputs.show(made).metrics)


def test_a_pickle_is_told_for_what_it_is(amal: Any, run: Ref) -> None:
    made = amal.outputs.create(EXPERIMENT, "scorer", run=run).ref
    amal.track.attach(made, "model.pkl", pickle.dumps({"a": 1}))
    version = amal.track.register(made, "", "model:fraud/scorer")
    shown = amal.catalog.show(version)
    assert (shown.card.format, shown.card.code_bearing, shown.signed) == ("pickle", True, True)
    assert "pickle, runs code when loaded" in amal.catalog.provenance(version)
    bom = json.loads(amal.catalog.provenance(version, form="cyclonedx"))["metadata"]["component"]["properties"]
    assert {"name": "falaj:codeBearing", "value": "true"} in bom
