"""Client commands that write printable documents: impact assessments, and notices and letters about a breach."""

import time
from pathlib import Path
from typing import Annotated, ClassVar

from falaj.catalog.records import CatalogVersion
from falaj.core.client_command import Client, client_command
from falaj.core.data import dataclass
from falaj.core.documents import Document, render_document
from falaj.core.errors import Denied, Invalid, NotFound
from falaj.core.label import CLASS_NAMES
from falaj.core.ref import Ref
from falaj.privacy.assessment_document import build_assessment_document
from falaj.privacy.breach_documents import (
    WRITTEN_TEXTS,
    BreachFacts,
    ConcernedData,
    build_authority_notice,
    build_people_letter,
    list_authority_clocks,
)
from falaj.privacy.person_tables import iterate_person_entities
from falaj.privacy.records import LANGUAGES, DataBreach, ImpactAssessment

_NO_WORDS: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class WrittenDocuments:
    """The documents that were written."""

    COLUMNS: ClassVar = ("about", "folder", "files")

    about: str
    folder: str
    files: tuple[str, ...]


@client_command
def print_assessment(
    client: Client,
    dpia: Annotated[Ref, "which assessment; its newest version when none is given"],
    out: Annotated[str, "a folder for dpia.ar.html and dpia.en.html"],
) -> WrittenDocuments:
    """Write an impact assessment as print-ready documents in Arabic and English, with its risk matrix.

    Example:
        falaj privacy print-assessment dpia:fraud/scoring --out papers
    """
    versions = [
        assessment_version
        for assessment_version in client.privacy.assessments(project=dpia.project)
        if assessment_version.ref.bare == dpia.bare
    ]
    matching = [
        assessment_version for assessment_version in versions if not dpia.version or assessment_version.ref == dpia
    ]
    if not matching:
        raise NotFound(f"{dpia} does not exist", "falaj privacy assessments lists them", dpia)
    newest: ImpactAssessment = max(matching, key=lambda assessment_version: int(assessment_version.ref.version[1:]))
    organisation = client.privacy.organisation()
    documents = {
        f"dpia.{language}.html": build_assessment_document(newest, organisation, language) for language in LANGUAGES
    }
    return _write_documents(str(newest.ref), out, documents)


@client_command
def letters(
    client: Client,
    breach: Annotated[Ref, "which breach"],
    out: Annotated[str, "a folder for the notices and letters"],
    words: Annotated[
        dict[str, str],
        "what you write, by language: nature.ar=…, consequences.en=…, measures, advice, people (categories), delay",
    ] = _NO_WORDS,
) -> WrittenDocuments:
    """Write the notice of a breach to each authority, and the letter to the people concerned, in Arabic and English.

    What is not written is taken from the record, or marked to be completed. Nothing is sent.

    Example:
        falaj privacy letters breach:privacy/0199d2f0 --out papers --words nature.ar="…" --words nature.en="…"
    """
    expected = {f"{name}.{language}" for name in WRITTEN_TEXTS for language in LANGUAGES}
    if unknown_words := sorted(set(words) - expected):
        raise Invalid(f"--words {', '.join(unknown_words)[:200]}: expected one of {', '.join(sorted(expected))}")
    recorded_breach: DataBreach = client.privacy.breach(breach)
    regimes = {regime.id: regime for regime in client.zones.regimes()}
    organisation, documents = client.privacy.organisation(), dict[str, Document]()
    people = tuple(dict.fromkeys(defined.about for _, defined in iterate_person_entities(client) if defined.about))
    data = tuple(_describe_data(client, ref) for ref in recorded_breach.about)
    facts_of = BreachFacts(data, people, words, time.time())
    for language in LANGUAGES:
        documents[f"people.{language}.html"] = build_people_letter(recorded_breach, organisation, words, language)
        for clock in list_authority_clocks(recorded_breach):
            name = f"authority.{clock.regime.lower()}.{language}.html"
            regime = regimes[clock.regime]
            documents[name] = build_authority_notice(recorded_breach, regime, organisation, facts_of, language)
    return _write_documents(str(recorded_breach.ref), out, documents)


def _describe_data(here: Client, ref: Ref) -> ConcernedData:
    """Return how many records a thing has, its class and categories; only its name where it is no version of data."""
    try:
        version: CatalogVersion = here.catalog.show(ref)
    except (Denied, Invalid, NotFound):
        return ConcernedData(str(ref))
    columns = version.table.columns if version.table else ()
    categories = version.label.categories | {column.category for column in columns if column.category}
    rows = (version.table.rows or 0) if version.table else 0
    return ConcernedData(str(ref), rows, CLASS_NAMES[version.label.classification], tuple(sorted(categories)))


def _write_documents(subject_name: str, output_folder: str, documents: dict[str, Document]) -> WrittenDocuments:
    folder = Path(output_folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        (folder / name).write_text(render_document(document), encoding="utf-8")
    return WrittenDocuments(subject_name, output_folder, tuple(sorted(documents)))
