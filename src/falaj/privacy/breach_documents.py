"""Builds the notice of a breach to an authority and the letter to the people concerned, in one language."""

import re
from collections.abc import Mapping, Sequence

from falaj.core.data import dataclass
from falaj.core.documents import (
    ContactPerson,
    Document,
    IssuingOrganisation,
    KeyValues,
    Paragraph,
    PeopleList,
    Section,
    SignatureLines,
    Table,
    describe_moment,
)
from falaj.govern.legal_periods import BREACH as AUTHORITY_DUTY
from falaj.govern.records import LegalRegime
from falaj.privacy.document_words import load_words, name_authority, translate_law, translate_value, translate_values
from falaj.privacy.duty_clocks import DUE_NOW, NOT_APPLICABLE, is_overdue
from falaj.privacy.records import DataBreach, DutyClock

WRITTEN_TEXTS = ("nature", "consequences", "measures", "advice", "delay", "people")
_ARABIC, _LATIN = re.compile("[\u0600-\u06ff]"), re.compile("[A-Za-z]{2}")


@dataclass(frozen=True, slots=True)
class ConcernedData:
    """One of the things a breach is about, as the notice to an authority describes it."""

    ref: str
    records: int = 0
    """Rows, as far as they are counted."""
    classification: str = ""
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BreachFacts:
    """What a notice says beside the record of the breach."""

    data: Sequence[ConcernedData]
    people: Sequence[str]
    """Whom the data of the platform is about, as its entities are declared."""
    texts: Mapping[str, str]
    """What people wrote, as `nature.ar`."""
    now: float


def list_authority_clocks(breach: DataBreach) -> tuple[DutyClock, ...]:
    """Return the clocks of a breach that want an authority notified."""
    return tuple(clock for clock in breach.clocks if clock.duty == AUTHORITY_DUTY and clock.state != NOT_APPLICABLE)


def build_authority_notice(
    breach: DataBreach, regime: LegalRegime, organisation: IssuingOrganisation, facts_of: BreachFacts, language: str
) -> Document:
    """Return the notice to the authority of one regime."""
    words, timezone, texts = load_words(language), organisation.timezone, facts_of.texts
    clock = next(clock for clock in list_authority_clocks(breach) if clock.regime == regime.id)
    deadline = words["at_once"] if clock.state == DUE_NOW else describe_moment(clock.due, language, timezone)
    law = translate_law(regime.id, regime.title, language)
    facts = [
        (words["law"], f"{law} ({regime.id})"),
        (words["when_known"], describe_moment(breach.found_at, language, timezone)),
        (words["deadline"], deadline if clock.due else ""),
        (words["notified_on"], describe_moment(clock.done_at, language, timezone) if clock.done_at else ""),
        (words["reference"], clock.reference),
    ]
    sections = (
        _build_controller_section(organisation, words, language),
        Section(words["what_happened"], (Paragraph(_find_text("nature", breach, texts, language)),)),
        Section(words["concerned"], _build_concerned(breach, facts_of, words, language)),
        Section(words["consequences"], (Paragraph(_find_text("consequences", breach, texts, language)),)),
        Section(words["measures_taken"], (Paragraph(_find_text("measures", breach, texts, language)),)),
        *(
            (Section(words["delay"], (Paragraph(_find_text("delay", breach, texts, language)),)),)
            if is_overdue(clock, facts_of.now)
            else ()
        ),
        Section(words["signatures"], (_build_signatures(organisation, words, language),)),
    )
    authority = name_authority(regime.id, language) or words["authority_for"].format(law=regime.id)
    return Document(
        language,
        organisation,
        words["notice_title"],
        f"BREACH-{breach.ref.name[:12]}-{regime.id}",
        sections,
        subtitle=words["to_authority"].format(name=authority),
        facts=tuple(pair for pair in facts if pair[1]),
        notice=words["notice_notice"],
        contents=False,
    )


