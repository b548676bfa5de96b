"""Live pages: hear what changed, and only that; end with the session."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from tests.console.ground import Ground, Visitor
from tests.servers.browser import Chromium


@contextmanager
def hearing(visitor: Visitor, origin: str) -> Iterator["queue.Queue[str]"]:
    """What one open page hears."""
    heard: queue.Queue[str] = queue.Queue()
    with (
        httpx.Client(base_url=origin, cookies=visitor.cookies, trust_env=False, timeout=30) as client,
        client.stream("GET", "/console/live") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == ": ok"
        threading.Thread(target=_until_closed, args=(lines, heard), daemon=True).start()
        yield heard


def _until_closed(lines: Iterator[str], heard: "queue.Queue[str]") -> None:
    with suppress(httpx.HTTPError):
        for line in lines:
            if line.startswith("data: "):
                heard.put(line.removeprefix("data: "))


def test_a_change_is_heard_by_its_tenant_and_a_look_by_nobody(platform: Ground, amal: Visitor) -> None:
    with hearing(amal, platform.url) as heard, hearing(platform.visitor("sara"), platform.url) as elsewhere:
        amal.get("/console")  # looks, which is recorded, and is no change
        platform.as_("amal").track.create("experiment:fraud/heard", title="live")
        assert heard.get(timeout=10).split() == ["track"]
        assert elsewhere.empty()


def test_a_page_changes_by_itself(platform: Ground, chromium: Chromium) -> None:
    tab = platform.tab(chromium, "badr")
    tab.open("/console/approvals")
    before = tab.page.locator("main").inner_text()
    with tab.page.expect_response(lambda answer: answer.request.headers.get("falaj-part") == "main"):
        platform.as_("amal").approvals.ask("console.test", "sha256:" + "1" * 64, reason="seen without a reload")
    tab.page.get_by_text("seen without a reload").first.wait_for()
    assert "seen without a reload" not in before
    assert tab.wrong() == []


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_only_listening(platform: Ground, method: str) -> None:
    with httpx.Client(base_url=platform.url, trust_env=False) as stranger:
        assert stranger.get("/console/live").status_code == 303
        assert stranger.request(method, "/console/live", headers={"origin": platform.url}).status_code == 401
