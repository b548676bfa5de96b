"""A canary that is good is promoted and one that is not is rolled back, by itself, while callers go on calling."""

from pathlib import Path

import pytest

from tests.stories.serving_ground import SCORE, SMALL, Callers, platform, published, slow

JUDGE = {"least": "100", "settle_s": "0.5", "errors": "2%", "slow": "90%"}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_canary_and_rollback(tmp_path: Path) -> None:
    with platform(tmp_path) as there:
        serve = there.here.serve
        serve.deploy(SCORE, there.model(seed=1), timeout_s=0.4, **SMALL)
        there.until(lambda view: view.state == "ready")
        with Callers(there.door(), there.token) as callers:
            serve.deploy(SCORE, there.model(seed=2), canary="20%", judge=True, watch=JUDGE)
            view = there.until(lambda one: one.rollout.state != "running")
            assert (view.rollout.state, view.traffic) == ("promoted", {"2": 1.0}), view.rollout.why
            assert "fine" in view.rollout.why
            good = callers.failed()

            serve.deploy(SCORE, published(there, slow(tmp_path / "slow")), canary="20%", judge=True, watch=JUDGE)
            view = there.until(lambda one: one.rollout.state != "running")
            assert (view.rollout.state, view.traffic) == ("rolled back", {"2": 1.0}), view.rollout.why
            assert "errors" in view.rollout.why
            assert "worse" in view.rollout.why
            bad = callers.failed()

            there.until(lambda one: not [each for each in one.replicas if each.revision == 3])
            view = serve.rollback(SCORE, reason="to show that it is one command")
            there.until(lambda one: one.traffic == {"1": 1.0})
            before = callers.answers["1", 200]
            there.until(lambda _: callers.answers["1", 200] > before + 200)
        assert good == 0, (callers.broken, callers.answers)
        told = {key: count for key, count in callers.answers.items() if key[1] != 200}
        assert {revision for revision, _ in told} <= {"3", ""}, told
        assert callers.failed() - bad <= bad, "only the canary failed, and only while it had its share"
        assert callers.broken == []
