"""Control maps: what regimes and standards ask for, as data files; and the status of each control."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from falaj.comply.control_operation import compute_control_status, describe_operation
from falaj.comply.measures import measure_document, measure_operation
from falaj.comply.period_facts import PeriodFacts
from falaj.comply.records import (
    NOT_APPLICABLE,
    CatalogueControl,
    ControlClause,
    ControlJudgement,
    ControlMap,
    DocumentKind,
)
from falaj.core.errors import NotFound
from falaj.store.codec import from_plain

CONTROLS_FOLDER = Path(__file__).parent / "controls"
CATALOGUE_FILE = "catalogue.toml"


@cache
def _load_catalogue_file() -> dict[str, Any]:
    return tomllib.loads((CONTROLS_FOLDER / CATALOGUE_FILE).read_text(encoding="utf-8"))


@cache
def load_catalogue() -> tuple[CatalogueControl, ...]:
    """Return every control, in order."""
    controls: tuple[CatalogueControl, ...] = from_plain(
        tuple[CatalogueControl, ...], _load_catalogue_file()["controls"]
    )
    return controls


@cache
def load_document_kinds() -> dict[str, DocumentKind]:
    """Return every document that controls take, by its word."""
    document_kinds: tuple[DocumentKind, ...] = from_plain(tuple[DocumentKind, ...], _load_catalogue_file()["documents"])
    return {document.word: document for document in document_kinds}


@cache
def load_control_maps() -> dict[str, ControlMap]:
    """Return every map by its id."""
    files = [path for path in sorted(CONTROLS_FOLDER.glob("*.toml")) if path.name != CATALOGUE_FILE]
    maps = [from_plain(ControlMap, tomllib.loads(path.read_text(encoding="utf-8"))) for path in files]
    return {regime_map.id: regime_map for regime_map in maps}


def find_control_map(regime: str) -> ControlMap:
    """Return the map of one regime or standard."""
    regime_map = load_control_maps().get(regime.upper())
    if regime_map is None:
        raise NotFound(f"there is no control map for {regime[:40]!r}", f"there are: {', '.join(load_control_maps())}")
    return regime_map


def judge_controls(regime_map: ControlMap, facts: PeriodFacts) -> tuple[ControlJudgement, ...]:
    """Judge every control of the catalogue; one the map does not ask for is listed as not applicable."""
    clauses = {clause.control: clause for clause in regime_map.controls}
    return tuple(_judge_control(control, clauses.get(control.id), regime_map, facts) for control in load_catalogue())


def _judge_control(
    control: CatalogueControl, clause: ControlClause | None, regime_map: ControlMap, facts: PeriodFacts
) -> ControlJudgement:
    if clause is None:
        reason = f"the map of {regime_map.id}, version {regime_map.version}, names no duty for it"
        return ControlJudgement(control.id, NOT_APPLICABLE, control.title, reason, files=control.files)
    operations = (
        *(measure_operation(name, facts) for name in control.measures),
        *(measure_document(load_document_kinds()[document_kind], facts) for document_kind in control.documents),
    )
    reason = "; ".join(describe_operation(operation) for operation in operations)
    return ControlJudgement(
        control.id,
        compute_control_status(operations),
        control.title,
        reason,
        clause.clauses,
        clause.source,
        clause.checked,
        control.files,
        control.not_covered,
        operations,
        clause.url,
        clause.quote,
    )
