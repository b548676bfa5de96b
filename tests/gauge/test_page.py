"""The page of a profile: whole, without scripts, and hostile names stay text."""

from html.parser import HTMLParser

from falaj.gauge.profile_page import render_profile
from tests.gauge.test_advice import GOOD

_EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.names: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.names |= {name for name, _ in attrs}
        if tag not in ("meta", "br", "rect", "polygon"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_is_whole_and_loads_nothing() -> None:
    kernels = [{"name": "sgemm<float, 4>", "seconds": 0.4, "share": 0.4, "count": 12}]
    full = {**GOOD, "kernels": kernels, "step_s": [0.3, 0.4, 0.3], "memory": [(0.0, 5.0), (0.5, 9e9), (1.0, 3.0)]}
    page = _Page(render_profile({**full, "split": {**GOOD["split"], "input": 0.3}}))
    assert page.open == []
    assert {"svg", "table", "rect", "polygon"} <= page.seen
    assert not page.seen & {"script", "link", "img", "iframe"}
    assert not page.names & {"src", "href"}
    for text in ("sgemm<float, 4>", "The input is too slow", "30.0%", "NVIDIA H200"):
        assert text in page.text


def test_hostile_names_stay_text() -> None:
    evil = {
        **GOOD,
        "facts": {"run": _EVIL, _EVIL: _EVIL, "chip": _EVIL},
        "split": {_EVIL: 0.5, "input": 0.5},
        "kernels": [{"name": _EVIL, "seconds": 0.4, "share": 0.4, "count": 12}],
        "waits": {"count": _EVIL, "longest_s": 0.1},
    }
    page = _Page(render_profile(evil))
    assert page.open == []
    assert not page.seen & {"script", "img"}
    assert page.text.count(_EVIL) >= 5


def test_nothing_measured_is_a_page_too() -> None:
    assert "Nothing stands out" in _Page(render_profile({"steps": 0, "span_s": 0.0, "split": {}, "kernels": []})).text
