"""Builds the printable impact assessment, with its risk matrix, in one language."""

from collections.abc import Mapping
from typing import Any

from falaj.core.documents import (
    ContactPerson,
    Document,
    IssuingOrganisation,
    Paragraph,
    Section,
    SignatureLines,
    Table,
    TableCell,
    describe_date,
    describe_day,
)
from falaj.core.documents.dates import NO_DATE
from falaj.govern.officer_notices import OFFICER_ROLE
from falaj.privacy.document_words import load_words
from falaj.privacy.records import ImpactAssessment
from falaj.privacy.risks import PrivacyRisk, rate_risk

LEVEL_TONES = {"low": "good", "medium": "muted", "high": "warning", "very-high": "bad"}
_RATING_RANGE = range(1, 6)


def build_assessment_document(
    assessment: ImpactAssessment, organisation: IssuingOrganisation, language: str
) -> Document:
    """Return an assessment as a document, in a translation where there is one."""
    words, ref, timezone = load_words(language), assessment.ref, organisation.timezone
    facts = (
        (words["purpose"], assessment.purpose),
        (words["version"], ref.version),
        (words["state"], words.get(assessment.state, words["expired"])),
        (words["author"], assessment.author),
        (words["written_on"], describe_date(assessment.written_at, language, timezone)),
        (words["approved_by"], assessment.approved_by or NO_DATE),
        (words["approved_on"], describe_date(assessment.approved_at, language, timezone)),
        (words["review"], describe_day(assessment.review_by, language)),
    )

    def text_of(name: str) -> Paragraph:
        return Paragraph(assessment.translations.get(f"{name}.{language}") or str(getattr(assessment, name)))

    sections = (
        Section(words["description"], (text_of("description"),)),
        Section(words["necessity"], (text_of("necessity"),)),
        Section(words["risk_summary"], (text_of("risks"),)),
        Section(words["risk_table"], _build_risk_table(assessment.matrix, words)),
        Section(
            words["risk_matrix"], (_build_risk_matrix(assessment.matrix, words), Paragraph(words["risk_key"], "muted"))
        ),
        Section(words["measures"], (text_of("measures"),)),
        Section(words["opinion"], _build_opinion(assessment, words)),
        Section(words["signatures"], (_build_signatures(assessment, organisation, words, language),)),
    )
    number = f"DPIA-{ref.project}-{ref.name}-{ref.version}"
    return Document(
        language, organisation, words["dpia_title"], number, sections,
        subtitle=str(ref), facts=facts, notice=words["dpia_notice"],
    )  # fmt: skip


def _build_risk_table(risks: tuple[PrivacyRisk, ...], words: Mapping[str, str]) -> tuple[Any, ...]:
    if not risks:
        return (Paragraph(words["risk_missing"], "warning"),)
    rows = tuple(
        (
            f"R{number}", risk.text, f"{risk.likelihood} x {risk.severity}", _make_level_cell(risk.level, words),
            risk.measure, f"{risk.residual_likelihood} x {risk.residual_severity}",
            _make_level_cell(risk.residual_level, words),
        )
        for number, risk in enumerate(risks, start=1)
    )  # fmt: skip
    rating_head = f"{words['likelihood']} x {words['severity']}"
    column_heads = ("", words["risk"], rating_head, words["level"], words["measure"], rating_head, words["residual"])
    table = Table(column_heads, rows, compact=True)
    if any(risk.residual_level in ("high", "very-high") for risk in risks):
        return table, Paragraph(words["residual_high"], "bad")
    return (table,)


def _build_risk_matrix(risks: tuple[PrivacyRisk, ...], words: Mapping[str, str]) -> Table:
    """Likelihood downwards from high to low, severity across; each cell names the risks that are left there."""
    rows = []
    for likelihood in reversed(_RATING_RANGE):
        cells = [_make_matrix_cell(risks, likelihood, severity, words) for severity in _RATING_RANGE]
        row: tuple[str | TableCell, ...] = (f"{words['likelihood']} {likelihood}", *cells)
        rows.append(row)
    column_heads = ("", *(f"{words['severity']} {severity}" for severity in _RATING_RANGE))
    return Table(column_heads, tuple(rows))


def _make_matrix_cell(
    risks: tuple[PrivacyRisk, ...], likelihood: int, severity: int, words: Mapping[str, str]
) -> TableCell:
    remaining_risks = [
        f"R{number}" for number, risk in enumerate(risks, start=1)
        if (risk.residual_likelihood, risk.residual_severity) == (likelihood, severity)
    ]  # fmt: skip
    level = rate_risk(likelihood, severity)
    return TableCell(", ".join(remaining_risks) or words[level], LEVEL_TONES[level] if remaining_risks else "muted")


def _make_level_cell(level: str, words: Mapping[str, str]) -> TableCell:
    return TableCell(words[level], LEVEL_TONES[level])


def _build_opinion(assessment: ImpactAssessment, words: Mapping[str, str]) -> tuple[Any, ...]:
    if not assessment.approved_by:
        return (Paragraph(words["no_opinion"], "bad"),)
    by_officer = OFFICER_ROLE in assessment.approver_roles
    role = words["role_dpo"] if by_officer else words["role_other"]
    heading = words["opinion_of"].format(name=assessment.approved_by, role=role)
    opinion = (Paragraph(heading), Paragraph(assessment.opinion, "good"))
    return opinion if by_officer else (*opinion, Paragraph(words["no_dpo_opinion"], "warning"))


def _build_signatures(
    assessment: ImpactAssessment, organisation: IssuingOrganisation, words: Mapping[str, str], language: str
) -> SignatureLines:
    return SignatureLines(
        (
            ContactPerson(assessment.author, words["signed_author"]),
            ContactPerson(assessment.approved_by, words["signed_approver"]),
            ContactPerson(organisation.officer_in(language), words["signed_officer"]),
        )
    )
