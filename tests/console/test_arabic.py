"""What rooms say on pages in Arabic: what it is in Arabic, and their own words beside it, marked as English."""

import pytest

from tests.console.ground import Ground

RUN = "/console/track/run:fraud/00000000000000000000000000000000"


def test_an_error_is_told_by_its_class_with_its_own_words_beside_it(platform: Ground) -> None:
    told = platform.visitor("amal", "ar").get("/console/jobs/job:fraud/never-was").main.one(".notice")
    assert "تحقّق من الاسم" in told.text
    words = told.one("[lang=en]")
    assert words["dir"] == "ltr"
    assert "there is no job:fraud/never-was" in words.text
    english = platform.visitor("amal").get("/console/jobs/job:fraud/never-was").main.one(".notice")
    assert english.text.startswith("Not found. there is no job:fraud/never-was")


def test_what_breaks_on_our_side_is_still_a_page(platform: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(pieces: list[str]) -> None:
        raise RuntimeError(f"/etc/secret {pieces}")

    monkeypatch.setattr("falaj.console.handlers.find_page", broken)
    seen = platform.visitor("amal", "ar").get("/console/jobs")
    assert seen.status == 500
    assert seen.tree.one("html")["lang"] == "ar"
    assert seen.tree.one("main").all("a")
    assert "secret" not in seen.html
    assert "RuntimeError" not in seen.html


def test_what_a_button_needs_is_told_by_the_rule(platform: Ground) -> None:
    lacks = platform.visitor("omar", "ar").get("/console/jobs/job:fraud/train-5").main.all(".denied small")
    assert lacks
    for one in lacks:
        assert "لا يسمح بذلك أيٌّ من أدوارك" in one.text
        assert "none of your roles" in one.one("[lang=en]").text


def test_reasons_to_wait_have_their_word_and_are_marked(platform: Ground) -> None:
    waits = platform.visitor("amal", "ar").get("/console/jobs?state=waiting").main.all(".reason")
    assert waits
    for one in waits:
        assert one.all("strong")
        assert one.one("[lang=en]")["dir"] == "ltr"


def test_what_came_of_a_form_is_told_in_both(platform: Ground) -> None:
    amal = platform.visitor("amal", "ar")
    done = amal.press(RUN, "track", "register", path="", model="no reference")
    said = amal.follow(done).main.one(".notice.bad")
    assert "غير صالح" in said.text
    assert "no reference" in said.one("[lang=en]").text
