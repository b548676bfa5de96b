"""The test ground of the console: a platform with a life of three days behind the real server, and its visitors.

What exists by name (tests/console/life.py, life_rooms.py, hostile.py make it):
people      admin (house); of the bank: fatima (administrator), amal (data-scientist), salem (data-steward), mona
            (ml-engineer), badr and bilal (approvers), dana (dpo), omar (auditor), sami (security-officer), ola
            (operator), noura (suspended); of the clinic: yusuf (administrator), sara (data-scientist, sees nothing)
zones       ae-dubai (here), eu-west; a transfer grant that waits for people, one that was refused
catalog     dataset:fraud/transactions@v1..v3 (v2 changes rows, v3 adds `city`), dataset:fraud/customers, :fraud/cards;
            model:fraud/scorer@v1 (production again), @v2 (rolled back, staging), @v3 (promotion waits for approval);
            code:fraud/flows; tag `challenger` on model:fraud/scorer@v3; gate:fraud/production
track       experiment:fraud/scoring with run:fraud/000…0 to 000…7 (32 digits; 7 goes on, 5 failed), metrics loss and
            accuracy; artefacts of the first: report.md, plots/loss.json
sweeps      sweep:fraud/rates (stopped; six trials with values, their jobs cancelled), experiment:fraud/rates
jobs        job:fraud/train-1 (done), train-2 (failed), train-3 (waits: a GPU model that is not there), train-4 (runs in
            `hall`), train-5 (waits: more GPUs than a node has; `why` knows a command)
clusters    local, hall (nodes node-1, node-2: 4 imitated H100 each, 2 h of telemetry); queues root/bank, root/clinic
features    entity:fraud/card, view:fraud/card-stats (10 rows broke a rule), view:fraud/card-spent (pushed),
            service:fraud/scoring
serve       endpoint:fraud/scorer (ready, canary of revision 2 at 20 %), endpoint:fraud/old (stopped)
monitor     the watch of endpoint:fraud/scorer: 24 windows, drift of `amount` confirmed, incident:fraud/scorer-1 open
flows       flow:fraud/retrain; turn:fraud/retrain-1 (done), -2 (failed), -3 (runs); schedule weekly, trigger new-rows
secrets     secret:fraud/warehouse
hostile     dataset:hostile/rows, model:hostile/card, experiment:hostile/words, run:hostile/00…bad, job:hostile/noisy,
            approvals of hostile.act (refused) and hostile.other (waits); every text has the word `hostile9`
"""

import fcntl
import json
import os
import shutil
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

from falaj.api.http_server import create_http_server
from falaj.console.handlers import ConsoleHandler
from falaj.console.operation_forms import ARGUMENTS_FIELD, FORM_TOKEN_FIELD
from falaj.server import LocalClient, Server, load_settings
from tests.console import hostile, life, life_rooms, life_sweeps
from tests.console.dom import Node, read
from tests.servers.browser import DESK, Chromium, Tab
from tests.servers.process import wait_until

PURPOSE = "fraud"
STEPS = (
    life.transactions, life.models, life.runs, life.jobs, life_rooms.features, life_rooms.serve, hostile.hostile,
    life_rooms.settle, life_rooms.traffic, life_rooms.flows, life_rooms.govern, life_rooms.telemetry,
    life_sweeps.sweep,
)  # fmt: skip


