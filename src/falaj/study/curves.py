"""Curves: what the runs of trials measured, read from where it was left the last time."""

from falaj.core.ref import Ref
from falaj.store.records import Record
from falaj.study.decide import Reading
from falaj.study.records import SweepPlan
from falaj.track.points import write_cursor
from falaj.track.service import Track

PAGE, BINS = 10_000, 100


class Curves:
    """Readings of trials that run. What is remembered here only saves work: without it everything is read again."""

    def __init__(self, track: Track) -> None:
        self._track = track
        self._known: dict[tuple[str, str], tuple[str, Reading]] = {}

    def follow(self, trial: Record, plan: SweepPlan) -> Reading:
        """With what came since we last looked."""
        key = (trial.key.tenant, str(trial.body["run"]))
        cursor, reading = self._known.get(key, ("", Reading()))
        self._known[key] = cursor, reading = self._read(trial, plan, cursor, reading)
        return reading

    def whole(self, trial: Record, plan: SweepPlan) -> Reading:
        """All of it, as at the end: what came late and belongs before what we saw counts, too."""
        self._known.pop((trial.key.tenant, str(trial.body["run"])), None)
        return self._read(trial, plan, "", Reading())[1]

    def glance(self, trial: Record, plan: SweepPlan) -> Reading:
        """The value and the step it stands at, from a drawing of the curve: nothing is said of rungs."""
        run = (trial.key.tenant, Ref.parse(trial.body["run"]).name)
        drawn = self._track.measures.curve(run, plan.metric, "", 0, BINS).points
        return Reading().after(plan, [(point.step, point.number) for point in drawn])

    def _read(self, trial: Record, plan: SweepPlan, cursor: str, reading: Reading) -> tuple[str, Reading]:
        run = (trial.key.tenant, Ref.parse(trial.body["run"]).name)
        while True:
            curve = self._track.measures.curve(run, plan.metric, cursor, PAGE, 0)
            reading = reading.after(plan, [(point.step, point.number) for point in curve.points])
            if curve.points:
                last = curve.points[-1]
                cursor = write_cursor((last.step, last.at, last.number))
            if not curve.next:
                return cursor, reading
