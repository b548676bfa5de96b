"""Curves: what the runs of trials measured, read from where it was left the last time."""

from falaj.core.ref import Ref
from falaj.store.records import LedgerRecord
from falaj.study.records import SweepPlan
from falaj.study.sweep_decisions import CurveReading
from falaj.track.metric_points import format_cursor
from falaj.track.service import TrackService

PAGE_POINTS, CURVE_BINS = 10_000, 100


class TrialCurves:
    """Readings of trials that run. What is remembered here only saves work: without it everything is read again."""

    def __init__(self, track: TrackService) -> None:
        self._track = track
        self._readings: dict[tuple[str, str], tuple[str, CurveReading]] = {}

    def follow(self, trial: LedgerRecord, plan: SweepPlan) -> CurveReading:
        """With what came since we last looked."""
        key = (trial.key.tenant, str(trial.body["run"]))
        cursor, reading = self._readings.get(key, ("", CurveReading()))
        self._readings[key] = cursor, reading = self._read_pages(trial, plan, cursor, reading)
        return reading

    def whole(self, trial: LedgerRecord, plan: SweepPlan) -> CurveReading:
        """All of it, as at the end: what came late and belongs before what we saw counts, too."""
        self._readings.pop((trial.key.tenant, str(trial.body["run"])), None)
        return self._read_pages(trial, plan, "", CurveReading())[1]

    def glance(self, trial: LedgerRecord, plan: SweepPlan) -> CurveReading:
        """The value and the step it stands at, from a drawing of the curve: nothing is said of rungs."""
        run_key = (trial.key.tenant, Ref.parse(trial.body["run"]).name)
        points = self._track.measures.curve(run_key, plan.metric, "", 0, CURVE_BINS).points
        return CurveReading().after(plan, [(point.step, point.number) for point in points])

    def _read_pages(
        self, trial: LedgerRecord, plan: SweepPlan, cursor: str, reading: CurveReading
    ) -> tuple[str, CurveReading]:
        run_key = (trial.key.tenant, Ref.parse(trial.body["run"]).name)
        while True:
            curve = self._track.measures.curve(run_key, plan.metric, cursor, PAGE_POINTS, 0)
            reading = reading.after(plan, [(point.step, point.number) for point in curve.points])
            if curve.points:
                last_point = curve.points[-1]
                cursor = format_cursor((last_point.step, last_point.at, last_point.number))
            if not curve.next:
                return cursor, reading