def build_people_letter(
    breach: DataBreach, organisation: IssuingOrganisation, texts: Mapping[str, str], language: str
) -> Document:
    """Return the letter to the people concerned, in words that need no knowledge of the platform."""
    words, timezone = load_words(language), organisation.timezone
    sections = (
        Section(
            words["what_happened"],
            (
                Paragraph(f"{words['dear']} {words['letter_intro']}"),
                Paragraph(_find_text("nature", breach, texts, language)),
            ),
        ),
        Section(words["consequences"], (Paragraph(_find_text("consequences", breach, texts, language)),)),
        Section(words["measures_taken"], (Paragraph(_find_text("measures", breach, texts, language)),)),
        Section(words["advice"], (Paragraph(_find_text("advice", breach, texts, language)),)),
        Section(
            words["contact"], (Paragraph(words["contact_text"]), _build_officer_list(organisation, words, language))
        ),
        Section(words["signatures"], (_build_signatures(organisation, words, language),)),
    )
    facts = ((words["when_known"], describe_moment(breach.found_at, language, timezone)),)
    return Document(
        language,
        organisation,
        words["letter_title"],
        f"BREACH-{breach.ref.name[:12]}",
        sections,
        facts=facts,
        contents=False,
    )


def _find_text(name: str, breach: DataBreach, texts: Mapping[str, str], language: str) -> str:
    """What people wrote in this language, else what the record says, else a reminder to complete it.

    A recorded text without a letter of this language's script is marked to be translated.
    """
    words = load_words(language)
    if written := texts.get(f"{name}.{language}"):
        return written
    recorded_text = {"nature": breach.nature, "measures": breach.measures}.get(name, "")
    script = _ARABIC if language == "ar" else _LATIN
    if recorded_text and not script.search(recorded_text):
        return f"{words['translate']} {recorded_text}"
    return recorded_text or words["complete"]


def _build_controller_section(organisation: IssuingOrganisation, words: Mapping[str, str], language: str) -> Section:
    pairs = (
        (words["organisation"], organisation.name_in(language) or words["not_set"]),
        (words["address"], organisation.address_in(language)),
        (words["email"], organisation.email),
        (words["phone"], organisation.phone),
    )
    contact_details = KeyValues(tuple(pair for pair in pairs if pair[1]))
    return Section(words["controller"], (contact_details, _build_officer_list(organisation, words, language)))


def _build_concerned(
    breach: DataBreach, facts_of: BreachFacts, words: Mapping[str, str], language: str
) -> tuple[KeyValues, Table]:
    people = str(breach.people) if breach.people else words["not_known"]
    written = facts_of.texts.get(f"people.{language}")
    categories = written or (", " if language == "en" else "، ").join(facts_of.people) or words["complete"]
    records = sum(each.records for each in facts_of.data)
    pairs = (
        (words["people_number"], people),
        (words["people_kinds"], categories),
        (words["records_number"], str(records) if records else words["not_known"]),
        (words["same_number"], str(breach.ref)),
    )
    rows = tuple(
        (
            each.ref,
            str(each.records or ""),
            translate_value(each.classification, language),
            translate_values(each.categories, language),
        )
        for each in facts_of.data
    )
    heads = (words["name"], words["records"], words["class"], words["data_categories"])
    return KeyValues(pairs), Table(heads, rows, empty=words["not_known"], compact=True)


def _build_officer_list(organisation: IssuingOrganisation, words: Mapping[str, str], language: str) -> PeopleList:
    return PeopleList(
        (ContactPerson(organisation.officer_in(language), words["officer"], organisation.officer_contact),)
    )


def _build_signatures(organisation: IssuingOrganisation, words: Mapping[str, str], language: str) -> SignatureLines:
    officer = ContactPerson(organisation.officer_in(language), words["signed_officer"])
    return SignatureLines((ContactPerson("", words["signed_controller"]), officer))
