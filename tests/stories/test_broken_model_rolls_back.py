"""A new revision that answers nothing but NaN is left within seconds, by itself; then nothing moves until people do."""

from pathlib import Path

import pytest

from tests.infer.models import _Kit
from tests.jobs.lab import until
from tests.stories.serving_ground import SCORE, SMALL, Callers, platform, published


def broken(folder: Path) -> Path:
    """A model that answers, and answers no number: input `x` FP32 [-1, 32], output `y` FP32 [-1, 1]."""
    kit = _Kit(5)
    flow = kit.add("Gemm", kit.add("Abs", "x"), kit.weight(32, 1), kit.weight(1))
    kit.add("Log", kit.add("Sub", kit.scalar(-1.0), kit.add("Abs", flow)), out="y")
    return kit.save(folder, [("x", "FP32", ("batch", 32))], [("y", "FP32", ("batch", 1))])


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_broken_model_rolls_back(tmp_path: Path) -> None:
    with platform(tmp_path) as there:
        serve, monitor = there.here.serve, there.here.monitor
        serve.deploy(SCORE, there.model(seed=1), **SMALL)
        there.until(lambda view: view.state == "ready")
        monitor.add(SCORE, more={"rollback": "true", "every_s": "5"})
        with Callers(there.door(), there.token, threads=4, pause_s=0.01) as callers:
            until(lambda: callers.answers["1", 200], lambda count: count > 200)
            serve.deploy(SCORE, published(there, broken(tmp_path / "broken")))
            there.until(lambda view: view.traffic == {"2": 1.0})
            there.until(lambda view: view.traffic == {"1": 1.0})
            watch = until(lambda: monitor.show(SCORE), lambda one: one.state == "frozen")
            before = callers.answers["1", 200]
            until(lambda: callers.answers["1", 200], lambda count: count > before + 100)
            bad = callers.failed()
            until(lambda: callers.answers["1", 200], lambda count: count > before + 400)
            assert callers.failed() == bad, "nobody is failed any more"
            assert callers.broken == []

            rollback, alert = watch.verdicts[0], watch.verdicts[1]
            assert (rollback.action, rollback.state, rollback.revision) == ("rollback", "done", 2)
            assert (rollback.outcome, alert.action) == ("revision 1 has the traffic", "alert")
            assert "requests failed" in rollback.evidence[0].said
            incident = monitor.incidents(project="fraud")[0]
            assert (incident.state, incident.what, incident.endpoint.name) == ("open", "breakage", "score")
            assert watch.incidents == (incident.ref,)

            serve.deploy(SCORE, there.model(seed=3))
            watch = until(lambda: monitor.show(SCORE), lambda one: one.state in ("ok", "cooling"))
            there.until(lambda view: view.traffic == {"3": 1.0})
            until(lambda: monitor.incidents(project="fraud")[0], lambda one: one.state == "resolved")
