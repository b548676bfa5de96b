"""Regimes: the shipped profiles say what was decided about them, and a wrong profile is refused by name."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from falaj.core.errors import Invalid
from falaj.govern.regimes import CITED_FIELDS, load_regimes, read_regime, resolve_regime_ids

SHIPPED = load_regimes()
IDS = ("AE-ADGM", "AE-CBUAE", "AE-DIFC", "AE-HEALTH", "AE-PDPL", "EU-GDPR", "NONE")
PROFILE = """
id = "XX-LAW"
version = 1
title = "A law"
effective_from = "2020-01-01"
review_by = "2030-01-01"
status = "in-force"
checked = "primary"
sources = ["its text"]
localisation = "conditional"
home = ["XX"]

[retention]
count = 5
unit = "years"
starts = "created"

[retention.source]
checked = "primary"
url = "https://example.org/law"

[deadlines.breach]
unit = "hours"
count = 72

[deadlines.breach.source]
checked = "assumed"

[[exemptions]]
id = "x"
because = "of x"
because_ar = "س"
categories = ["government"]

[exemptions.source]
checked = "general"

[bases.1]
title = "a contract"
documents = ["contract"]
obligations = ["notify_dpo"]
"""


def test_the_shipped_regimes() -> None:
    assert tuple(sorted({regime.id for regime in SHIPPED.values()})) == IDS


@pytest.mark.parametrize(
    ("alias", "name"), [("DIFC", "AE-DIFC"), ("ADGM", "AE-ADGM"), ("GDPR", "EU-GDPR"), ("PDPL", "AE-PDPL")]
)
def test_aliases_are_the_same_regime(alias: str, name: str) -> None:
    assert SHIPPED[alias] is SHIPPED[name]


@pytest.mark.parametrize("name", IDS)
def test_every_profile_has_a_source_and_a_day_to_look_again(name: str) -> None:
    regime = SHIPPED[name]
    assert regime.sources
    assert regime.effective_from < regime.review_by
    assert all(basis.documents for basis in regime.bases.values())


def test_what_was_decided_about_each() -> None:
    assert SHIPPED["AE-PDPL"].status == "pending"
    assert "legitimate-interest" not in SHIPPED["AE-PDPL"].lawful_bases
    assert "legitimate-interest" in SHIPPED["AE-ADGM"].lawful_bases
    assert {n for n in IDS if SHIPPED[n].localisation == "deny-abroad"} == {"AE-HEALTH", "AE-CBUAE"}
    assert list(SHIPPED["AE-PDPL"].bases) == ["22", "23a", "23b", "23c", "23d", "23e", "23f"]
    assert list(SHIPPED["AE-HEALTH"].bases) == [f"AE-MOH51-{n:02}" for n in range(1, 11)]
    assert list(SHIPPED["EU-GDPR"].bases) == ["45", "46", "49"]
    assert list(SHIPPED["AE-ADGM"].bases)[:2] == ["41", "42"]
    assert {"cbuae-approval", "customer-consent"} <= set(SHIPPED["AE-CBUAE"].bases["approval-and-consent"].documents)
    kept = {name: regime.retention for name, regime in SHIPPED.items() if regime.retention and name == regime.id}
    assert {name: (kept[name].count, kept[name].unit, kept[name].starts) for name in kept} == {
        "AE-CBUAE": (5, "years", "end-of-relationship"), "AE-HEALTH": (25, "years", "last-procedure"),
    }  # fmt: skip
    assert SHIPPED["AE-CBUAE"].effective_from == "2021-05-31"
    assert [exemption.id for exemption in SHIPPED["AE-PDPL"].exemptions] == [
        "health", "banking-credit", "free-zone-company", "government",
    ]  # fmt: skip
    assert "health" in SHIPPED["EU-GDPR"].special_categories
    assert len(SHIPPED["EU-GDPR"].record_contents) == 7
    assert all(SHIPPED[name].adequate == () for name in IDS)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('id = "XX-LAW"', 'id = "xx law"', "the name"),
        ("version = 1", "version = 0", "version"),
        ("version = 1", 'version = "1"', "does not fit"),
        ('"2020-01-01"', '"2020-13-01"', "the day"),
        ('"2020-01-01"', '"soon"', "the day"),
        ('status = "in-force"', 'status = "maybe"', "status"),
        ('status = "in-force"\nchecked = "primary"', 'status = "in-force"\nchecked = "surely"', "checked"),
        ('sources = ["its text"]', "sources = []", "sources"),
        ('sources = ["its text"]', "", "sources"),
        ('localisation = "conditional"', 'localisation = "free"', "localisation"),
        ('localisation = "conditional"', 'localisation = "deny-abroad"\nadequate = ["GB"]', "deny-abroad"),
        ('localisation = "conditional"', 'localisation = "deny-abroad"\nclearable = ["GB"]', "deny-abroad"),
        ('home = ["XX"]', 'home = ["Mars"]', "the jurisdiction"),
        ('home = ["XX"]', "home = []", "home"),
        ('home = ["XX"]', 'home = ["XX", "*"]', "home"),
        ('home = ["XX"]', 'home = ["XX"]\nadequate = ["*"]', "home"),
        ("count = 5", "count = 0", "retention.count"),
        ('unit = "years"', 'unit = "moons"', "retention.unit"),
        ('starts = "created"', 'starts = "whenever"', "retention.starts"),
        ('starts = "created"', 'starts = "created"\nfrom = 3', "retention.from"),
        ('url = "https', 'url = "ftp', "retention.source.url"),
        ('url = "https', 'reviewed_on = "soon"\nurl = "https', "retention.source.reviewed_on"),
        ('url = "https', 'page = "3"\nurl = "https', "source.page"),
        ('[retention.source]\nchecked = "primary"', '[retention.source]\nchecked = "surely"', "source.checked"),
        ('home = ["XX"]', 'home = ["XX"]\ncalendar = "Mars"', "does not exist"),
        ('home = ["XX"]', 'home = ["XX"]\nexempt = true', "there is no field exempt"),
        ('home = ["XX"]', 'home = ["XX"]\nusual = "2"', "usual"),
        ("count = 72", "count = 0", "deadlines.breach.count"),
        ("count = 72", "count = 72\nfrom = 3", "deadlines.breach.from"),
        ('unit = "hours"', 'unit = "moons"', "deadlines.breach.unit"),
        ('unit = "hours"', 'unit = "at-once"', "deadlines.breach.count"),
        ("count = 72", 'count = 72\nstops_for = ["rain"]', "deadlines.breach.stops_for"),
        ("[[exemptions]]", "[deadlines.dinner]\nunit = 'at-once'\nsource = {}\n[[exemptions]]", "deadlines.dinner"),
        ('checked = "assumed"', 'checked = "sure"', "deadlines.breach.source.checked"),
        ('categories = ["government"]', "", "exemptions.x"),
        ('because = "of x"', 'because = "of x"\nwhy = "y"', "exemptions.why"),
        ('documents = ["contract"]', "documents = []", "demands no document"),
        ('documents = ["contract"]', 'document = "contract"', "bases.1.document"),
        ('["notify_dpo"]', '["whatever"]', "the obligation"),
        ("[bases.1]", '[bases."a b"]', "the basis"),
        ("[bases.1]", "[bases.1]\nid = '2'", "the basis"),
        ("[bases.1]", "[bases", "not TOML"),
        ("[[exemptions]]", "[exemption]", "does not fit|there is no field exemption"),
        ("[bases.1]", "[bases]\nx = 1\n[y]", "tables"),
        ("[bases.1]", '[citations.home]\nchecked = "sure"\n[bases.1]', "citations.home.source.checked"),
        ("[bases.1]", '[citations.home]\npage = "3"\n[bases.1]', "source.page"),
        ("[bases.1]", '[citations.weather]\narticle = "1"\n[bases.1]', "citations.weather"),
        ("[bases.1]", '[bases.1.source]\nurl = "ftp://x"\n[bases.1]', "bases.1.source.url"),
    ],
)
def test_a_wrong_profile_is_refused_and_says_what_is_wrong(old: str, new: str, said: str) -> None:
    assert read_regime(PROFILE).id == "XX-LAW"
    with pytest.raises(Invalid, match=said):
        read_regime(PROFILE.replace(old, new, 1), "xx.toml")


def test_a_folder_of_ones_own_adds_regimes_and_newer_versions(tmp_path: Path) -> None:
    (tmp_path / "xx.toml").write_text(PROFILE)
    newer = PROFILE.replace("version = 1", "version = 2").replace("count = 72", "count = 24")
    (tmp_path / "xx-2.toml").write_text(newer.replace("2020-01-01", "2031-05-01"))
    assert load_regimes(str(tmp_path), _day("2031-04-30"))["XX-LAW"].deadlines["breach"].count == 72
    assert load_regimes(str(tmp_path), _day("2031-05-01"))["XX-LAW"].deadlines["breach"].count == 24
    assert load_regimes(str(tmp_path), _day("2031-05-01"))["AE-PDPL"] == SHIPPED["AE-PDPL"]
    assert "XX-LAW" not in load_regimes(str(tmp_path), _day("2019-12-31"))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (PROFILE, "described twice"),
        (PROFILE.replace("XX-LAW", "YY").replace("[retention]", 'aliases = ["PDPL"]\n[retention]'), "two regimes"),
    ],
)
def test_two_profiles_may_not_claim_one_name(tmp_path: Path, second: str, said: str) -> None:
    (tmp_path / "a.toml").write_text(PROFILE)
    (tmp_path / "b.toml").write_text(second)
    with pytest.raises(Invalid, match=said):
        load_regimes(str(tmp_path))


@pytest.mark.parametrize("name", [name for name in IDS if name != "NONE"])
def test_every_legal_value_says_its_article_and_how_far_it_was_checked(name: str) -> None:
    regime = SHIPPED[name]
    values = [
        *regime.bases.values(), *regime.deadlines.values(), *regime.exemptions,
        *([regime.retention] if regime.retention else []),
    ]  # fmt: skip
    citations = {value.source.article: value.source for value in values} | dict(regime.citations)
    assert {field for field in CITED_FIELDS if getattr(regime, field)} == set(regime.citations)
    for about, source in citations.items():
        assert source.article, about
        assert source.reviewed_by, about
        assert source.reviewed_on, about
        assert source.review_by, about
        assert source.url or source.checked in ("general", "assumed"), f"{name} {about}: read, and no address of it"
        assert source.quote or source.checked != "primary", f"{name} {about}: read, but not quoted"


def test_the_general_data_protection_regulation_is_quoted_from_its_text() -> None:
    regime = SHIPPED["EU-GDPR"]
    values = [*regime.bases.values(), *regime.deadlines.values()]
    sources = [*(value.source for value in values), *regime.citations.values()]
    assert {source.checked for source in sources} == {"primary"}
    assert all(source.quote and source.url.startswith("https://eur-lex.europa.eu/") for source in sources)
    assert regime.checked == "primary"


def test_a_citation_without_reviewer_takes_that_of_the_profile() -> None:
    retention = SHIPPED["AE-CBUAE"].retention
    assert retention is not None
    assert retention.source.reviewed_by == SHIPPED["AE-CBUAE"].reviewed_by
    assert retention.source.reviewed_on == SHIPPED["AE-CBUAE"].reviewed_on


def test_a_calendar_of_ones_own_replaces_the_shipped_one_in_every_profile(tmp_path: Path) -> None:
    (tmp_path / "calendars").mkdir()
    (tmp_path / "calendars" / "ae.toml").write_text('id = "AE"\ntimezone = "Asia/Dubai"\nholidays = ["2027-03-10"]\n')
    regimes = load_regimes(str(tmp_path), _day("2027-01-01"))
    assert regimes["AE-PDPL"].calendar.holidays == ("2027-03-10",)
    assert regimes["EU-GDPR"].calendar == SHIPPED["EU-GDPR"].calendar


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('timezone = "Mars/Olympus"', "timezone"),
        ('holidays = ["13-01"]', "holiday"),
        ("weekend = [8]", "ISO weekday"),
        ("weekend = [1, 2, 3, 4, 5, 6, 7]", "one working day"),
        ("weekends = [6]", "unknown field"),
        ("weekend = 6", "cannot be read"),
    ],
)
def test_a_wrong_calendar_is_refused_by_field(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "calendars").mkdir()
    (tmp_path / "calendars" / "x.toml").write_text(f'id = "XX"\n{text}\n')
    with pytest.raises(Invalid, match=message):
        load_regimes(str(tmp_path))


def test_a_retired_regime_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(PROFILE)
    (tmp_path / "b.toml").write_text(PROFILE.replace("version = 1", "version = 2").replace("in-force", "retired"))
    assert "XX-LAW" not in load_regimes(str(tmp_path))


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="absent"):
        load_regimes(str(tmp_path / "none"))
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match=r"a\.toml cannot be read"):
        load_regimes(str(tmp_path))


def test_names_become_ids() -> None:
    assert resolve_regime_ids(("GDPR", "EU-GDPR", "NONE"), SHIPPED) == ("EU-GDPR", "NONE")
    with pytest.raises(Invalid, match="no profile describes"):
        resolve_regime_ids(("XX",), SHIPPED)


def _day(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
