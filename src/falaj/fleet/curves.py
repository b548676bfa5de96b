"""Frames as people look at them: figures with their curves, pools hour by hour."""

from collections.abc import Sequence

import numpy as np

from falaj.fleet.frames import Frame
from falaj.fleet.pools import NAMES
from falaj.fleet.signs import Figure, PoolLoad
from falaj.fleet.subjects import HOUR_S, KEPT_S, Subject
from falaj.fleet.telemetry import Telemetry
from falaj.track.draw import spark

BINS = 60


def curves(telemetry: Telemetry, subject: Subject, now: float, span: int) -> tuple[Figure, ...]:
    """Every figure of a subject over so long, at the level that is kept for so long."""
    level = next(name for name, kept in KEPT_S.items() if span <= kept)
    frame = telemetry.read([subject], now - span, level)[subject]
    return tuple(
        _figure(name, frame, (now - span, now)) for name in sorted(frame.columns) if not name.endswith(("^", "_total"))
    )


def _figure(name: str, frame: Frame, span: tuple[float, float]) -> Figure:
    values = frame.column(name)
    told = values[~np.isnan(values)]
    highest = frame.columns.get(f"{name}^", values)
    places = ((frame.times - span[0]) / max(1.0, span[1] - span[0]) * BINS).clip(0, BINS - 1).astype(int)
    parts = [values[(places == step) & ~np.isnan(values)] for step in range(BINS)]
    curve = [float(part.mean()) if len(part) else None for part in parts]
    shape = spark([float("nan") if value is None else value for value in curve], BINS)
    ends = (_short(told[-1]), _short(told.mean()), _short(np.nanmax(highest)))
    return Figure(name, shape, *ends, tuple(value if value is None else _short(value) for value in curve))


def pool_load(name: str, newest: Frame, hours: Frame, span: tuple[float, float]) -> PoolLoad:
    """How full a pool is and was, in whole GPUs or CPUs."""
    now = newest.newest() if len(newest) else hours.newest()
    held = dict(zip(hours.times.tolist(), hours.column("held").tolist(), strict=True))
    moments: Sequence[int] = range(int(span[0]), int(span[1]) + 1, HOUR_S)
    line = tuple(round(held[at] / 1000, 3) if at in held and held[at] == held[at] else None for at in moments)
    figures = {key: now.get(key, 0.0) / 1000 for key in NAMES}
    return PoolLoad(pool=name, since=span[0], hours=line, **figures)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
