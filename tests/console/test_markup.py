"""Markup: nothing that a stranger wrote becomes part of a page."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.console.markup import Html, escape_text, h, join_html


class Read(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.said = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.said += data


@given(st.text(), st.text())
def test_whatever_is_given_is_text(one: str, other: str) -> None:
    seen = Read(h.p(one, class_=other))
    assert [name for name, _ in seen.tags] == ["p"]
    assert [name for name, _ in seen.tags[0][1]] == ["class"]


@pytest.mark.parametrize(
    ("made", "written"),
    [
        (h.p("<b>"), "<p>&lt;b&gt;</p>"),
        (h.p(h.b("x"), None, False, [1, 2.5]), "<p><b>x</b>12.5</p>"),
        (h.input(type="checkbox", checked=True, disabled=False), '<input type="checkbox" checked>'),
        (h.label("a", for_="b", data_live_now="c"), '<label for="b" data-live-now="c">a</label>'),
        (h.path(d="M0 0"), '<path d="M0 0"></path>'),
        (join_html("a", Html("<br>"), "&"), "a<br>&amp;"),
        (escape_text("a\u202eb\x00c"), "a\\u202eb\\x00c"),
        (h.p(title=h.b('"x"', id="y")), '<p title="<b id=&quot;y&quot;>&quot;x&quot;</b>"></p>'),
    ],
)
def test_markup(made: Html, written: str) -> None:
    assert made == written


@pytest.mark.parametrize("attribute", [{"style": "x"}, {"onclick": "x"}, {"onerror": "x"}])
def test_what_the_policy_of_a_page_would_drop_is_a_bug(attribute: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="not allowed"):
        h.p("x", **attribute)


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "https://evil.example", "//evil.example", "/\\evil", "data:,x"]
)
def test_links_stay_within(address: str) -> None:
    with pytest.raises(ValueError, match="leads away"):
        h.a("x", href=address)
