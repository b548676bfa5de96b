"""Control maps are data that names its sources; how a control stands follows from figures and nothing else."""

from datetime import date

import pytest

from falaj.comply.figures import house_rules, sources
from falaj.comply.mapping import catalogue, control_map, control_maps, judge, standing
from falaj.comply.records import ABSENT, NOT_APPLICABLE, PRESENT, Demand
from falaj.core.errors import NotFound

TITLE = {"en": "x", "ar": "س"}
FIGURED = {
    *("events", "checkpoints", "transfers", "promotions", "drills", "failed_drills", "column_policies"),
    *("enclosed_sbom", "enclosed_scans", "enclosed_network", "enclosed_exit"),
}


def test_the_maps_that_were_promised_are_there() -> None:
    assert set(control_maps()) == {"AE-PDPL", "AE-CBUAE", "AE-DIFC", "AE-ADGM", "EU-GDPR", "ISO-27001"}
    assert [demand.id for demand in catalogue()] == [f"C{number}" for number in range(1, 25)]


@pytest.mark.parametrize("regime", sorted(control_maps()))
def test_every_clause_says_its_source_and_how_far_it_was_checked(regime: str) -> None:
    found, known = control_map(regime), {demand.id for demand in catalogue()}
    date.fromisoformat(found.review_by)
    assert set(found.title) == {"ar", "en"}
    assert {one.control for one in found.controls} <= known
    assert len({one.control for one in found.controls}) == len(found.controls)
    assert all(one.source and one.clauses for one in found.controls)
    assert {one.checked for one in found.controls} <= {"primary", "secondary", "assumed"}


def test_every_figure_a_control_asks_for_is_counted() -> None:
    asked = {
        name
        for one in catalogue()
        for name in (*one.some, *one.none, *one.reads, *([one.unless] if one.unless else []))
    }
    assert asked <= FIGURED | set(sources())
    assert all(set(one.title) == {"ar", "en"} for one in catalogue())
    date.fromisoformat(house_rules()["review_by"])


@pytest.mark.parametrize(
    ("demand", "figures", "status", "word"),
    [
        (Demand("C1", TITLE, (), some=("things",)), {"things": 3}, PRESENT, "things: 3"),
        (Demand("C1", TITLE, (), some=("things",)), {"things": 0}, ABSENT, "must be more"),
        (Demand("C1", TITLE, (), some=("things",)), {}, ABSENT, "not known"),
        (Demand("C1", TITLE, (), none=("bad_ones",)), {"bad_ones": 2}, ABSENT, "bad ones: 2, must be 0"),
        (Demand("C1", TITLE, (), none=("bad_ones",)), {"bad_ones": None}, ABSENT, "denied"),
        (Demand("C1", TITLE, (), reads=("seen",)), {"seen": 0}, PRESENT, "seen: 0"),
        (Demand("C1", TITLE, (), some=("tests",), unless="models"), {"models": 0}, NOT_APPLICABLE, "models: 0"),
        (Demand("C1", TITLE, (), some=("tests",), unless="models"), {"models": None, "tests": 0}, ABSENT, "must be"),
    ],
)
def test_how_a_control_stands(demand: Demand, figures: dict[str, int | None], status: str, word: str) -> None:
    found, reason = standing(demand, figures, {"bad_ones": "denied"})
    assert found == status
    assert word in reason


def test_what_nobody_knows_is_absent_and_nothing_is_left_out() -> None:
    found = judge(control_map("ISO-27001"), {}, {})
    assert [one.id for one in found] == [demand.id for demand in catalogue()]
    assert PRESENT not in {one.status for one in found}
    assert all(one.reason for one in found)


def test_an_unknown_regime_is_told_with_those_there_are() -> None:
    with pytest.raises(NotFound, match="no control map"):
        control_map("XX-NONE")
