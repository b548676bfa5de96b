"""What people read: the Arabic is Arabic, figure by figure, and nothing is said in one language only."""

import re
import tomllib

import pytest

from falaj.comply.mapping import catalogue, control_map, judge
from falaj.comply.summary import FILE, markdown, page, said, unverified, words_of

LATIN = re.compile(r"[A-Za-z]{2,}")


def test_both_languages_have_the_same_words() -> None:
    assert set(words_of("ar")) == set(words_of("en"))


def test_every_figure_has_an_arabic_name() -> None:
    phrases = tomllib.loads(FILE.read_text(encoding="utf-8"))["phrases"]
    named = {
        name.replace("_", " ")
        for one in catalogue()
        for name in (*one.some, *one.none, *one.reads, *([one.unless] if one.unless else []))
    }
    assert sorted(named - set(phrases)) == []


@pytest.mark.parametrize(
    "reason",
    [
        "unlabelled: 1, must be 0",
        "drills: 0, must be more",
        "ropa: not known (nothing records it)",
        "endpoints: 0 in this period",
    ],
)
def test_reasons_are_said_in_arabic(reason: str) -> None:
    assert said(reason, "en") == reason
    assert not LATIN.search(said(reason, "ar")), said(reason, "ar")


def test_what_is_hostile_stays_text() -> None:
    asked = control_map("AE-PDPL")
    controls = judge(asked, {}, {"inventory": "<script>alert(1)</script>"})
    facts = {"period": "2026", "log": "falaj/<b>/bank/home"}
    shown = page(asked, facts, controls, unverified(asked, None, {"x": "<img src=x>"}))
    assert "<script>" not in shown
    assert "<img" not in shown
    assert "<b>/bank" not in shown
    told = markdown("ar", asked, facts, controls, [])
    assert all(f"{one.id} " in told for one in controls)
