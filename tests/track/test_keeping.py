"""What a law, a hold or a breach keeps of runs, logged models and traces is not deleted, and goes once that ended."""

from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Denied
from falaj.core.label import Label
from falaj.core.ref import Ref
from tests.catalog.shelfhouse import publish
from tests.town import LABEL, Town, refusal

BANK = "AE-CBUAE,sensitive,purpose=fraud"
TRACE = f"tr-{'0' * 32}"


@pytest.fixture
def data(town: Town) -> Ref:
    """A dataset under the law of banks."""
    return publish(town.as_("salem"), "dataset:fraud/accounts", label=BANK)


def relabel(town: Town, name: Ref, text: str) -> None:
    """Put a record under a label, as a job that reads labelled data does."""
    house = town.house
    with house.ledger.write(house.context(town.actor("salem"))) as tx:
        old = tx.need(name.bare)
        tx.put(old.key, old.body, rev=old.rev, label=Label.parse(text), terms=old.terms)
        tx.emit("traces.change", old.ref)


def test_a_law_keeps_what_was_made_of_its_data(town: Town, amal: Any, data: Ref) -> None:
    salem = town.as_("salem")
    run = amal.track.start("experiment:fraud/scoring", inputs={"data": data}).ref
    model = amal.outputs.create("experiment:fraud/scoring", run=run).ref
    amal.track.attach(run, "predictions.csv", b"a,1")
    for act in (lambda: amal.track.detach(run, "predictions.csv"), lambda: amal.outputs.delete(model)):
        refused = refusal(act)
        assert isinstance(refused, Denied)
        assert "AE-CBUAE keeps" in refused.message
    salem.catalog.record_event(data, "end-of-relationship", "2001-06-30", "file 44")
    assert amal.track.detach(run, "predictions.csv") == 1
    assert amal.outputs.delete(model) == model.bare


def test_a_hold_on_what_a_run_used_keeps_its_files(town: Town, amal: Any) -> None:
    data, salem = publish(town.as_("salem"), "dataset:fraud/tx", label=LABEL), town.as_("salem")
    run = amal.track.start("experiment:fraud/scoring", inputs={"data": data}).ref
    model = amal.outputs.create("experiment:fraud/scoring", run=run).ref
    amal.track.attach(run, "plot.png", b"png")
    salem.catalog.hold(data, "case 9")
    for act in (lambda: amal.track.detach(run, "plot.png"), lambda: amal.outputs.delete(model)):
        assert f"was made from {data}, which is under legal hold" in refusal(act).message
    salem.catalog.release(data, "case 9")
    assert amal.outputs.delete(model) == model.bare
    assert amal.track.detach(run, "plot.png") == 1


def test_a_trace_stays_under_its_law_and_while_a_breach_is_open(town: Town, amal: Any) -> None:
    trace = amal.traces.record("experiment:fraud/scoring", TRACE).ref
    relabel(town, trace, BANK)
    assert "AE-CBUAE keeps" in refusal(lambda: amal.traces.delete(trace)).message
    relabel(town, trace, LABEL)
    dana = town.as_("dana")
    breach = dana.privacy.report("a laptop was lost", about=(str(trace),), regimes=("AE-PDPL",)).ref
    assert str(breach) in refusal(lambda: amal.traces.delete(trace)).message
    dana.privacy.notify(breach, "AE-PDPL", reference="2026/118")
    dana.privacy.notify(breach, "AE-PDPL", to="people", reference="2026/119")
    dana.privacy.settle(breach, "a new lock")
    assert amal.traces.delete(trace) == trace.bare


def test_files_of_a_run_without_a_duty_go(tmp_path: Path, amal: Any, run: Ref) -> None:
    amal.track.attach(run, "plot.png", b"png")
    assert amal.track.detach(run, "plot.png") == 1
