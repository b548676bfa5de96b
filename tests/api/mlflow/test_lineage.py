"""What a model comes from that MLflow's client logged and registered: found, labelled, signed, described, promoted."""

import json
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import FalajError
from tests.api.mlflow.conftest import Client, Place
from tests.town import refusal

DATA, BEFORE, AFTER = "dataset:fraud/tx@v1", "model:main/lin-before@v1", "model:main/lin-after@v1"


@pytest.fixture
def amal(place: Place) -> Any:
    return place.replica.as_(place.tokens["amal"])


@pytest.fixture
def registered(place: Place, client: Client, amal: Any, tmp_path: Path) -> dict[str, Any]:
    """The ids of what the client made, from data with a label."""
    (tmp_path / "tx.csv").write_text("a,b,y\n1,2,0\n")
    amal.catalog.publish("dataset:fraud/tx", str(tmp_path / "tx.csv"), label="AE-PDPL")
    return client("lineage.py", DATASET=DATA)


def test_a_model_registered_by_the_client_comes_from_its_data(
    place: Place, amal: Any, registered: dict[str, Any]
) -> None:
    auditor = place.replica.as_(place.tokens["omar"])
    affected = auditor.audit.impact(DATA).affected
    assert {BEFORE, AFTER} <= set(affected)
    for run, name in ((registered["before"], BEFORE), (registered["after"], AFTER)):
        shown = amal.catalog.show(name)
        assert (shown.label.words, str(shown.inputs["tx"])) == ("AE-PDPL,open", DATA)
        assert shown.inputs["run"].name == run
        drawn = json.loads(auditor.audit.draw(name, form="json", direction="up"))
        there = {node["ref"] for node in drawn["nodes"]}
        assert {DATA, str(shown.inputs["run"]), str(shown.inputs["output"])} <= there
        assert f"output = {shown.inputs['output']}" in amal.catalog.provenance(name)
    refused = refusal(lambda: amal.catalog.delete(DATA, reason="withdrawn"))
    assert BEFORE in f"{refused.message} {refused.hint}"
    safe, pickled = amal.catalog.show(BEFORE), amal.catalog.show(AFTER)
    assert (safe.signed, safe.card.format, safe.card.code_bearing) == (True, "skops", False)
    assert (pickled.signed, pickled.card.code_bearing) == (True, True)
    assert [one["name"] for one in safe.card.signature["inputs"]] == ["a", "b"]
    assert safe.card.signature["outputs"]
    assert safe.card.environment["scikit-learn"] == "1.9.1"
    assert safe.card.environment["python"].startswith("3.")
    _promote(place, amal)


def _promote(place: Place, amal: Any) -> None:
    """Nothing but people stands between a model of the client's and production."""
    wish = amal.catalog.promote(BEFORE, "production")
    assert (wish.state, "1 more person" in wish.why) == ("waiting", True), wish
    approver = place.replica.as_(place.tokens["badr"])
    approver.approvals.give(wish.approval, wish.digest)
    assert amal.catalog.promote(BEFORE, "production").state == "done"
    assert amal.catalog.show(f"{BEFORE.partition('@')[0]}@production").ref == amal.catalog.show(BEFORE).ref
    assert amal.catalog.promote(AFTER, "staging").state == "refused"


def test_the_client_cannot_name_data_that_is_not_there(place: Place, client: Client) -> None:
    with pytest.raises((AssertionError, FalajError), match="there is no dataset:fraud/none@v9"):
        client("lineage.py", DATASET="dataset:fraud/none@v9")
