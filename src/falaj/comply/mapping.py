"""Control maps: what regimes and standards ask for, as data files; and the status of each control."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from falaj.comply.measures import measure_document, measure_operation
from falaj.comply.operation import control_status, describe_operation
from falaj.comply.period_facts import PeriodFacts
from falaj.comply.records import NOT_APPLICABLE, Clause, ControlMap, Demand, Document, Judged
from falaj.core.errors import NotFound
from falaj.store.codec import from_plain

FOLDER = Path(__file__).parent / "controls"
CATALOGUE = "catalogue.toml"


@cache
def _catalogue_tree() -> dict[str, Any]:
    return tomllib.loads((FOLDER / CATALOGUE).read_text(encoding="utf-8"))


@cache
def catalogue() -> tuple[Demand, ...]:
    """Return every control, in order."""
    demands: tuple[Demand, ...] = from_plain(tuple[Demand, ...], _catalogue_tree()["controls"])
    return demands


@cache
def documents() -> dict[str, Document]:
    """Return every document that controls take, by its word."""
    listed: tuple[Document, ...] = from_plain(tuple[Document, ...], _catalogue_tree()["documents"])
    return {document.word: document for document in listed}


@cache
def control_maps() -> dict[str, ControlMap]:
    """Return every map by its id."""
    files = [path for path in sorted(FOLDER.glob("*.toml")) if path.name != CATALOGUE]
    maps = [from_plain(ControlMap, tomllib.loads(path.read_text(encoding="utf-8"))) for path in files]
    return {control_map.id: control_map for control_map in maps}


def control_map(regime: str) -> ControlMap:
    """Return the map of one regime or standard."""
    chosen = control_maps().get(regime.upper())
    if chosen is None:
        raise NotFound(f"there is no control map for {regime[:40]!r}", f"there are: {', '.join(control_maps())}")
    return chosen


def judge_controls(regime_map: ControlMap, facts: PeriodFacts) -> tuple[Judged, ...]:
    """Judge every control of the catalogue; one the map does not ask for is listed as not applicable."""
    clauses = {clause.control: clause for clause in regime_map.controls}
    return tuple(_judge_control(demand, clauses.get(demand.id), regime_map, facts) for demand in catalogue())


def _judge_control(demand: Demand, clause: Clause | None, regime_map: ControlMap, facts: PeriodFacts) -> Judged:
    if clause is None:
        reason = f"the map of {regime_map.id}, version {regime_map.version}, names no duty for it"
        return Judged(demand.id, NOT_APPLICABLE, demand.title, reason, files=demand.files)
    operations = (
        *(measure_operation(name, facts) for name in demand.measures),
        *(measure_document(documents()[word], facts) for word in demand.documents),
    )
    reason = "; ".join(describe_operation(operation) for operation in operations)
    return Judged(
        demand.id, control_status(operations), demand.title, reason, clause.clauses, clause.source, clause.checked,
        demand.files, demand.not_covered, operations, clause.url, clause.quote,
    )  # fmt: skip
