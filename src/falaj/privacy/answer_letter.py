"""The letter that answers a person's request for their data, as a document in one language. Pure.

The wording is in `answer_words.toml`; what is rendered and signed is the business of `access.py`.
"""

import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

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
    describe_date,
    describe_duration,
)
from falaj.core.documents.records import DocumentBlock
from falaj.govern.records import GrantState
from falaj.privacy.document_words import translate_law
from falaj.privacy.records import PORTABILITY, ConsentRecord, ProcessingPurpose, SubjectRequest

MAX_SHOWN_ROWS = 50  # rows of one source that the letter prints; the files have all
MAX_SHOWN_COLUMNS = 6  # a wider source is printed record by record
MAX_SHOWN_RECORDS = 10
MAX_VALUE_CHARS = 300  # characters of one value that the letter prints
_NAMED_KINDS = frozenset({"dataset", "model", "view", "endpoint", "trace", "run"})
RECORD_PREFIX = "record "
_PREFIX_WORDS = {RECORD_PREFIX: "description", "log of ": "log", "samples of ": "samples", "event ": "event"}
DAY_S = 86_400.0
Translate = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class KeepingLaw:
    """A law that keeps a source at least until a moment."""

    law: str
    """A regime; empty for a hold or an investigation, which is not told to the person: it may be about them."""
    until: float
    """0 while it has no date."""


