"""Builds the printable record of processing from the record's data, in one language."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from falaj.core.documents import (
    BulletList,
    Cell,
    Document,
    KeyValues,
    Organisation,
    Paragraph,
    PeopleList,
    Person,
    Section,
    Signatures,
    Table,
    describe_date,
    describe_day,
    describe_duration,
    describe_period,
    find_time_zone,
)
from falaj.core.documents.dates import count_units
from falaj.desks import actions
from falaj.govern.legal_periods import BREACH as AUTHORITY_DUTY
from falaj.privacy.document_words import name_law, name_value, name_values, words_in

ACTIVE = "active"
_GROUPS = ("read", "write", "move", "erase")
_DAY_S = 86_400


def build_ropa_document(record: Mapping[str, Any], organisation: Organisation, language: str) -> Document:
    """Return the record of processing as a document."""
    words, law = words_in(language), record["regime"]
    facts = (
        (words["law"], f"{name_law(law['id'], law['title'], language)} ({law['id']})"),
        (words["read_from"], words.get(law["checked"], law["checked"])),
        (words["reviewed"], describe_review(law["reviewed_on"], law["reviewed_by"], words, language)),
        (words["review"], describe_day(law["review_by"], language)),
    )
    exempt = record.get("not_applicable", ())
    outside = (Section(words["not_applicable"], (_exemptions(exempt, words, language),)),) if exempt else ()
    sections = (
        Section(words["controller"], _controller(record, organisation, words, language)),
        Section(words["people_categories"], _categories(record, words, language)),
        Section(words["purposes"], tuple(_purposes(record, words, language))),
        Section(words["data"], (_data(record, words, language),)),
        *outside,
        Section(words["recipients"], _recipients(record, words, organisation, language)),
        Section(words["transfers"], (_transfers(record, words, organisation, language, in_force=True),)),
        Section(words["transfers_other"], (_transfers(record, words, organisation, language, in_force=False),)),
        Section(words["retention"], (_retention(record, words, organisation, language),)),
        Section(words["security"], (BulletList(tuple(words[f"security_{n}"] for n in range(1, 7))),)),
        Section(words["activity"], (_activity(record, words),)),
        Section(words["assessments"], (_assessments(record, words, language),)),
        Section(words["breaches"], (_breaches(record, words, organisation, language),)),
        Section(words["signatures"], (sign_by_officer(organisation, words, language),)),
    )
    period = describe_period(record["since"], record["until"], language, organisation.timezone)
    day = datetime.fromtimestamp(record["until"], find_time_zone(organisation.timezone)).date().isoformat()
    number = f"ROPA-{law['id']}-{day}"
    return Document(
        language, organisation, words["ropa_title"], number, sections,
        period=period, facts=facts, notice=words["ropa_notice"],
    )  # fmt: skip


def _controller(
    record: Mapping[str, Any], organisation: Organisation, words: Mapping[str, str], language: str
) -> tuple[Any, ...]:
    missing = words["not_set"]
    pairs = [
        (words["organisation"], organisation.name_in(language) or missing),
        (words["address"], organisation.address_in(language) or missing),
        (words["email"], organisation.email or missing),
        (words["phone"], organisation.phone),
        (words["representative"], organisation.representative),
    ]
    people = [Person(organisation.officer_in(language), words["officer"], organisation.officer_contact)]
    people += [Person(name, words["officer_account"]) for name in record["officers"]]
    return KeyValues(tuple(pair for pair in pairs if pair[1])), PeopleList(tuple(people))


def _categories(record: Mapping[str, Any], words: Mapping[str, str], language: str) -> tuple[Any, ...]:
    people = tuple(f"{entity['name']}: {entity['about']}" for entity in record["people"])
    categories = sorted({each for row in record["things"] for each in row["categories"]})
    classes = sorted({row["class"] for row in record["things"]})
    pairs = (
        (words["data_categories"], name_values(categories, language) or words["no_categories"]),
        (words["classes"], name_values(classes, language)),
    )
    listed = (Paragraph(words["people_about"]), BulletList(people)) if people else ()
    return (*listed, KeyValues(tuple(pair for pair in pairs if pair[1])))


def _purposes(record: Mapping[str, Any], words: Mapping[str, str], language: str) -> Iterator[Any]:
    usage: dict[str, list[str]] = defaultdict(list)
    for row in record["things"]:
        for purpose in row["purposes"]:
            usage[purpose].append(row["name"])
    registered = {purpose["name"]: purpose for purpose in record["purposes"]}
    if record["unregistered_purposes"]:
        yield Paragraph(words["unregistered_warning"] + ", ".join(record["unregistered_purposes"]), "bad")
    rows: list[tuple[str | Cell, ...]] = []
    for name in sorted({*registered, *record["unregistered_purposes"]}):
        purpose = registered.get(name)
        users = ", ".join(sorted(usage.get(name, ()))) or words["unused"]
        if purpose is None:
            rows.append((name, "", "", "", Cell(words["unregistered"], "bad"), users))
            continue
        time = describe_duration(purpose["retention_days"] * _DAY_S, language)
        basis, text = name_value(purpose["basis"], language), purpose["text"].get(language, "")
        rows.append((name, basis, text, time, Cell(words["yes"], "good"), users))
    columns = ("purpose", "basis", "wording", "kept_for", "registered", "used_by")
    heads = tuple(words[column] for column in columns)
    yield Table(heads, tuple(rows), empty=words["no_purposes"], compact=True)
    if usage.get("*"):
        yield Paragraph(words["any_purpose"] + ", ".join(sorted(usage["*"])), "warning")


def _data(record: Mapping[str, Any], words: Mapping[str, str], language: str) -> Table:
    rows = tuple(
        (row["name"], str(row["versions"]), ", ".join(row["zones"]), name_value(row["class"], language),
         name_values(row["categories"], language))
        for row in record["things"]
    )  # fmt: skip
    heads = tuple(words[column] for column in ("name", "versions", "place", "class", "categories"))
    return Table(heads, rows, empty=words["no_data"], compact=True)


def _exemptions(rows: Iterable[Mapping[str, Any]], words: Mapping[str, str], language: str) -> Table:
    """The Arabic reasons name their article themselves."""
    if language == "ar":
        return Table((words["name"], words["because"]), tuple((row["name"], row["because_ar"]) for row in rows))
    texts = tuple((row["name"], row["because"], row["article"]) for row in rows)
    return Table((words["name"], words["because"], words["law"]), texts, compact=True)


def _recipients(
    record: Mapping[str, Any], words: Mapping[str, str], organisation: Organisation, language: str
) -> tuple[Any, ...]:
    rows = tuple(
        (
            row["name"], words[row["role"]], row["place"],
            describe_date(row["until"], language, organisation.timezone) if row["until"] else "",
        )
        for row in record["recipients"]
    )  # fmt: skip
    heads = (words["recipient"], words["role"], words["place"], words["since_until"])
    accounts = ", ".join(account["name"] for account in record["access"])
    return Table(heads, rows, empty=words["no_recipients"]), KeyValues(((words["access"], accounts),))


def _transfers(
    record: Mapping[str, Any], words: Mapping[str, str], organisation: Organisation, language: str, *, in_force: bool
) -> Table:
    rows = []
    for state in record["transfers"]:
        grant = state["grant"]
        if (state["state"] == ACTIVE) is not in_force:
            continue
        until = describe_date(grant["expires"], language, organisation.timezone)
        arrow = "\N{RIGHTWARDS ARROW}"
        way = f"{grant['src']} {arrow} {grant['dst']}"
        documents = ", ".join(grant["documents"])
        row: tuple[str | Cell, ...] = (way, grant["scope"], f"{grant['regime']}:{grant['basis']}", documents, until)
        label = words.get(state["state"], state["state"])
        rows.append(row if in_force else (*row, Cell(label, "muted")))
    columns = ["transfer", "scope", "basis", "documents", "until", *([] if in_force else ["state"])]
    heads = tuple(words[column] for column in columns)
    return Table(heads, tuple(rows), empty=words["no_transfers"], compact=True)


def _retention(record: Mapping[str, Any], words: Mapping[str, str], organisation: Organisation, language: str) -> Table:
    rows: list[tuple[str | Cell, ...]] = []
    statutory = record["regime"].get("retention")
    if statutory:
        time = count_units(statutory["count"], statutory["unit"].removesuffix("s"), language)
        text = words["at_least"].format(time=time, start=words[f"from_{statutory['starts']}"])
        article = statutory["article"] if language == "en" else ""
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
        time = describe_duration(purpose["retention_days"] * _DAY_S, language)
        text = words["purpose_time"].format(time=time)
        rows.append((f"{words['purpose']}: {purpose['name']}", text, words["organisation"]))
    return Table((words["what"], words["period"], words["law"]), tuple(rows), empty=words["no_retention"])


def _activity(record: Mapping[str, Any], words: Mapping[str, str]) -> Table:
    groups, counts = actions(), dict[str, dict[str, int]]()
    accounts: dict[str, set[str]] = defaultdict(set)
    for row in record["activity"]:
        group = groups.get(row["act"], "other")
        of_thing = counts.setdefault(row["thing"], dict.fromkeys((*_GROUPS, "other"), 0))
        of_thing[group if group in _GROUPS else "other"] += row["acts"]
        accounts[row["thing"]].add(row["by"])
    rows = tuple(
        (name, *(str(count) for count in of_thing.values()), str(len(accounts[name])))
        for name, of_thing in sorted(counts.items())
    )
    heads = (words["name"], *(words[f"acts_{group}"] for group in (*_GROUPS, "other")), words["people_count"])
    return Table(heads, rows, empty=words["no_activity"], compact=True)


def _assessments(record: Mapping[str, Any], words: Mapping[str, str], language: str) -> Table:
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
    heads = tuple(words[column] for column in ("name", "purpose", "state", "approved_by", "review_by"))
    return Table(heads, rows, empty=words["no_assessments"], compact=True)


def _breaches(record: Mapping[str, Any], words: Mapping[str, str], organisation: Organisation, language: str) -> Table:
    rows = []
    for breach in record["breaches"]:
        told = [clock for clock in breach["clocks"] if clock["done_at"] and clock["duty"] == AUTHORITY_DUTY]
        dates = ", ".join(
            f"{clock['regime']} {describe_date(clock['done_at'], language, organisation.timezone)}" for clock in told
        )
        found = describe_date(breach["found_at"], language, organisation.timezone)
        people = str(breach["people"] or "")
        rows.append((str(breach["ref"]), words.get(breach["state"], breach["state"]), found, people, dates))
    heads = tuple(words[column] for column in ("name", "state", "found_at", "people", "told_at"))
    return Table(heads, tuple(rows), empty=words["no_breaches"], compact=True)


def describe_review(day: str, reviewer: str, words: Mapping[str, str], language: str) -> str:
    """Return when a legal text was compared with its sources, and by whom."""
    if not day:
        return words["not_reviewed"]
    return words["reviewed_by"].format(day=describe_day(day, language), name=name_value(reviewer, language))


def sign_by_officer(organisation: Organisation, words: Mapping[str, str], language: str) -> Signatures:
    """Return the signature block of the controller and the data protection officer."""
    officer = Person(organisation.officer_in(language), words["signed_officer"])
    return Signatures((Person("", words["signed_controller"]), officer))