def seed(folder: Path) -> Path:
    """The house with its life, made once under `folder` whoever asks first; copies of it are lived in."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "tokens.json").is_file():
            story = life.Story(folder / "house")
            for step in STEPS:
                step(story)
            story.close()
            _end_processes(folder / "house")
            (folder / "tokens.json").write_text(json.dumps(story.town.tokens))
    return folder


def _end_processes(house: Path) -> None:
    """What this house started: the stand-ins that serve nothing, the job that runs, and those who watch over them, who
    would tidy up while the house is copied."""

    def none_is_left() -> bool:
        found = _processes_of(str(house))
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    wait_until(none_is_left, 30)


def _processes_of(house: str) -> list[int]:
    """Those that were told of its folders, or have a file of it open."""
    numbers = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
    return [number for number in numbers if number != os.getpid() and _belongs(Path("/proc", str(number)), house)]


def _belongs(process: Path, house: str) -> bool:
    with suppress(OSError):  # it ended
        if f"FALAJ_OUTBOX={house}".encode() in (process / "environ").read_bytes():
            return True
        for file in (process / "fd").iterdir():
            with suppress(OSError):
                if str(file.readlink()).startswith(house):
                    return True
    return False


class Ground:
    """A copy of that house behind the real server, in a thread of this process; no loop runs.

    `ground.as_("amal")` is the platform in process, `ground.visitor("amal")` somebody with a session and no browser,
    `ground.tab(chromium, "amal")` somebody with one.
    """

    def __init__(self, seeded: Path, home: Path) -> None:
        shutil.copytree(seeded / "house", home)
        self.tokens: dict[str, str] = json.loads((seeded / "tokens.json").read_text())
        self.house = Server(load_settings(str(home), {"zone": "ae-dubai", "sandbox": "off"}))
        self.server, _ = create_http_server(self.house, listen="127.0.0.1:0", create_page_handler=ConsoleHandler)
        self.url = self.server.url
        self._visitors: dict[tuple[str, str], Visitor] = {}

    def __enter__(self) -> Self:
        up = threading.Event()
        self._thread = threading.Thread(target=self.server.go, args=(lambda _: up.set(), None), daemon=True)
        self._thread.start()
        assert up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        for visitor in self._visitors.values():
            visitor.close()
        self.server.should_exit = True
        self._thread.join(20)
        self.house.close()

    def as_(self, person: str, purpose: str = PURPOSE) -> Any:
        """The platform with this person bound: what a page shows can be held against it."""
        return LocalClient(self.house, self.house.authenticate(self.tokens[person]), purpose)

    def visitor(self, person: str, lang: str = "en", **look: Any) -> "Visitor":
        """A person who is signed in; the same one again when asked again."""
        key = person, json.dumps([lang, look])
        if key not in self._visitors:
            self._visitors[key] = Visitor(self, person, lang, **look)
        return self._visitors[key]

    def tab(
        self,
        chromium: Chromium,
        person: str,
        lang: str = "en",
        theme: str = "light",
        size: tuple[int, int] = DESK,
        **more: Any,
    ) -> Tab:
        """A page of a browser in which this person is signed in."""
        cookies = self.visitor(person, lang, theme=theme).cookies
        context = chromium.context(self.url, cookies, language=lang, theme=theme, size=size, **more)
        return Tab(context, self.url)


@dataclass(frozen=True)
class Seen:
    """What came back: `seen.status`, `seen.html`, `seen.tree`, `seen.headers`, `seen.json`."""

    status: int
    html: str
    headers: httpx.Headers

    @cached_property
    def tree(self) -> Node:
        """The page as a tree; that its tags do not fit together is a failure."""
        return read(self.html)

    @property
    def main(self) -> Node:
        """The part between header and footer."""
        return self.tree.one("main")

    @property
    def text(self) -> str:
        """What a person reads in it."""
        return self.main.text

    @property
    def json(self) -> Any:
        """The data, where it is data for a script."""
        return json.loads(self.html)

    @property
    def to(self) -> str:
        """Where it sends the browser."""
        return self.headers.get("location", "")


class Visitor:
    """Somebody with a session, over HTTP, without a browser. `person` empty: a stranger."""

    def __init__(self, ground: Ground, person: str = "", lang: str = "en", **look: Any) -> None:
        """`look`: theme (light, dark), purpose (fraud when left out), indic (other digits)."""
        self.ground, self.person = ground, person
        self._line = httpx.Client(base_url=ground.url, trust_env=False, timeout=60, headers={"origin": ground.url})
        said = lang, look.get("theme", ""), "indic" if look.get("indic") else "", look.get("purpose", PURPOSE)
        self._line.cookies.set("falaj-look", quote("|".join(said), safe=""), domain="127.0.0.1", path="/console")
        if person:
            done = self.send("POST", "/console/sign-in", data={"token": ground.tokens[person], "back": "/console"})
            assert done.status == 303, done.html[:500]

    @property
    def cookies(self) -> dict[str, str]:
        """For a browser that shall be signed in without typing."""
        return {cookie.name: cookie.value or "" for cookie in self._line.cookies.jar}

    @property
    def session(self) -> str:
        """The session id, as its cookie holds it."""
        return next(value for name, value in self.cookies.items() if name not in ("falaj-look", "falaj-said"))

    def get(self, path: str, **headers: str) -> Seen:
        """A page; what is not there or not allowed is a Seen, too. An underscore in a header's name is a dash."""
        return self.send("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def part(self, path: str) -> Seen:
        """What a live page fetches: <main> alone."""
        return self.get(path, falaj_part="main")

    def send(self, method: str, path: str, **more: Any) -> Seen:
        """Any request."""
        found = self._line.request(method, path, **more)
        return Seen(found.status_code, found.text, found.headers)

    def post(self, path: str, fields: Mapping[str, str]) -> Seen:
        """A form, exactly as given."""
        return self.send("POST", path, data=dict(fields))

    def press(self, page: str, desk: str, verb: str, **filled: str) -> Seen:
        """Press the button of a verb on a page, with what a person would fill in; gives the answer to the form.

        Where there are several such buttons, `given="…"` is in the arguments of the one that is meant.
        """
        wanted, action = filled.pop("given", ""), f"/console/do/{desk}/{verb}"
        forms = [form for form in self.get(page).tree.all("form") if form["action"] == action]
        forms = [form for form in forms if wanted in form.one(f"input[name={ARGUMENTS_FIELD}]")["value"]]
        assert len(forms) == 1, f"{len(forms)} forms of {action} on {page}"
        fields = {one["name"]: one["value"] for one in forms[0].all("input[type=hidden]")}
        assert FORM_TOKEN_FIELD in fields, "the form does not say that it is from a page of ours"
        return self.post(action, {**fields, **{f"f.{name}": value for name, value in filled.items()}})

    def follow(self, seen: Seen) -> Seen:
        """Where it was sent to."""
        assert seen.status == 303, (seen.status, seen.html[:300])
        parts = urlsplit(seen.to)
        return self.get(parts.path + (f"?{parts.query}" if parts.query else ""))

    def close(self) -> None:
        """No more requests."""
        self._line.close()
