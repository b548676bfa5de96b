"""Builds the printable impact assessment, with its risk matrix, in one language."""

from collections.abc import Mapping
from typing import Any

from falaj.core.documents import (
    Cell,
    Document,
    Organisation,
    Paragraph,
    Person,
    Section,
    Signatures,
    Table,
    describe_date,
    describe_day,
)
from falaj.core.documents.dates import NO_DATE
from falaj.govern.officer_notices import OFFICER_ROLE
from falaj.privacy.document_words import words_in
from falaj.privacy.records import Assessment
from falaj.privacy.risks import Risk, rate_risk

TONES = {"low": "good", "medium": "muted", "high": "warning", "very-high": "bad"}
_RATINGS = range(1, 6)


def build_assessment_document(assessment: Assessment, organisation: Organisation, language: str) -> Document:
    """Return an assessment as a document, in a translation where there is one."""
    words, ref, timezone = words_in(language), assessment.ref, organisation.timezone
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
        Section(words["risk_table"], _risks(assessment.matrix, words)),
        Section(words["risk_matrix"], (_matrix(assessment.matrix, words), Paragraph(words["risk_key"], "muted"))),
        Section(words["measures"], (text_of("measures"),)),
        Section(words["opinion"], _opinion(assessment, words)),
        Section(words["signatures"], (_signers(assessment, organisation, words, language),)),
    )
    number = f"DPIA-{ref.project}-{ref.name}-{ref.version}"
    return Document(
        language, organisation, words["dpia_title"], number, sections,
        subtitle=str(ref), facts=facts, notice=words["dpia_notice"],
    )  # fmt: skip


def _risks(risks: tuple[Risk, ...], words: Mapping[str, str]) -> tuple[Any, ...]:
    if not risks:
        return (Paragraph(words["risk_missing"], "warning"),)
    rows = tuple(
        (
            f"R{number}", risk.text, f"{risk.likelihood} x {risk.severity}", _level_cell(risk.level, words),
            risk.measure, f"{risk.residual_likelihood} x {risk.residual_severity}",
            _level_cell(risk.residual_level, words),
        )
        for number, risk in enumerate(risks, start=1)
    )  # fmt: skip
    rated = f"{words['likelihood']} x {words['severity']}"
    heads = ("", words["risk"], rated, words["level"], words["measure"], rated, words["residual"])
    table = Table(heads, rows, compact=True)
    if any(risk.residual_level in ("high", "very-high") for risk in risks):
        return table, Paragraph(words["residual_high"], "bad")
    return (table,)


def _matrix(risks: tuple[Risk, ...], words: Mapping[str, str]) -> Table:
    """Likelihood downwards from high to low, severity across; each cell names the risks that are left there."""
    rows = []
    for likelihood in reversed(_RATINGS):
        cells = [_matrix_cell(risks, likelihood, severity, words) for severity in _RATINGS]
        row: tuple[str | Cell, ...] = (f"{words['likelihood']} {likelihood}", *cells)
        rows.append(row)
    heads = ("", *(f"{words['severity']} {severity}" for severity in _RATINGS))
    return Table(heads, tuple(rows))


def _matrix_cell(risks: tuple[Risk, ...], likelihood: int, severity: int, words: Mapping[str, str]) -> Cell:
    left = [
        f"R{number}" for number, risk in enumerate(risks, start=1)
        if (risk.residual_likelihood, risk.residual_severity) == (likelihood, severity)
    ]  # fmt: skip
    level = rate_risk(likelihood, severity)
    return Cell(", ".join(left) or words[level], TONES[level] if left else "muted")


def _level_cell(level: str, words: Mapping[str, str]) -> Cell:
    return Cell(words[level], TONES[level])


def _opinion(assessment: Assessment, words: Mapping[str, str]) -> tuple[Any, ...]:
    if not assessment.approved_by:
        return (Paragraph(words["no_opinion"], "bad"),)
    by_officer = OFFICER_ROLE in assessment.approver_roles
    role = words["role_dpo"] if by_officer else words["role_other"]
    heading = words["opinion_of"].format(name=assessment.approved_by, role=role)
    opinion = (Paragraph(heading), Paragraph(assessment.opinion, "good"))
    return opinion if by_officer else (*opinion, Paragraph(words["no_dpo_opinion"], "warning"))


def _signers(assessment: Assessment, organisation: Organisation, words: Mapping[str, str], language: str) -> Signatures:
    return Signatures(
        (
            Person(assessment.author, words["signed_author"]),
            Person(assessment.approved_by, words["signed_approver"]),
            Person(organisation.officer_in(language), words["signed_officer"]),
        )
    )
