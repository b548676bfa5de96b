"""Regimes: the shipped profiles say what was decided about them, and a wrong profile is refused by name."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from falaj.core.errors import Invalid
from falaj.govern.regimes import canonical, load_regimes, read_regime

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

[timers.breach]
hours = 72
status = "assumed"

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
    assert SHIPPED["AE-HEALTH"].min_retain_s == round(25 * 365.25 * 86_400)
    assert SHIPPED["AE-CBUAE"].retain_from == "end"
    assert SHIPPED["AE-PDPL"].timers["breach"].status == "assumed"
    assert SHIPPED["AE-ADGM"].timers["breach"].status == "verified"
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
        ('checked = "primary"', 'checked = "surely"', "checked"),
        ('sources = ["its text"]', "sources = []", "sources"),
        ('sources = ["its text"]', "", "sources"),
        ('localisation = "conditional"', 'localisation = "free"', "localisation"),
        ('localisation = "conditional"', 'localisation = "deny-abroad"\nadequate = ["GB"]', "deny-abroad"),
        ('localisation = "conditional"', 'localisation = "deny-abroad"\nclearable = ["GB"]', "deny-abroad"),
        ('home = ["XX"]', 'home = ["Mars"]', "the jurisdiction"),
        ('home = ["XX"]', "home = []", "home"),
        ('home = ["XX"]', 'home = ["XX", "*"]', "home"),
        ('home = ["XX"]', 'home = ["XX"]\nadequate = ["*"]', "home"),
        ('home = ["XX"]', 'home = ["XX"]\nmin_retain_s = -1', "retention"),
        ('home = ["XX"]', 'home = ["XX"]\nretain_from = "never"', "retain_from"),
        ('home = ["XX"]', 'home = ["XX"]\nexempt = true', "there is no field exempt"),
        ('home = ["XX"]', 'home = ["XX"]\nusual = "2"', "usual"),
        ("hours = 72", "hours = 0", "the timer breach"),
        ("hours = 72", "hours = 72\nfrom = 3", "timers.breach.from"),
        ('status = "assumed"', 'status = "sure"', "the timer breach"),
        ('documents = ["contract"]', "documents = []", "demands no document"),
        ('documents = ["contract"]', 'document = "contract"', "bases.1.document"),
        ('["notify_dpo"]', '["whatever"]', "the obligation"),
        ("[bases.1]", '[bases."a b"]', "the basis"),
        ("[bases.1]", "[bases.1]\nid = '2'", "the basis"),
        ("[bases.1]", "[bases", "not TOML"),
        ("[timers.breach]", "timers = 3\n[x]", "does not fit"),
        ("[bases.1]", "[bases]\nx = 1\n[y]", "tables"),
    ],
)
def test_a_wrong_profile_is_refused_and_says_what_is_wrong(old: str, new: str, said: str) -> None:
    assert read_regime(PROFILE).id == "XX-LAW"
    with pytest.raises(Invalid, match=said):
        read_regime(PROFILE.replace(old, new, 1), "xx.toml")


def test_a_folder_of_ones_own_adds_regimes_and_newer_versions(tmp_path: Path) -> None:
    (tmp_path / "xx.toml").write_text(PROFILE)
    newer = PROFILE.replace("version = 1", "version = 2").replace("hours = 72", "hours = 24")
    (tmp_path / "xx-2.toml").write_text(newer.replace("2020-01-01", "2031-05-01"))
    assert load_regimes(str(tmp_path), _day("2031-04-30"))["XX-LAW"].timers["breach"].hours == 72
    assert load_regimes(str(tmp_path), _day("2031-05-01"))["XX-LAW"].timers["breach"].hours == 24
    assert load_regimes(str(tmp_path), _day("2031-05-01"))["AE-PDPL"] == SHIPPED["AE-PDPL"]
    assert "XX-LAW" not in load_regimes(str(tmp_path), _day("2019-12-31"))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (PROFILE, "described twice"),
        (PROFILE.replace("XX-LAW", "YY").replace("[timers", 'aliases = ["PDPL"]\n[timers'), "two regimes"),
    ],
)
def test_two_profiles_may_not_claim_one_name(tmp_path: Path, second: str, said: str) -> None:
    (tmp_path / "a.toml").write_text(PROFILE)
    (tmp_path / "b.toml").write_text(second)
    with pytest.raises(Invalid, match=said):
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
    assert canonical(("GDPR", "EU-GDPR", "NONE"), SHIPPED) == ("EU-GDPR", "NONE")
    with pytest.raises(Invalid, match="no profile describes"):
        canonical(("XX",), SHIPPED)


def _day(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
