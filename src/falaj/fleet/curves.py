"""Frames as people look at them: figures with their curves, pools hour by hour."""

from collections.abc import Sequence

import numpy as np

from falaj.fleet.figure_frames import FigureFrame
from falaj.fleet.pool_loads import LOAD_FIGURES
from falaj.fleet.telemetry import TelemetryStore
from falaj.fleet.telemetry_operations import Figure, PoolLoad
from falaj.fleet.telemetry_targets import HOUR_S, RETENTION_S, TelemetryTarget
from falaj.track.text_charts import format_sparkline

CURVE_STEPS = 60


def build_figures(telemetry: TelemetryStore, target: TelemetryTarget, now: float, window_s: int) -> tuple[Figure, ...]:
    """Every figure of a subject over so long, at the level that is kept for so long."""
    level = next(name for name, retention_s in RETENTION_S.items() if window_s <= retention_s)
    frame = telemetry.read([target], now - window_s, level)[target]
    return tuple(
        _build_figure(name, frame, (now - window_s, now))
        for name in sorted(frame.columns)
        if not name.endswith(("^", "_total"))
    )


def _build_figure(name: str, frame: FigureFrame, span: tuple[float, float]) -> Figure:
    values = frame.column(name)
    known_values = values[~np.isnan(values)]
    highest = frame.columns.get(f"{name}^", values)
    steps = ((frame.times - span[0]) / max(1.0, span[1] - span[0]) * CURVE_STEPS).clip(0, CURVE_STEPS - 1).astype(int)
    parts = [values[(steps == step) & ~np.isnan(values)] for step in range(CURVE_STEPS)]
    curve = [float(values_in_step.mean()) if len(values_in_step) else None for values_in_step in parts]
    shape = format_sparkline([float("nan") if value is None else value for value in curve], CURVE_STEPS)
    ends = (_round_short(known_values[-1]), _round_short(known_values.mean()), _round_short(np.nanmax(highest)))
    return Figure(name, shape, *ends, tuple(value if value is None else _round_short(value) for value in curve))


def build_pool_load(name: str, newest: FigureFrame, hours: FigureFrame, span: tuple[float, float]) -> PoolLoad:
    """How full a pool is and was, in whole GPUs or CPUs."""
    current = newest.newest() if len(newest) else hours.newest()
    held_by_hour = dict(zip(hours.times.tolist(), hours.column("held").tolist(), strict=True))
    moments: Sequence[int] = range(int(span[0]), int(span[1]) + 1, HOUR_S)
    hourly = tuple(
        round(held_by_hour[at] / 1000, 3) if at in held_by_hour and held_by_hour[at] == held_by_hour[at] else None
        for at in moments
    )
    figures = {key: current.get(key, 0.0) / 1000 for key in LOAD_FIGURES}
    return PoolLoad(pool=name, since=span[0], hours=hourly, **figures)


def _round_short(value: float) -> float:
    return float(f"{value:.4g}")
