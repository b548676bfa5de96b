"""Builds the printable evidence summary of a pack, in one language: controls, their status, what is not verified."""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any

from falaj.comply.records import (
    ATTESTED,
    EXCEPTIONS,
    NOT_APPLICABLE,
    NOT_SHOWN,
    OPERATING,
    STATUSES,
    ControlJudgement,
    ControlMap,
)
from falaj.comply.summary import list_unverified, load_words, translate_reason
from falaj.core.data import dataclass
from falaj.core.documents import (
    BulletList,
    ContactPerson,
    Document,
    IssuingOrganisation,
    KeyValues,
    Paragraph,
    Section,
    SignatureLines,
    Table,
    TableCell,
    describe_day,
    describe_moment,
    describe_period,
)
from falaj.govern.records import LegalRegime

SUMMARY_WORDS_FILE = Path(__file__).with_name("summary_words.toml")
STATUS_TONES = {
    OPERATING: "good",
    EXCEPTIONS: "warning",
    ATTESTED: "warning",
    NOT_SHOWN: "bad",
    NOT_APPLICABLE: "muted",
}
MAINTAINERS = "Falaj maintainers (not counsel)"  # how shipped maps and profiles spell their reviewer
_SHOWN_TONES = ("good", "muted")
_CLAUSE_NUMBER_PATTERN = re.compile(r"(?:\b[A-Z]\.)?\d[\w.]*(?:\([0-9a-z]+\))*")


@dataclass(frozen=True, slots=True)
class SummaryFacts:
    """What a summary is about: the pack's period and log, its controls, and what could not be read."""

    control_map: ControlMap
    regime: LegalRegime | None
    controls: tuple[ControlJudgement, ...]
    since: float
    until: float
    origin: str
    missing: Mapping[str, str]
    documents: Sequence[Mapping[str, Any]]
    exempt: Mapping[str, int] = field(default_factory=dict)
    """How many versions have the regime in their label though it does not apply to them, by the reason in English."""


@cache
def load_summary_words(language: str) -> Mapping[str, str]:
    """Return the words of the printed summary in a language."""
    words: dict[str, str] = tomllib.loads(SUMMARY_WORDS_FILE.read_text(encoding="utf-8"))[language]
    return words


def build_summary_document(facts: SummaryFacts, organisation: IssuingOrganisation, language: str) -> Document:
    """Return the evidence summary as a document."""
    words, common_words, timezone = load_summary_words(language), load_words(language), organisation.timezone
    control_map = facts.control_map
    start, end = (describe_moment(moment, language, timezone) for moment in (facts.since, facts.until))
    header_facts = (
        (words["regime"], f"{control_map.title[language]} ({control_map.id})"),
        (words["exact_period"], f"{start} {words['to']} {end}"),
        (common_words["log"], facts.origin),
        (words["version"], str(control_map.version)),
        (words["reviewed"], _describe_review(control_map, language)),
        (words["review_by"], describe_day(control_map.review_by, language)),
    )
    outside = (Section(words["outside"], (_exempt_versions(facts, language),)),) if facts.exempt else ()
    unasked = [control for control in facts.controls if not control.clauses]
    signers = SignatureLines((ContactPerson("", words["compiled_by"]), ContactPerson("", words["reviewed_by"])))
    sections = (
        Section(
            words["about"],
            (Paragraph(common_words["who"]), Paragraph(common_words["state"]), _build_count_table(facts, language)),
        ),
        Section(words["open_controls"], (_build_open_controls_table(facts.controls, language),)),
        Section(words["all_controls"], (_asked_controls(facts.controls, language),)),
        *((Section(words["unasked"], (_unasked_controls(unasked, language),)),) if unasked else ()),
        *outside,
        Section(words["not_verified"], (BulletList(_list_unverified_notes(facts, language)),)),
        Section(words["documents"], (_build_documents_table(facts.documents, language),)),
        Section(words["signatures"], (signers,)),
    )
    return Document(
        language,
        organisation,
        common_words["title"],
        f"EVIDENCE-{control_map.id}-{facts.origin.replace('/', '-')}",
        sections,
        period=describe_period(facts.since, facts.until, language, timezone),
        facts=header_facts,
        notice=common_words["not"],
    )


def _build_count_table(facts: SummaryFacts, language: str) -> KeyValues:
    common_words, counts = load_words(language), Counter(control.status for control in facts.controls)
    return KeyValues(tuple((common_words[status], str(counts[status])) for status in STATUSES))


