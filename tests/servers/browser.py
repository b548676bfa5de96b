"""Real Chromium for tests, by Playwright: what a page says, what it asks for, what it breaks, and how it looks.

One `Chromium` a module: Playwright keeps an event loop in the thread that started it, which others may not expect.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, CDPSession, ConsoleMessage, Dialog, Page, Request, sync_playwright

from tests.servers import axe
from tests.servers.process import Missing

ARGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-proxy-server", "--font-render-hinting=none",
)  # fmt: skip
DESK, PHONE = (1280, 800), (390, 844)
# Both answers of the browser to a broken policy: the event in the page, and the line in its console.
_LISTEN = """
globalThis.falajBroken = [];
document.addEventListener("securitypolicyviolation", (event) => {
  globalThis.falajBroken.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""
_AXE = """
axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], resultTypes: ["violations"]}).then((found) =>
  found.violations.flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.target.join(" ")} (${
    [...node.any, ...node.all, ...node.none].map((each) => each.message).join("; ") || one.help})`)))
"""


class Tab:
    """A page and everything that went wrong on it: `tab.open(path)`, `tab.wrong()`, `tab.axe()`, `tab.page`."""

    def __init__(self, context: BrowserContext, origin: str) -> None:
        self.origin = origin
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        self.dialogs: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))
        self.page.on("request", self._asked)
        self.page.on("dialog", self._dialog)
        self._line: CDPSession = context.new_cdp_session(self.page)

    def open(self, path: str) -> int:
        """Go there; gives the status of the answer."""
        answer = self.page.goto(f"{self.origin}{path}", wait_until="load")
        assert answer is not None
        return answer.status

    def tell(self, expression: str) -> Any:
        """What a piece of JavaScript gives. Past the page's own policy, under which even a debugger may not `eval`."""
        told = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        found = self._line.send("Runtime.evaluate", told)
        if "exceptionDetails" in found:
            raise AssertionError(str(found["exceptionDetails"])[:1000])
        return found["result"].get("value")

    def wrong(self) -> list[str]:
        """What is no way to behave: errors, broken policies, dialogs, requests to somebody else."""
        broken = [f"policy: {one}" for one in self.tell("globalThis.falajBroken") or ()]
        return [
            *self.errors,
            *broken,
            *(f"dialog: {one}" for one in self.dialogs),
            *(f"asked elsewhere: {one}" for one in self.elsewhere),
        ]

    def forget(self) -> None:
        """Before the next page."""
        for held in (self.errors, self.elsewhere, self.dialogs):
            held.clear()

    def axe(self) -> list[str]:
        """What keeps people from using it: each finding as rule, place and reason."""
        if not self.tell("'axe' in globalThis"):
            self.tell(axe.program().read_text())
        found: list[str] = self.tell(_AXE)
        return found

    def keep(self, file: Path, *, whole: bool = True) -> Path:
        """A picture of it."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=file, full_page=whole, animations="disabled")
        return file

    def close(self) -> None:
        """The page goes; its context stays."""
        self.page.close()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _asked(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob", "about") and not request.url.startswith(f"{self.origin}/"):
            self.elsewhere.append(request.url)

    def _dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()


class Chromium:
    """The browser. `context(origin)` is one person's window: its own cookies, language, theme and size."""

    def __init__(self) -> None:
        self._program = program()

    def __enter__(self) -> Self:
        self._play = sync_playwright().start()
        try:
            self.browser = self._play.chromium.launch(executable_path=self._program, args=list(ARGS))
        except BaseException:
            self._play.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.browser.close()
        self._play.stop()

    def context(
        self,
        origin: str,
        cookies: Mapping[str, str] | None = None,
        *,
        language: str = "en",
        theme: str = "light",
        size: tuple[int, int] = DESK,
        scripts: bool = True,
    ) -> BrowserContext:
        """With these cookies; `scripts=False` is a browser without JavaScript."""
        made = self.browser.new_context(
            locale={"ar": "ar-AE", "en": "en-GB"}[language],
            color_scheme="dark" if theme == "dark" else "light",
            viewport={"width": size[0], "height": size[1]},
            timezone_id="Asia/Dubai",
            reduced_motion="reduce",
            java_script_enabled=scripts,
        )
        made.add_init_script(_LISTEN)
        made.add_cookies([{"name": name, "value": value, "url": origin} for name, value in (cookies or {}).items()])
        return made


def program() -> str:
    """The path of Chromium; Missing if there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise Missing("Chromium is missing: apt-get install chromium, then run `make components`")
    return found


def fonts() -> str:
    """A font with Arabic letters; Missing if this machine has none."""
    lister = shutil.which("fc-list")
    told = subprocess.run([lister, ":lang=ar"], capture_output=True, text=True, check=False) if lister else None
    if told is None or not told.stdout.strip():
        raise Missing("a font with Arabic letters is missing: apt-get install fontconfig fonts-noto-core")
    return told.stdout.splitlines()[0]
