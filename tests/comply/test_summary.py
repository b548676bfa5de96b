"""What people read: the Arabic is Arabic, figure by figure, and nothing is said in one language only."""

import re
import tomllib
from pathlib import Path

import pytest

from falaj.comply.control_maps import find_control_map, judge_controls, load_control_maps
from falaj.comply.measures import MEASURES_BY_NAME
from falaj.comply.period_facts import PeriodFacts
from falaj.comply.records import ControlJudgement, ControlMap
from falaj.comply.summary import WORDS_FILE, format_markdown, load_words, translate_reason
from falaj.comply.summary_document import SummaryFacts, build_summary_document
from falaj.core.documents import (
    BulletList,
    IssuingOrganisation,
    KeyValues,
    Paragraph,
    Table,
    TableCell,
    render_document,
    render_documents,
)
from falaj.govern.regimes import load_regimes
from tests.printed import print_pdf, read_pages

JANUARY, NOVEMBER = 1_767_211_200.0, 1_794_981_852.0
NAMES = {"SBOM", "GDPR", "ISO", "DIFC", "ADGM", "PDPL", "CBUAE", "NIST", "SOC"}
LATIN = re.compile(r"[A-Za-z]{2,}")


def test_both_languages_have_the_same_words() -> None:
    assert set(load_words("ar")) == set(load_words("en"))


def test_every_measure_has_an_arabic_name() -> None:
    phrases = tomllib.loads(WORDS_FILE.read_text(encoding="utf-8"))["phrases"]
    assert sorted({name.replace("-", " ") for name in MEASURES_BY_NAME} - set(phrases)) == []


@pytest.mark.parametrize(
    "reason",
    [
        "labelled things: 1 of 2, exceptions: 3",
        "restore drills: none, must be more",
        "record of processing: not known (nothing records it)",
        "endpoints watched: none in this period",
        "log checkpoints: 12 of 12, not covered: 3",
        "training records: the platform cannot show it, attach a document",
        "fundamental rights impact assessment: attached (9 9)",
        "consents proved and in force: 1 of 3, exceptions: 7: no document, no language | 3: no consent in force",
        "erasures complete and in time: 0 of 1, exceptions: 7: kept by a duty until 2036-01-01",
        "log kept six months: not known (the log begins 2026-10-01)",
        "access reviews: not known (the period is shorter than 92 days)",
    ],
)
def test_reasons_are_said_in_arabic(reason: str) -> None:
    assert translate_reason(reason, "en") == reason
    assert not LATIN.search(translate_reason(reason, "ar")), translate_reason(reason, "ar")


def test_what_is_hostile_stays_text() -> None:
    asked = find_control_map("AE-PDPL")
    controls = judge_nothing(asked, {"labels.jsonl": "<script>alert(1)</script>"})
    facts = SummaryFacts(asked, None, controls, 0.0, NOVEMBER, "falaj/<b>/bank/home", {"x": "<img src=x>"}, ())
    for language in ("ar", "en"):
        shown = render_document(build_summary_document(facts, IssuingOrganisation(name="<i>"), language))
        for tag in ("<script>", "<img", "<b>/bank", "<i>"):
            assert tag not in shown
    told = format_markdown("ar", asked, {"period": "2026", "log": "x"}, controls, [])
    assert all(f"{one.id} " in told for one in controls)


@pytest.mark.parametrize("regime", sorted(load_control_maps()))
def test_the_printed_summary_is_arabic_in_its_arabic_part(regime: str) -> None:
    asked = find_control_map(regime)
    facts = SummaryFacts(asked, None, judge_nothing(asked), 0.0, NOVEMBER, "falaj/test/bank/home", {}, ())
    organisation = IssuingOrganisation(name="Gulf Example Bank", name_ar="بنك الخليج المثالي")
    document = build_summary_document(facts, organisation, "ar")
    shown = render_document(document)
    assert '<article id="d0" lang="ar" dir="rtl">' in shown
    texts = [text for section in document.sections for block in section.blocks for text in texts_of(block)]
    allowed = {
        *asked.id.split("-"),
        asked.id.removesuffix("-27001"),
        asked.id,
        "falaj",
        "test",
        "bank",
        "home",
        "evidence",
        "proof",
        "json",
    }
    words = {word for text in texts for word in re.findall(r"[A-Za-z][A-Za-z-]+[A-Za-z]", text)} - allowed
    assert words <= NAMES, words - NAMES


