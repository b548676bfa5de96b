"""An A/B test: every caller on one side, what turned out to be true told later, and a verdict with its figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.infer.models import mlp_of
from tests.stories.serving_ground import SCORE, SMALL, Callers, platform

WATCH = {"output": "y", "how": "absolute", "low": "-1", "high": "1", "least": "100", "settle_s": "0.5", "slow": "90%"}


def truth_of(inputs: list[list[float]]) -> Any:
    """What turns out to be true, which the second model happens to say."""
    return mlp_of(np.asarray(inputs, np.float32), seed=2)[:, 0]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ab_with_verdict(tmp_path: Path) -> None:
    with platform(tmp_path) as there:
        serve = there.here.serve
        serve.deploy(SCORE, there.model(seed=1), sample=0.5, **SMALL)
        there.until(lambda view: view.state == "ready")
        with Callers(there.door(), there.token, pause_s=0.005) as callers:
            serve.deploy(SCORE, there.model(seed=2), ab="50%", judge=True, watch=WATCH)
            there.until(lambda view: view.traffic.get("2") == 0.5)
            there.until(lambda _: callers.answers["2", 200] > 20)
            callers.seen.clear()
            sides: dict[str, set[str]] = {}
            told = 0

            def judged(view: Any) -> bool:
                """Tell the truth about what was answered since, as long as it goes on."""
                nonlocal told, sides
                if view.rollout.state != "running":
                    return True
                now = {key: set(found) for key, found in list(callers.seen.items())}
                fresh = callers.requests[told:]
                told += len(fresh)
                if fresh:
                    found = truth_of([row for _, row in fresh])
                    serve.label(SCORE, {name: float(value) for (name, _), value in zip(fresh, found, strict=True)})
                if there.show().rollout.state == "running":  # else callers may have moved to the winner already
                    sides = now
                return False

            view = there.until(judged)
        assert (view.rollout.state, view.traffic) == ("promoted", {"2": 1.0}), view.rollout.why
        assert "quality" in view.rollout.why
        assert "fine" in view.rollout.why
        assert callers.failed() == 0, (callers.broken, callers.answers)
        assert set.union(*sides.values()) == {"1", "2"}
        assert all(len(found) == 1 for found in sides.values()), "a caller stays on one side"
        kept = serve.logs(SCORE, limit=5).lines
        assert len(kept[0].request["x"][0]) == 32
        done = serve.collect(SCORE, "dataset:fraud/score-log")
        assert there.here.catalog.show(done.ref).table.rows > 100
