"""A sweep of the fraud team: six trials that measured something, stopped before their jobs came to run."""

from falaj.core.ref import Ref
from falaj.jobs.records import JobSpec
from falaj.store.reconcile_loop import LoopIteration, system_context
from falaj.study.records import SweepPlan
from falaj.study.sweep_loop import SweepLoop
from falaj.track.records import Metric
from tests.console.life import DAY, Story

SWEEP = "sweep:fraud/rates"
PLAN = SweepPlan(
    space=("rate=log:1e-4..1e-1", "width=32|64|128"), metric="loss", trials=6, at_once=6, sampler="random",
    stopper="none",
)  # fmt: skip


def sweep(story: Story) -> None:
    """Its jobs wait, as no loop runs them, and are cancelled with it: no list of what runs or waits grows."""
    amal = story.as_("amal", DAY)
    amal.sweeps.add(Ref.parse(SWEEP), PLAN, JobSpec(("python3", "-c", "pass"), experiment="rates"))
    loop = SweepLoop(story.house.ledger, story.house.desks["sweeps"])

    def turn() -> None:
        loop.step(LoopIteration(system_context("sweeps", story.house.settings.zone), 1, lambda: True))

    turn()
    for trial in amal.sweeps.show(SWEEP).trials:
        rate = float(trial.params["rate"])
        points = [Metric("loss", 0.2 + 40 * (rate - 0.02) ** 2 + 1 / step, 0.0, step) for step in range(1, 20)]
        amal.track.log(trial.run, tuple(points))
    turn()
    amal.sweeps.stop(SWEEP, reason="the rates are known well enough")
    for _ in range(3):
        turn()
