"""Control maps are data that names its sources; the status of a control follows from how its measures operated."""

from datetime import date

import pytest

from falaj.comply.control_maps import (
    find_control_map,
    judge_controls,
    load_catalogue,
    load_control_maps,
    load_document_kinds,
)
from falaj.comply.measures import MEASURES_BY_NAME
from falaj.comply.period_facts import AttachedDocument, PeriodFacts
from falaj.comply.records import ATTESTED, EXCEPTIONS, NOT_APPLICABLE, NOT_SHOWN, OPERATING
from falaj.comply.row_checks import load_product_limits
from falaj.core.errors import NotFound
from falaj.govern.legal_periods import CHECK_LEVELS

EMPTY = PeriodFacts("ISO-27001", {}, 0.0, 1.0)


def test_the_maps_that_docs_list_are_there() -> None:
    assert set(load_control_maps()) == {
        "AE-PDPL", "AE-CBUAE", "AE-DIFC", "AE-ADGM", "AE-HEALTH", "EU-GDPR", "EU-AI-ACT", "ISO-27001", "ISO-42001",
        "NIST-AI-RMF", "SOC-2", "UAE-IA", "DUBAI-ISR",
    }  # fmt: skip
    assert [demand.id for demand in load_catalogue()] == [
        f"C{number}" for number in range(1, len(load_catalogue()) + 1)
    ]


@pytest.mark.parametrize("regime", sorted(load_control_maps()))
def test_every_clause_says_its_source_and_who_reviewed_it(regime: str) -> None:
    chosen, ids = find_control_map(regime), {demand.id for demand in load_catalogue()}
    assert date.fromisoformat(chosen.reviewed_on) < date.fromisoformat(chosen.review_by)
    assert chosen.reviewed_by
    assert set(chosen.title) == {"ar", "en"}
    assert {clause.control for clause in chosen.controls} <= ids
    assert len({clause.control for clause in chosen.controls}) == len(chosen.controls)
    assert all(clause.source and clause.clauses for clause in chosen.controls)
    assert {clause.checked for clause in chosen.controls} <= set(CHECK_LEVELS)
    assert all(clause.url for clause in chosen.controls if clause.quote)
    assert not any(clause.quote for clause in chosen.controls if clause.checked in ("general", "assumed"))


@pytest.mark.parametrize("regime", ["EU-GDPR", "EU-AI-ACT"])
def test_maps_of_public_law_quote_its_text(regime: str) -> None:
    for clause in find_control_map(regime).controls:
        assert clause.checked == "primary", clause.control
        assert clause.quote, clause.control
        assert clause.url.startswith("https://eur-lex.europa.eu/"), clause.control


def test_every_control_names_a_platform_fact_or_takes_a_document() -> None:
    for demand in load_catalogue():
        assert demand.measures or demand.documents, demand.id
        assert set(demand.measures) <= set(MEASURES_BY_NAME), demand.id
        assert set(demand.documents) <= set(load_document_kinds()), demand.id
        assert set(demand.title) == {"ar", "en"}
    used = {name for demand in load_catalogue() for name in demand.measures}
    assert used == set(MEASURES_BY_NAME)
    date.fromisoformat(load_product_limits()["review_by"])


def test_the_ai_act_map_covers_the_duties_of_high_risk_systems() -> None:
    text = " ".join(clause for entry in find_control_map("EU-AI-ACT").controls for clause in entry.clauses)
    for article in ("Art. 6", "Annex IV", *(f"Art. {n}" for n in (9, 10, 12, 13, 14, 15, 19, 26, 27, 72, 73))):
        assert article in text, article


def test_what_cannot_be_read_is_not_shown_and_nothing_is_left_out() -> None:
    judged = judge_controls(find_control_map("ISO-27001"), EMPTY)
    assert [control.id for control in judged] == [demand.id for demand in load_catalogue()]
    assert {control.status for control in judged} <= {NOT_SHOWN, NOT_APPLICABLE}
    assert all(control.reason for control in judged)


def attached(kind: str, dated: float = 0.5) -> AttachedDocument:
    return AttachedDocument(kind, f"document:hr/{kind}-file", f"sha256:{'9f' * 32}", dated)


def test_an_organisational_control_is_shown_by_a_document_of_its_kind_and_period() -> None:
    def judge(*documents: AttachedDocument) -> tuple[str, str]:
        facts = PeriodFacts("ISO-27001", {}, 0.0, 1.0, documents=documents)
        (control,) = [
            control for control in judge_controls(find_control_map("ISO-27001"), facts) if control.id == "C37"
        ]
        return control.status, control.reason

    absent = (NOT_SHOWN, "training records: the platform cannot show it, attach a document")
    assert judge() == absent
    status, reason = judge(attached("training"))
    assert (status, reason) == (
        ATTESTED, "training records: attached (document:hr/training-file sha256:9f9f9f9f9f9f)",
    )  # fmt: skip
    assert judge(attached("training", dated=2.0)) == absent, "dated after the period"
    assert judge(attached("training", dated=-1.0)) == absent, "dated before the period"
    named = AttachedDocument("", "enclosed-training-2026.pdf", "sha256:9f", 0.5)
    assert judge(named) == absent, "a word in a name declares nothing"


def test_a_document_does_not_stand_in_for_a_measure_that_failed() -> None:
    card = {"ref": "model:fraud/scorer@v1", "card": None, "signed": True, "purposes": []}
    files = {
        "cards.jsonl": [card], "boms.jsonl": [{"ref": card["ref"]}],
        "deployments.jsonl": [{"ref": card["ref"], "since": 0.5, "until": 0.0}],
    }  # fmt: skip
    facts = PeriodFacts("EU-AI-ACT", files, 0.0, 1.0, documents=(attached("technical-file"),))
    by_id = {control.id: control for control in judge_controls(find_control_map("EU-AI-ACT"), facts)}
    assert by_id["C26"].status == EXCEPTIONS
    assert "0 of 1, exceptions: model:fraud/scorer@v1" in by_id["C26"].reason
    files["cards.jsonl"] = [card | {"card": {"purpose": "x"}}]
    by_id = {control.id: control for control in judge_controls(find_control_map("EU-AI-ACT"), facts)}
    assert by_id["C26"].status == OPERATING


def test_an_unknown_regime_is_answered_with_those_there_are() -> None:
    with pytest.raises(NotFound, match="no control map"):
        find_control_map("XX-NONE")
