"""Tables of fifty columns in which nothing changes, or three do: of all kinds that cry wolf easily."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from falaj.drift.drift_tests import compare_tally
from falaj.drift.measures import compute_ks_p
from falaj.drift.profiles import build_profile
from falaj.drift.records import DriftFinding, DriftRules
from falaj.drift.tally import DataTally

Columns = dict[str, NDArray[np.generic]]
World = Callable[[np.random.Generator, int, float], Columns]
RULES = DriftRules(least_rows=100)
NAMES = np.array([f"v{at}" for at in range(50_000)])


def plain(draw: np.random.Generator, rows: int, shift: float = 0.0) -> Columns:
    """Fifty independent columns, of which three are shifted."""
    values = draw.standard_normal((rows, 50)).astype(np.float32)
    values[:, :3] += shift
    return {f"x{at}": values[:, at] for at in range(50)}


def dependent(draw: np.random.Generator, rows: int, shift: float = 0.0) -> Columns:
    """Fifty columns that go up and down together, half of them the other way."""
    common = draw.standard_normal((rows, 1)) * np.where(np.arange(50) % 2, 1, -1)
    values = np.sqrt(0.7) * common + np.sqrt(0.3) * draw.standard_normal((rows, 50))
    values[:, :3] += shift
    return {f"x{at}": values[:, at] for at in range(50)}


def mixed(draw: np.random.Generator, rows: int, shift: float = 0.0) -> Columns:
    """Fifty columns: long tails, ties, zeros, constants, gaps, rare flags, few values and thousands of them."""
    found: Columns = {f"n{at}": draw.standard_normal(rows) + shift * (at < 3) for at in range(20)}
    found |= {f"tail{at}": np.exp(2 * draw.standard_normal(rows)) for at in range(5)}
    found |= {f"wild{at}": draw.standard_cauchy(rows) for at in range(2)}
    found |= {f"ties{at}": np.round(draw.standard_normal(rows) * 2) / 2 for at in range(4)}
    found |= {f"zeros{at}": np.where(draw.random(rows) < 0.7, 0.0, draw.exponential(size=rows)) for at in range(4)}
    found |= {f"gaps{at}": np.where(draw.random(rows) < 0.2, np.nan, draw.standard_normal(rows)) for at in range(3)}
    found |= {"still": np.full(rows, 3.0), "never": np.full(rows, np.nan)}
    found |= {f"few{at}": draw.choice(["a", "b", "c", "d"], rows, p=[0.6, 0.3, 0.09, 0.01]) for at in range(3)}
    found |= {f"flag{at}": (draw.random(rows) < 0.003).astype(np.int64) for at in range(2)}
    for many in (50, 300, 1_000, 5_000):
        found[f"of{many}"] = NAMES[draw.integers(0, many, rows)]
    found["common"] = NAMES[np.minimum(draw.zipf(1.5, rows), len(NAMES) - 1)]
    found["id"] = draw.integers(0, 10**9, rows).astype(str)
    return found


WORLDS: dict[str, World] = {"plain": plain, "dependent": dependent, "mixed": mixed}


def windows(
    world: World, references: int, each: int, *, then: int, rows: int, shift: float = 0.0, seed: int = 0
) -> Iterator[tuple[DriftFinding, ...]]:
    """Findings of windows: so many references, each a sample of its own, with so many windows each."""
    draw = np.random.default_rng(seed)
    for _ in range(references):
        profile = build_profile(world(draw, then, 0.0))
        for _ in range(each):
            tally = DataTally(profile, seed=0)
            tally.add(world(draw, rows, shift))
            yield compare_tally(profile, tally, RULES)


def ours(found: tuple[DriftFinding, ...]) -> bool:
    """The rule of the house."""
    return any(one.alarm for one in found)


def any_ks(found: tuple[DriftFinding, ...]) -> bool:
    """What many do: any column whose test by itself says less than 5 %."""
    return any(_chance(one) < 0.05 for one in found if one.column and one.what != "quality" and not one.segment)


def _chance(one: DriftFinding) -> float:
    if one.measure != "ks":
        return one.p
    return float(compute_ks_p(np.array(one.value), np.array(one.rows), np.array(one.measures["then_rows"])))


def any_psi(found: tuple[DriftFinding, ...], bound: float = 0.2) -> bool:
    """What others do: any column whose index is above 0.2."""
    return any(one.measures.get("psi", 0.0) > bound for one in found)