@dataclass(frozen=True, slots=True)
class AnsweredSource:
    """What one source holds of the person, with what is known of it."""

    ref: str
    rows: tuple[Mapping[str, Any], ...]
    file: str
    zone: str = ""
    country: str = ""
    purposes: tuple[str, ...] = ()
    regimes: tuple[str, ...] = ()
    keep_until: float = 0.0
    duties: tuple[KeepingLaw, ...] = ()
    made_at: float = 0.0
    made_from: tuple[str, ...] = ()
    meanings: Mapping[str, str] | None = None
    """Columns with what they were declared to mean."""
    readers: int = 0
    reads: int = 0


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Everything that the letter says."""

    request: SubjectRequest
    subject: str
    answered_at: float
    sources: tuple[AnsweredSource, ...]
    missing: tuple[tuple[str, str], ...]
    """What the answer does not contain, and why."""
    consents: tuple[ConsentRecord, ...]
    purposes: Mapping[str, ProcessingPurpose]
    grants: tuple[GrantState, ...]
    laws: Mapping[str, str]
    """The titles of the regimes that apply, by their ids."""
    organisation: IssuingOrganisation


def build_letter(facts: AnswerFacts, language: str) -> Document:
    """Return the letter in a language."""
    words = _read_words()

    def translate(word_key: str) -> str:
        return words[word_key][language]

    request = facts.request
    sections = (
        _build_intro_section(facts, translate, language),
        _build_summary_section(facts, translate, language),
        *_build_data_sections(facts, translate),
        _build_origin_section(facts, translate, language),
        _build_purposes_section(facts, translate, language),
        _build_recipients_section(facts, translate, language),
        _build_consents_section(facts, translate, language),
        _build_missing_section(facts, translate),
        _build_remedies(facts, translate, language),
        Section(translate("check"), (Paragraph(translate("check_text")),)),
        Section(
            translate("signature"),
            (SignatureLines((ContactPerson(facts.organisation.officer_in(language), translate("signer")),)),),
        ),
    )
    zone = facts.organisation.timezone
    header_facts = (
        (translate("received"), describe_date(request.received, language, zone)),
        (translate("due"), describe_date(request.due, language, zone)),
        (translate("answered"), describe_date(facts.answered_at, language, zone)),
        (translate("laws"), ", ".join(facts.laws) or translate("no_law")),
    )
    return Document(
        language=language,
        organisation=facts.organisation,
        title=translate("title_portability" if request.type == PORTABILITY else "title"),
        number=f"{request.type.upper()}-{request.ref.name[:12]}",
        sections=sections,
        facts=header_facts,
        notice=translate("notice"),
    )


@cache
def _read_words() -> Mapping[str, Mapping[str, str]]:
    tree = tomllib.loads(Path(__file__).with_name("answer_words.toml").read_text("utf-8"))
    return {name: texts for name, texts in tree.items() if isinstance(texts, dict)}


def _build_intro_section(facts: AnswerFacts, translate: Translate, language: str) -> Section:
    state = Paragraph(translate("incomplete"), "warning") if facts.missing else Paragraph(translate("complete"), "good")
    pairs = [(translate("identifier"), facts.subject), (translate("reference"), str(facts.request.ref))]
    pairs += [
        (translate("law"), f"{translate_law(name, title, language)} ({name})") for name, title in facts.laws.items()
    ]
    return Section(translate("letter"), (Paragraph(translate("letter_text")), state, KeyValues(tuple(pairs))))


def _build_summary_section(facts: AnswerFacts, translate: Translate, language: str) -> Section:
    rows = tuple(
        (
            _format_source_name(source.ref, translate),
            str(len(source.rows)),
            _format_place(source, translate),
            ", ".join(source.purposes),
            _format_retention(source, facts, translate, language),
        )
        for source in facts.sources
    )
    columns = tuple(map(translate, ("what", "records", "place", "purposes_short", "retention")))
    return Section(translate("held"), (Table(columns, rows, translate("nothing"), compact=True),))


def _build_data_sections(facts: AnswerFacts, translate: Translate) -> list[Section]:
    """The data itself, a section a source; texts in which records name the person come together in one."""
    sections = [
        Section(
            f"{translate('data')}: {_format_source_name(source.ref, translate)}",
            _build_source_blocks(source, translate),
        )
        for source in facts.sources
        if not source.ref.startswith(RECORD_PREFIX)
    ]
    texts = tuple(
        (
            _format_source_name(source.ref.removeprefix(RECORD_PREFIX), translate),
            str(row["field"]),
            _shorten_value(row["value"]),
        )
        for source in facts.sources
        if source.ref.startswith(RECORD_PREFIX)
        for row in source.rows
    )
    if texts:
        table = Table(tuple(map(translate, ("what", "column", "value"))), texts)
        sections.append(Section(f"{translate('data')}: {translate('descriptions')}", (table,)))
    return sections


def _build_source_blocks(source: AnsweredSource, translate: Translate) -> tuple[DocumentBlock, ...]:
    names = list(dict.fromkeys(name for row in source.rows for name in row))
    blocks: list[DocumentBlock] = [KeyValues(((translate("file"), source.file),))]
    meanings = tuple((name, text) for name in names if (text := (source.meanings or {}).get(name, "")))
    if meanings:
        blocks.append(Table((translate("column"), translate("meaning")), meanings))
    limit = MAX_SHOWN_ROWS if len(names) <= MAX_SHOWN_COLUMNS else MAX_SHOWN_RECORDS
    if len(names) <= MAX_SHOWN_COLUMNS:
        rows = tuple(tuple(_shorten_value(row.get(name)) for name in names) for row in source.rows[:limit])
        blocks.append(Table(tuple(names), rows))
    else:
        for number, row in enumerate(source.rows[:limit], 1):
            pairs = tuple((name, _shorten_value(row[name])) for name in names if row.get(name) is not None)
            blocks += [Paragraph(f"{translate('record')} {number}"), KeyValues(pairs)]
    if len(source.rows) > limit:
        blocks.append(Paragraph(translate("shown_first").format(count=limit, file=source.file), "muted"))
    return tuple(blocks)


def _build_origin_section(facts: AnswerFacts, translate: Translate, language: str) -> Section:
    def _describe_origin(source: AnsweredSource) -> str:
        day = describe_date(source.made_at, language, facts.organisation.timezone)
        _supplied_text = f"{translate('supplied')} {day}" if source.made_at else ""
        _made_from_text = (
            f"{translate('made_from')} {', '.join(_format_source_name(ref, translate) for ref in source.made_from)}"
            if source.made_from
            else ""
        )
        return "; ".join(filter(None, (_made_from_text, _supplied_text))) or translate("not_recorded")

    rows = tuple(
        (_format_source_name(source.ref, translate), _describe_origin(source))
        for source in facts.sources
        if RECORD_PREFIX not in source.ref
    )
    return Section(translate("origin"), (Table((translate("what"), translate("origin")), rows, translate("nothing")),))


def _build_purposes_section(facts: AnswerFacts, translate: Translate, language: str) -> Section:
    purpose_names = sorted({purpose for source in facts.sources for purpose in source.purposes})
    rows = []
    for name in purpose_names:
        purpose = facts.purposes.get(name)
        if purpose is None:
            rows.append((name, translate("unregistered"), "", ""))
        else:
            retention_text = describe_duration(purpose.retention_days * DAY_S, language)
            rows.append(
                (
                    name,
                    _translate_code("basis", purpose.basis, translate),
                    purpose.text.get(language, ""),
                    retention_text,
                )
            )
    columns = tuple(map(translate, ("purpose", "basis", "explained", "retention")))
    return Section(translate("purposes"), (Table(columns, tuple(rows), translate("no_purpose")),))


def _build_recipients_section(facts: AnswerFacts, translate: Translate, language: str) -> Section:
    rows = tuple(
        (_format_source_name(source.ref, translate), str(source.readers), str(source.reads))
        for source in facts.sources
        if source.reads
    )
    grants = tuple(
        (
            state.grant.src,
            state.grant.dst,
            ", ".join(state.grant.purposes),
            describe_date(state.grant.expires, language, facts.organisation.timezone),
        )
        for state in facts.grants
    )
    reads_table = Table(tuple(map(translate, ("what", "accounts", "times"))), rows, translate("no_reads"))
    transfers_table = Table(
        tuple(map(translate, ("from", "to", "purpose", "until"))),
        grants,
        translate("no_transfers"),
        translate("transfers"),
    )
    return Section(translate("recipients"), (reads_table, transfers_table))


def _build_consents_section(facts: AnswerFacts, translate: Translate, language: str) -> Section:
    zone = facts.organisation.timezone
    rows = tuple(
        (
            consent.purpose,
            translate(f"consent_{consent.state}"),
            describe_date(consent.at, language, zone),
            describe_date(consent.withdrawn_at, language, zone),
        )
        for consent in facts.consents
    )
    columns = tuple(map(translate, ("purpose", "state", "given_on", "withdrawn_on")))
    return Section(translate("consents"), (Table(columns, rows, translate("no_consents")),))


def _build_missing_section(facts: AnswerFacts, translate: Translate) -> Section:
    rows = tuple((_format_source_name(ref, translate), reason) for ref, reason in facts.missing)
    table = Table((translate("what"), translate("reason")), rows, translate("nothing_missing"))
    return Section(translate("missing"), (table, Paragraph(translate("outside"), "muted")))


def _build_remedies(facts: AnswerFacts, say: Translate, language: str) -> Section:
    names = ("correct", "erase", "restrict", "withdraw", "portability", "complain")
    rights = BulletList(tuple(say(f"right_{name}") for name in names))
    organisation = facts.organisation
    name, contacts = organisation.officer_in(language), (organisation.officer_contact, organisation.email)
    contact = f"{say('comma')} ".join(filter(None, (name, *contacts)))
    officer = (KeyValues(((say("officer"), contact),)),) if contact else ()
    return Section(say("rights"), (rights, *officer))


def _format_source_name(ref: str, translate: Translate) -> str:
    """A source as people read it: its kind, its name, its version and its project."""
    for prefix, word_key in _PREFIX_WORDS.items():
        if ref.startswith(prefix):
            return f"{translate(word_key)}: {_format_source_name(ref.removeprefix(prefix), translate)}"
    kind, has_kind, after_kind = ref.partition(":")
    project, has_project, name = after_kind.partition("/")
    if not (has_kind and has_project):
        return ref
    name, _, version = name.partition("@")
    versioned = f"{translate('comma')} {translate('version')} {version}" if version else ""
    return (
        f"{translate(kind if kind in _NAMED_KINDS else 'other')} {name}{versioned} ({translate('project')} {project})"
    )


def _format_retention(source: AnsweredSource, facts: AnswerFacts, translate: Translate, language: str) -> str:
    if source.duties:
        laws = f"{translate('comma')} ".join(
            dict.fromkeys(duty.law or translate("legal_duty") for duty in source.duties)
        )
        if not all(duty.until for duty in source.duties):
            return f"{translate('kept_open')} ({laws})"
        until = max(duty.until for duty in source.duties)
        return f"{translate('kept_until')} {describe_date(until, language, facts.organisation.timezone)} ({laws})"
    if source.keep_until:
        return f"{translate('kept_until')} {describe_date(source.keep_until, language, facts.organisation.timezone)}"
    retention_days = [facts.purposes[name].retention_days for name in source.purposes if name in facts.purposes]
    return describe_duration(max(retention_days) * DAY_S, language) if retention_days else translate("no_limit")


def _format_place(source: AnsweredSource, translate: Translate) -> str:
    names = (_translate_code("place", code, translate) for code in source.country.split(", ") if code)
    return ", ".join(names) or source.zone


def _translate_code(code_kind: str, code: str, translate: Translate) -> str:
    """A code in words, or as it is where there are no words for it."""
    word_key = f"{code_kind}_{code}"
    return translate(word_key) if word_key in _read_words() else code


def _shorten_value(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"