def _describe_review(control_map: ControlMap, language: str) -> str:
    """Return when the map was compared with its sources, and by whom."""
    words = load_summary_words(language)
    if not control_map.reviewed_on:
        return words["not_reviewed"]
    reviewer = control_map.reviewed_by
    name = words["maintainers"] if reviewer == MAINTAINERS else reviewer
    return words["reviewed_text"].format(day=describe_day(control_map.reviewed_on, language), name=name)


def _exempt_versions(facts: SummaryFacts, language: str) -> Table:
    """Why the regime does not apply to data that has it in its label, and to how many versions."""
    words = load_summary_words(language)
    arabic = {each.because: each.because_ar for each in facts.regime.exemptions} if facts.regime else {}
    rows = tuple(
        (arabic.get(reason, reason) if language == "ar" else reason, str(count))
        for reason, count in sorted(facts.exempt.items())
    )
    return Table((words["because"], words["versions"]), rows)


def _build_open_controls_table(controls: Sequence[ControlJudgement], language: str) -> Table:
    words = load_summary_words(language)
    rows = tuple(
        (
            _format_control(control, language),
            _make_status_cell(control, language),
            translate_reason(control.reason, language),
        )
        for control in controls
        if STATUS_TONES[control.status] not in _SHOWN_TONES
    )
    heads = (words["control"], words["status"], words["reason"])
    return Table(heads, rows, empty=load_words(language)["none"], compact=True)


def _asked_controls(controls: Sequence[ControlJudgement], language: str) -> Table:
    """The controls that the map asks for."""
    words = load_summary_words(language)
    rows = tuple(
        (
            _format_control(control, language),
            _make_status_cell(control, language),
            translate_reason(control.reason, language),
            _format_clauses(control, language),
            _format_source(control, language),
        )
        for control in controls
        if control.clauses
    )
    heads = tuple(words[column] for column in ("control", "status", "reason", "clauses", "source"))
    return Table(heads, rows, compact=True)


def _unasked_controls(controls: Sequence[ControlJudgement], language: str) -> Paragraph:
    """The controls of the catalogue that the map names no duty for, in one paragraph."""
    comma = "، " if language == "ar" else "; "
    names = comma.join(_format_control(control, language) for control in controls)
    return Paragraph(f"{load_words(language)['unasked']} {names}", "muted")


def _format_control(control: ControlJudgement, language: str) -> str:
    return f"{control.id} {control.title[language]}"


def _make_status_cell(control: ControlJudgement, language: str) -> TableCell:
    return TableCell(load_words(language)[control.status], STATUS_TONES[control.status])


def _format_clauses(control: ControlJudgement, language: str) -> str:
    """The clauses; in Arabic their numbers alone, since maps write the words around them in English."""
    if language != "ar":
        return "; ".join(control.clauses)
    numbers = [number for clause in control.clauses for number in _CLAUSE_NUMBER_PATTERN.findall(clause)]
    return "، ".join(dict.fromkeys(numbers))


def _format_source(control: ControlJudgement, language: str) -> str:
    """How far a clause was checked; the source itself is a text in English, and stands in the English part."""
    if not control.checked:
        return ""
    check_text = load_summary_words(language)[f"checked_{control.checked}"]
    return check_text if language == "ar" else f"{control.source} ({check_text})"


def _list_unverified_notes(facts: SummaryFacts, language: str) -> tuple[str, ...]:
    if language != "ar":
        return tuple(list_unverified(facts.control_map, facts.regime, facts.missing))
    words, control_map = load_summary_words("ar"), facts.control_map
    unread_controls = sorted(clause.control for clause in control_map.controls if clause.checked != "primary")
    date = describe_day(control_map.review_by, "ar")
    lines = [
        words["map_unverified"].format(id=control_map.id, version=control_map.version, date=date),
        words["clauses_unverified"].format(ids="، ".join(unread_controls) or words["none"]),
    ]
    note_count = len(control_map.notes)
    if facts.regime is not None:
        note_count += len(facts.regime.notes)
        check_text = words[f"checked_{facts.regime.checked}"]
        lines.append(words["profile_unverified"].format(version=facts.regime.version, checked=check_text))
    lines.append(words["notes_elsewhere"].format(count=note_count))
    if facts.missing:
        lines.append(words["missing_files"].format(names=", ".join(sorted(facts.missing))))
    return tuple(lines)


def _build_documents_table(documents: Sequence[Mapping[str, Any]], language: str) -> Table:
    words = load_summary_words(language)
    rows = tuple((str(row["name"]), str(row["title"]), str(row["digest"]).removeprefix("sha256:")) for row in documents)
    heads = (words["document"], words["title_of"], words["digest"])
    return Table(heads, rows, empty=words["no_documents"], compact=True)
