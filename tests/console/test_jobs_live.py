"""Jobs that really run, in a real browser: a fix that is clicked starts one, a log grows by itself, a click cancels."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from falaj.api.http_server import create_http_server
from falaj.console.handlers import ConsoleHandler
from falaj.dispatch.scaling_loop import ScalingLoop
from falaj.server import Server
from tests.jobs.lab import Lab, until
from tests.servers.browser import Chromium, Tab

TALKS = """
import pathlib, time
def said(name):
    while not pathlib.Path("{folder}", name).exists():
        time.sleep(0.05)
print("the first <b>word</b>", flush=True)
said("go")
print("the second word", flush=True)
said("never")
"""


@contextmanager
def served(home: Path, chromium: Chromium) -> Iterator[tuple[Lab, Tab]]:
    """A laptop of one node, its loops and its server in this process; its owner has followed the link of `falaj up`."""
    lab = Lab(home)
    house: Server = lab.here.house
    doors: list[ConsoleHandler] = []
    server, _ = create_http_server(
        house, listen="127.0.0.1:0", create_page_handler=lambda app: doors.append(ConsoleHandler(app)) or doors[0]
    )  # type: ignore[func-returns-value]
    up = threading.Event()
    thread = threading.Thread(target=server.go, args=(lambda _: up.set(), None), daemon=True)
    thread.start()
    assert up.wait(20)
    tab = Tab(chromium.context(server.url), server.url)
    tab.open(doors[0].invitation(server.url).removeprefix(server.url))
    expect(tab.page.locator("#rooms")).to_be_visible()
    try:
        with lab.here, lab.here.working():
            yield lab, tab
    finally:
        server.should_exit = True
        thread.join(20)


def test_a_click_starts_a_waiting_job_a_log_grows_and_a_click_cancels(
    tmp_path: Path, chromium: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScalingLoop, "every_s", 1.0)
    with served(tmp_path, chromium) as (lab, tab):
        page = tab.page
        lab.one_node(cpus=1000)
        lab.here.clusters.change("local", {"writable": str(tmp_path)})  # the job waits for files there
        cloud = "process:?nodes=0&most=3&cpus=1000&memory=1024&labels=price:1000000000"
        lab.here.people.add_tenant("clinic", "yusuf")
        lab.here.clusters.add("cloud", cloud, more={"folder": str(tmp_path / "cloud"), "tenants": "clinic"})
        talks = lab.submit(TALKS.format(folder=tmp_path), "talks", cpus=0.5)
        lab.until(talks, lambda job: job.state == "running")

        waits = lab.submit("print('here')", "waits", cpus=1)
        tab.open(f"/console/jobs/{waits.ref}")
        # What comes behind a semicolon is added by the loop that buys nodes, whenever it has looked.
        expect(page.locator("#why")).to_contain_text(lab.here.jobs.why(waits.ref).text.partition(";")[0])
        page.locator("#fix-jobs button").click()
        expect(page.locator(".badge[data-state=succeeded]").first).to_be_visible(timeout=30_000)
        assert lab.show(waits).spec.roles[0].cpus == 0.5

        tab.open(f"/console/jobs/{talks.ref}?tab=logs")
        log = page.locator(".log")
        expect(log).to_have_text("the first <b>word</b>\n")
        tab.tell("globalThis.same = true")
        (tmp_path / "go").touch()
        expect(log).to_have_text("the first <b>word</b>\nthe second word\n", timeout=30_000)
        assert tab.tell("globalThis.same"), "nothing was loaded again"

        page.locator("summary", has_text="Cancel the job").click()
        page.locator("#cancel button").click()
        expect(page.locator(".badge[data-state=cancelled]").first).to_be_visible(timeout=30_000)
        expect(page.locator("#log-state")).to_contain_text("is over", timeout=30_000)
        expect(log).to_have_text("the first <b>word</b>\nthe second word\n")
        assert lab.show(talks).state == "cancelled"

        until(lab.here.clusters.scaling, len)
        tab.open("/console/clusters?tab=scaling")
        expect(page.locator("#kind-cloud-node")).to_contain_text("1,000")
        page.locator("summary", has_text="Rules of buying").click()
        page.locator("input[name='f.wait']").fill("3m")
        page.locator("form[action$='clusters/tune'] button").click()
        expect(page.locator(".notice.good")).to_be_visible()
        assert lab.here.clusters.tune().wait_s == 180
        assert tab.wrong() == []
