"""Builds the printable record of processing from the record's data, in one language."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from falaj.core.documents import (
    BulletList,
    ContactPerson,
    Document,
    IssuingOrganisation,
    KeyValues,
    Paragraph,
    PeopleList,
    Section,
    SignatureLines,
    Table,
    TableCell,
    describe_date,
    describe_day,
    describe_duration,
    describe_period,
    find_time_zone,
)
from falaj.core.documents.dates import count_units
from falaj.govern.legal_periods import BREACH as AUTHORITY_DUTY
from falaj.privacy.document_words import load_words, translate_law, translate_value, translate_values
from falaj.services import list_actions

ACTIVE_STATE = "active"
_COUNTED_GROUPS = ("read", "write", "move", "erase")
_SECONDS_PER_DAY = 86_400


def build_ropa_document(record: Mapping[str, Any], organisation: IssuingOrganisation, language: str) -> Document:
    """Return the record of processing as a document."""
    words, law = load_words(language), record["regime"]
    facts = (
        (words["law"], f"{translate_law(law['id'], law['title'], language)} ({law['id']})"),
        (words["read_from"], words.get(law["checked"], law["checked"])),
        (words["reviewed"], describe_review(law["reviewed_on"], law["reviewed_by"], words, language)),
        (words["review"], describe_day(law["review_by"], language)),
    )
    exempt = record.get("not_applicable", ())
    outside = (Section(words["not_applicable"], (_exemptions(exempt, words, language),)),) if exempt else ()
    sections = (
        Section(words["controller"], _build_controller(record, organisation, words, language)),
        Section(words["people_categories"], _build_categories(record, words, language)),
        Section(words["purposes"], tuple(_build_purposes(record, words, language))),
        Section(words["data"], (_build_data_table(record, words, language),)),
        *outside,
        Section(words["recipients"], _build_recipients(record, words, organisation, language)),
        Section(words["transfers"], (_build_transfers_table(record, words, organisation, language, in_force=True),)),
        Section(
            words["transfers_other"], (_build_transfers_table(record, words, organisation, language, in_force=False),)
        ),
        Section(words["retention"], (_build_retention_table(record, words, organisation, language),)),
        Section(words["security"], (BulletList(tuple(words[f"security_{n}"] for n in range(1, 7))),)),
        Section(words["activity"], (_build_activity_table(record, words),)),
        Section(words["assessments"], (_build_assessments_table(record, words, language),)),
        Section(words["breaches"], (_build_breaches_table(record, words, organisation, language),)),
        Section(words["signatures"], (build_officer_signatures(organisation, words, language),)),
    )
    period = describe_period(record["since"], record["until"], language, organisation.timezone)
    day = datetime.fromtimestamp(record["until"], find_time_zone(organisation.timezone)).date().isoformat()
    number = f"ROPA-{law['id']}-{day}"
    return Document(
        language, organisation, words["ropa_title"], number, sections,
        period=period, facts=facts, notice=words["ropa_notice"],
    )  # fmt: skip


def _build_controller(
    record: Mapping[str, Any], organisation: IssuingOrganisation, words: Mapping[str, str], language: str
) -> tuple[Any, ...]:
    missing = words["not_set"]
    pairs = [
        (words["organisation"], organisation.name_in(language) or missing),
        (words["address"], organisation.address_in(language) or missing),
        (words["email"], organisation.email or missing),
        (words["phone"], organisation.phone),
        (words["representative"], organisation.representative),
    ]
    people = [ContactPerson(organisation.officer_in(language), words["officer"], organisation.officer_contact)]
    people += [ContactPerson(name, words["officer_account"]) for name in record["officers"]]
    return KeyValues(tuple(pair for pair in pairs if pair[1])), PeopleList(tuple(people))


def _build_categories(record: Mapping[str, Any], words: Mapping[str, str], language: str) -> tuple[Any, ...]:
    people = tuple(f"{entity['name']}: {entity['about']}" for entity in record["people"])
    categories = sorted({category_name for row in record["things"] for category_name in row["categories"]})
    classes = sorted({row["class"] for row in record["things"]})
    pairs = (
        (words["data_categories"], translate_values(categories, language) or words["no_categories"]),
        (words["classes"], translate_values(classes, language)),
    )
    people_blocks = (Paragraph(words["people_about"]), BulletList(people)) if people else ()
    return (*people_blocks, KeyValues(tuple(pair for pair in pairs if pair[1])))


def _build_purposes(record: Mapping[str, Any], words: Mapping[str, str], language: str) -> Iterator[Any]:
    users_by_purpose: dict[str, list[str]] = defaultdict(list)
    for row in record["things"]:
        for purpose in row["purposes"]:
            users_by_purpose[purpose].append(row["name"])
    registered = {purpose["name"]: purpose for purpose in record["purposes"]}
    if record["unregistered_purposes"]:
        yield Paragraph(words["unregistered_warning"] + ", ".join(record["unregistered_purposes"]), "bad")
    rows: list[tuple[str | TableCell, ...]] = []
    for name in sorted({*registered, *record["unregistered_purposes"]}):
        purpose = registered.get(name)
        users_text = ", ".join(sorted(users_by_purpose.get(name, ()))) or words["unused"]
        if purpose is None:
            rows.append((name, "", "", "", TableCell(words["unregistered"], "bad"), users_text))
            continue
        retention_text = describe_duration(purpose["retention_days"] * _SECONDS_PER_DAY, language)
        basis, text = translate_value(purpose["basis"], language), purpose["text"].get(language, "")
        rows.append((name, basis, text, retention_text, TableCell(words["yes"], "good"), users_text))
    columns = ("purpose", "basis", "wording", "kept_for", "registered", "used_by")
    column_heads = tuple(words[column] for column in columns)
    yield Table(column_heads, tuple(rows), empty=words["no_purposes"], compact=True)
    if users_by_purpose.get("*"):
        yield Paragraph(words["any_purpose"] + ", ".join(sorted(users_by_purpose["*"])), "warning")


def _build_data_table(record: Mapping[str, Any], words: Mapping[str, str], language: str) -> Table:
    rows = tuple(
        (row["name"], str(row["versions"]), ", ".join(row["zones"]), translate_value(row["class"], language),
         translate_values(row["categories"], language))
        for row in record["things"]
    )  # fmt: skip
    column_heads = tuple(words[column] for column in ("name", "versions", "place", "class", "categories"))
    return Table(column_heads, rows, empty=words["no_data"], compact=True)


def _exemptions(rows: Iterable[Mapping[str, Any]], words: Mapping[str, str], language: str) -> Table:
    """The Arabic reasons name their article themselves."""
    if language == "ar":
        return Table((words["name"], words["because"]), tuple((row["name"], row["because_ar"]) for row in rows))
    texts = tuple((row["name"], row["because"], row["article"]) for row in rows)
    return Table((words["name"], words["because"], words["law"]), texts, compact=True)


def _build_recipients(
    record: Mapping[str, Any], words: Mapping[str, str], organisation: IssuingOrganisation, language: str
) -> tuple[Any, ...]:
    rows = tuple(
        (
            row["name"], words[row["role"]], row["place"],
            describe_date(row["until"], language, organisation.timezone) if row["until"] else "",
        )
        for row in record["recipients"]
    )  # fmt: skip
    column_heads = (words["recipient"], words["role"], words["place"], words["since_until"])
    accounts = ", ".join(account["name"] for account in record["access"])
    return Table(column_heads, rows, empty=words["no_recipients"]), KeyValues(((words["access"], accounts),))


def _build_transfers_table(
    record: Mapping[str, Any],
    words: Mapping[str, str],
    organisation: IssuingOrganisation,
    language: str,
    *,
    in_force: bool,
) -> Table:
    rows = []
    for state in record["transfers"]:
        grant = state["grant"]
        if (state["state"] == ACTIVE_STATE) is not in_force:
            continue
        until = describe_date(grant["expires"], language, organisation.timezone)
        arrow = "\N{RIGHTWARDS ARROW}"
        route_text = f"{grant['src']} {arrow} {grant['dst']}"
        documents = ", ".join(grant["documents"])
        row: tuple[str | TableCell, ...] = (
            route_text,
            grant["scope"],
            f"{grant['regime']}:{grant['basis']}",
            documents,
            until,
        )
        label = words.get(state["state"], state["state"])
        rows.append(row if in_force else (*row, TableCell(label, "muted")))
    columns = ["transfer", "scope", "basis", "documents", "until", *([] if in_force else ["state"])]
    column_heads = tuple(words[column] for column in columns)
    return Table(column_heads, tuple(rows), empty=words["no_transfers"], compact=True)


def _build_retention_table(
    record: Mapping[str, Any], words: Mapping[str, str], organisation: IssuingOrganisation, language: str
) -> Table:
    rows: list[tuple[str | TableCell, ...]] = []
    statutory_period = record["regime"].get("retention")
    if statutory_period:
        period_text = count_units(statutory_period["count"], statutory_period["unit"].removesuffix("s"), language)
        text = words["at_least"].format(time=period_text, start=words[f"from_{statutory_period['starts']}"])
        article = statutory_period["article"] if language == "en" else ""
        rows.append((words["data"], text, ", ".join(filter(None, (record["regime"]["id"], article)))))
    for row in record["things"]:
        for duty in row["duties"]:
            date = describe_date(duty["until"], language, organisation.timezone) if duty["until"] else ""
            text = words["kept_until"].format(date=date) if date else words["kept_open"]
            law = words.get(f"duty_{duty['law'].replace(' ', '_')}", duty["law"])
            if duty["law"] == "legal hold" and row["holds"]:
                law = words["hold"].format(names=", ".join(row["holds"]))
            rows.append((row["name"], text, law))
        if row["keep_at_most_s"]:
            text = words["at_most"].format(time=describe_duration(row["keep_at_most_s"], language))
            rows.append((row["name"], text, words["organisation"]))
    for purpose in record["purposes"]:
        period_text = describe_duration(purpose["retention_days"] * _SECONDS_PER_DAY, language)
        text = words["purpose_time"].format(time=period_text)
        rows.append((f"{words['purpose']}: {purpose['name']}", text, words["organisation"]))
    return Table((words["what"], words["period"], words["law"]), tuple(rows), empty=words["no_retention"])


def _build_activity_table(record: Mapping[str, Any], words: Mapping[str, str]) -> Table:
    groups, counts_by_resource = list_actions(), dict[str, dict[str, int]]()
    accounts: dict[str, set[str]] = defaultdict(set)
    for row in record["activity"]:
        group = groups.get(row["act"], "other")
        resource_counts = counts_by_resource.setdefault(row["thing"], dict.fromkeys((*_COUNTED_GROUPS, "other"), 0))
        resource_counts[group if group in _COUNTED_GROUPS else "other"] += row["acts"]
        accounts[row["thing"]].add(row["by"])
    rows = tuple(
        (name, *(str(count) for count in resource_counts.values()), str(len(accounts[name])))
        for name, resource_counts in sorted(counts_by_resource.items())
    )
    column_heads = (
        words["name"],
        *(words[f"acts_{group}"] for group in (*_COUNTED_GROUPS, "other")),
        words["people_count"],
    )
    return Table(column_heads, rows, empty=words["no_activity"], compact=True)


def _build_assessments_table(record: Mapping[str, Any], words: Mapping[str, str], language: str) -> Table:
    rows = tuple(
        (
            str(row["ref"]),
            row["purpose"],
            words.get(row["state"], row["state"]),
            row["approved_by"],
            describe_day(row["review_by"], language),
        )
        for row in record["assessments"]
    )
    column_heads = tuple(words[column] for column in ("name", "purpose", "state", "approved_by", "review_by"))
    return Table(column_heads, rows, empty=words["no_assessments"], compact=True)


def _build_breaches_table(
    record: Mapping[str, Any], words: Mapping[str, str], organisation: IssuingOrganisation, language: str
) -> Table:
    rows = []
    for breach in record["breaches"]:
        notified_clocks = [clock for clock in breach["clocks"] if clock["done_at"] and clock["duty"] == AUTHORITY_DUTY]
        dates = ", ".join(
            f"{clock['regime']} {describe_date(clock['done_at'], language, organisation.timezone)}"
            for clock in notified_clocks
        )
        found_text = describe_date(breach["found_at"], language, organisation.timezone)
        people = str(breach["people"] or "")
        rows.append((str(breach["ref"]), words.get(breach["state"], breach["state"]), found_text, people, dates))
    column_heads = tuple(words[column] for column in ("name", "state", "found_at", "people", "told_at"))
    return Table(column_heads, tuple(rows), empty=words["no_breaches"], compact=True)


def describe_review(day: str, reviewer: str, words: Mapping[str, str], language: str) -> str:
    """Return when a legal text was compared with its sources, and by whom."""
    if not day:
        return words["not_reviewed"]
    return words["reviewed_by"].format(day=describe_day(day, language), name=translate_value(reviewer, language))


def build_officer_signatures(
    organisation: IssuingOrganisation, words: Mapping[str, str], language: str
) -> SignatureLines:
    """Return the signature block of the controller and the data protection officer."""
    officer = ContactPerson(organisation.officer_in(language), words["signed_officer"])
    return SignatureLines((ContactPerson("", words["signed_controller"]), officer))
