"""Control maps: what regimes ask for, as data files; and how each control stands, from figures alone."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from falaj.comply.records import ABSENT, NOT_APPLICABLE, PRESENT, Clause, ControlMap, Demand, Judged
from falaj.core.errors import NotFound
from falaj.store.codec import from_plain

FOLDER = Path(__file__).parent / "controls"
CATALOGUE = "catalogue.toml"
Figures = Mapping[str, int | None]
"""Name to number; None is what could not be found out."""


@cache
def catalogue() -> tuple[Demand, ...]:
    """Every control, in order."""
    tree = tomllib.loads((FOLDER / CATALOGUE).read_text(encoding="utf-8"))
    found: tuple[Demand, ...] = from_plain(tuple[Demand, ...], tree["controls"])
    return found


@cache
def control_maps() -> dict[str, ControlMap]:
    """Every map by its id."""
    files = [path for path in sorted(FOLDER.glob("*.toml")) if path.name != CATALOGUE]
    maps = [from_plain(ControlMap, tomllib.loads(path.read_text(encoding="utf-8"))) for path in files]
    return {one.id: one for one in maps}


def control_map(regime: str) -> ControlMap:
    """The map of one regime or standard."""
    found = control_maps().get(regime.upper())
    if found is None:
        known = ", ".join(control_maps())
        raise NotFound(f"there is no control map for {regime[:40]!r}", f"there are: {known}")
    return found


def judge(asked: ControlMap, figures: Figures, missing: Mapping[str, str]) -> tuple[Judged, ...]:
    """Every control of the catalogue, those too that the regime does not ask for: nothing is left out silently."""
    clauses = {one.control: one for one in asked.controls}
    return tuple(_judged(demand, clauses.get(demand.id), figures, missing, asked) for demand in catalogue())


def _judged(
    demand: Demand, clause: Clause | None, figures: Figures, missing: Mapping[str, str], asked: ControlMap
) -> Judged:
    if clause is None:
        reason = f"the map of {asked.id}, version {asked.version}, names no duty for it"
        return Judged(demand.id, NOT_APPLICABLE, demand.title, reason, files=demand.files)
    status, reason = standing(demand, figures, missing)
    return Judged(
        demand.id, status, demand.title, reason, clause.clauses, clause.source, clause.checked, demand.files,
        demand.not_covered,
    )  # fmt: skip


def standing(demand: Demand, figures: Figures, missing: Mapping[str, str]) -> tuple[str, str]:
    """Where a control stands, and why."""
    if demand.unless and figures.get(demand.unless) == 0:
        return NOT_APPLICABLE, f"{_words(demand.unless)}: 0 in this period"
    unknown = [name for name in (*demand.some, *demand.none, *demand.reads) if figures.get(name) is None]
    wrong = [f"{_words(name)}: {figures[name]}, must be 0" for name in demand.none if figures.get(name)]
    empty = [f"{_words(name)}: 0, must be more" for name in demand.some if figures.get(name) == 0]
    unseen = [f"{_words(name)}: not known ({missing.get(name, 'nothing records it')})" for name in unknown]
    if wrong or empty or unseen:
        return ABSENT, "; ".join([*wrong, *empty, *unseen])
    shown = dict.fromkeys((*demand.some, *demand.none, *demand.reads))
    return PRESENT, "; ".join(f"{_words(name)}: {figures[name]}" for name in shown)


def _words(figure: str) -> str:
    return figure.replace("_", " ")