def test_the_summary_prints_with_organisation_period_and_page_numbers(tmp_path: Path) -> None:
    asked = find_control_map("AE-PDPL")
    facts = SummaryFacts(asked, None, judge_nothing(asked), JANUARY, NOVEMBER, "falaj/test/bank/home", {}, ())
    organisation = IssuingOrganisation(name="Gulf Example Bank", name_ar="بنك الخليج المثالي")
    both = [build_summary_document(facts, organisation, language) for language in ("ar", "en")]
    (tmp_path / "summary.html").write_text(render_documents(both), encoding="utf-8")
    pages = read_pages(print_pdf(tmp_path / "summary.html", tmp_path / "summary.pdf"))
    english = [page for page in pages if "Gulf Example Bank" in page]
    assert f"Page {len(pages)} of {len(pages)}" in pages[-1]
    assert "1 January 2026 to 18 November 2026" in english[0]
    assert "Contents" in english[0]
    assert "Compiled by" in pages[-1]


def test_the_summary_says_why_the_regime_does_not_apply_and_who_reviewed_the_map() -> None:
    asked, regime = find_control_map("AE-PDPL"), load_regimes()["AE-PDPL"]
    exemption = next(each for each in regime.exemptions if each.id == "banking-credit")
    facts = SummaryFacts(
        asked, regime, judge_nothing(asked), 0.0, NOVEMBER, "falaj/test/bank/home", {}, (), {exemption.because: 3}
    )
    english, arabic = (build_summary_document(facts, IssuingOrganisation(), language) for language in ("en", "ar"))
    for document, reason in ((english, exemption.because), (arabic, exemption.because_ar)):
        rows = [block.rows for section in document.sections for block in section.blocks if isinstance(block, Table)]
        assert ((reason, "3"),) in rows
    assert ("Map last reviewed", "18 November 2026, by Falaj maintainers (not counsel)") in english.facts
    assert ("آخر مراجعة للخريطة", "18 نوفمبر 2026، القائمون على فلج (ليسوا مستشارين قانونيين)") in arabic.facts


def test_controls_without_a_duty_stand_in_one_paragraph_and_not_in_the_table() -> None:
    asked = find_control_map("AE-CBUAE")
    controls = judge_nothing(asked)
    facts = SummaryFacts(asked, None, controls, 0.0, NOVEMBER, "falaj/test/bank/home", {}, ())
    document = build_summary_document(facts, IssuingOrganisation(), "en")
    named = {clause.control for clause in asked.controls}
    (table,) = [
        block for section in document.sections for block in section.blocks
        if isinstance(block, Table) and len(block.columns) == 5
    ]  # fmt: skip
    assert {str(row[0]).split(" ")[0] for row in table.rows} == named
    (text,) = [
        block.text for section in document.sections for block in section.blocks
        if isinstance(block, Paragraph) and block.text.startswith("not applicable, because")
    ]  # fmt: skip
    assert all(f"{control.id} " in text for control in controls if control.id not in named)


def texts_of(block: object) -> list[str]:
    """Every text of a block of a document."""
    if isinstance(block, Table):
        return [cell.text if isinstance(cell, TableCell) else cell for row in block.rows for cell in row]
    if isinstance(block, KeyValues):
        return [text for pair in block.pairs for text in pair]
    if isinstance(block, BulletList):
        return list(block.items)
    return [block.text] if isinstance(block, Paragraph) else []


def judge_nothing(asked: ControlMap, missing: dict[str, str] | None = None) -> tuple[ControlJudgement, ...]:
    """The controls of a map where no file of a pack could be read."""
    return judge_controls(asked, PeriodFacts(asked.id, {}, 0.0, 1.0, missing or {}))
