"""Work: what the platform asks, done by the zone's own executor and store. Every order may come twice.

An attempt gets a token that is good at this agent's door and nowhere else; the platform's stays with the agent, who
renews it while the attempt runs.
"""

import base64
import hmac
import json
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from falaj.agent.identity import write_private
from falaj.agent.link import Link
from falaj.agent.vault import Vault
from falaj.api.channel import TOKEN
from falaj.core.errors import Denied, FalajError, Invalid, NotFound
from falaj.core.execute import OVER, Attempt, CanCarry, Executor, Slot
from falaj.store.codec import from_plain, to_plain
from falaj.worker.bundle import launcher

MOST_LISTED = 100_000
_ID = re.compile(r"[a-z0-9-]{1,60}")
BROKEN = (ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What a faulty executor, or an order of another release, may raise beside our own errors."""


_LOCAL = "fjz-"


class Tokens:
    """Which local token stands for which of the platform's; kept, so that a restart of the agent ends no attempt."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, str]] = _noted(path)
        self._secret = _secret(path.with_name("door.key"))

    def local(self, attempt: str, real: str) -> str:
        """The token that an attempt is given for its own. It follows from the attempt, so that it need not be written
        down before the attempt begins: an order that comes twice gives the same."""
        drawn = base64.urlsafe_b64encode(hmac.digest(self._secret, attempt.encode(), "sha256")).decode().rstrip("=")
        with self._lock:
            mine = self._known.get(attempt, {}).get("local") or f"{_LOCAL}{drawn}"
            self._known = {**self._known, attempt: {"local": mine, "real": real}}
        return mine

    def keep(self) -> None:
        """Write down what is known."""
        with self._lock:
            self._save(self._known)

    def real(self, local: str) -> str:
        """The platform's token behind a local one; what is not local is passed on as it is."""
        known = self._known.values()
        return next((one["real"] for one in known if secrets.compare_digest(one["local"], local)), local)

    def may_pass(self, token: str) -> bool:
        """False for a token of this door that it does not know; whose any other one is, the platform says."""
        return not token.startswith(_LOCAL) or self.real(token) != token

    def renew(self, link: Link) -> None:
        """Every attempt's next token. One that cannot be had now is asked for again in time."""
        for attempt in list(self._known):
            self._renew(link, attempt)

    def revive(self, link: Link, local: str) -> bool:
        """The next token of the attempt that holds this one, which ended while the link was down; False without one."""
        return any(self._renew(link, attempt) for attempt, pair in list(self._known.items()) if pair["local"] == local)

    def _renew(self, link: Link, attempt: str) -> bool:
        pair = self._known.get(attempt)
        if pair is None:
            return False
        body = json.dumps({"attempt": attempt, **_claims(pair["real"])}).encode()
        said = link.send("POST", TOKEN, {"content-type": "application/json"}, body)
        if said.status != 200:
            return False
        with self._lock:
            if attempt in self._known:
                self._save({**self._known, attempt: {**pair, "real": json.loads(said.body)["token"]}})
        return True

    def forget(self, attempt: str) -> None:
        """It is over."""
        with self._lock:
            if attempt in self._known:
                self._save({name: pair for name, pair in self._known.items() if name != attempt})

    def _save(self, known: dict[str, dict[str, str]]) -> None:
        write_private(self._path, json.dumps(known).encode(), durable=False)
        self._known = known


class Handles:
    """What the executor calls attempts, where it has names of its own; the platform calls them by their ids."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, str] = _noted(path)

    def of(self, attempt: str) -> str:
        """The executor's handle."""
        return self._known.get(attempt, attempt)

    def note(self, attempt: str, handle: str) -> None:
        """Remember it."""
        self._save({**self._known, attempt: handle})

    def forget(self, attempt: str) -> None:
        """It is settled."""
        if attempt in self._known:
            self._save({name: handle for name, handle in self._known.items() if name != attempt})

    def _save(self, known: dict[str, str]) -> None:
        with self._lock:
            write_private(self._path, json.dumps(known).encode(), durable=False)
            self._known = known


class Work:
    """Does one question at a time for each thread that asks."""

    def __init__(self, executor: Executor, vault: Vault, home: Path, tokens: Tokens, door: str) -> None:
        store = vault.store
        self._vault = vault
        self._executor = executor
        self._store = store
        self._tokens = tokens
        self._door = door
        self._home = home
        self._handles = Handles(home / "handles.json")
        self.tells_logs = True
        self._does: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "capacity": lambda given: executor.capacity(),
            "launch": lambda given: self._launch(given["attempt"]),
            "poll": lambda given: self._poll(given["handles"]),
            "checkpoint": lambda given: executor.checkpoint(self._handles.of(given["handle"])),
            "stop": lambda given: executor.stop(self._handles.of(given["handle"]), given["grace_s"]),
            "logs": self._logs,
            "outbox": lambda given: self._outbox(given["handle"], given["after"]),
            "forget": lambda given: self._forget(given["handle"]),
            "stat": lambda given: {key: one.size for key, one in store.stat(given["keys"]).items()},
            "list": lambda given: self._list(given["prefix"]),
            "delete": lambda given: store.delete(given["key"]),
            "look": self._look,
        }

    def do(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a question, as it goes back; an error is one, too."""
        number = str(question.get("id", ""))
        try:
            work = self._does.get(str(question.get("do")))
            if work is None:
                raise Invalid("this agent does not know that question", "use the same release on both sides")
            return {"id": number, "result": to_plain(work(question["given"]))}
        except FalajError as error:
            told = {"code": error.code, "message": error.message, "hint": error.hint, "ref": ""}
        except BROKEN as error:
            told = {
                "code": "unavailable",
                "message": f"the agent failed: {error!r:.200}",
                "hint": "see its log",
                "ref": "",
            }
        return {"id": number, "error": told}

    def _launch(self, plain: Mapping[str, Any]) -> str:
        asked = _attempt(plain)
        platform_env = dict(asked.platform_env)
        if real := platform_env.get("FALAJ_TOKEN"):
            platform_env = {"FALAJ_TOKEN": self._tokens.local(asked.id, real), "FALAJ_URL": self._door}
        context = dict(asked.context)
        context["address"] = ""  # what it says is fetched from here, also after a time without a link
        for name in ("stage", "after"):
            given: Any = context.get(name) or ()
            context[name] = [["-m", "falaj.agent.patient", *words] for words in given]
        # The owner of the platform's folder is not the owner of this machine, so every attempt is sandboxed.
        attempt = replace(asked, by_owner=False, platform_env=platform_env, context=context, launcher=launcher())
        handle = self._executor.launch(attempt)
        if real:
            self._tokens.keep()
        if handle != asked.id:
            self._handles.note(asked.id, handle)
        return asked.id

    def _poll(self, attempts: list[str]) -> Any:
        found = self._executor.poll([self._handles.of(one) for one in attempts])
        for attempt, status in zip(attempts, found, strict=True):
            if status.phase in OVER:
                self._tokens.forget(attempt)
                self._clear(attempt)
        return [replace(status, handle=attempt) for attempt, status in zip(attempts, found, strict=True)]

    def _clear(self, attempt: str) -> None:
        """Nothing stays in the clear of what was brought to an attempt, or made by it and published; its logs do."""
        if _ID.fullmatch(attempt):
            for name in ("code", "inputs", "outputs", "transfer"):
                shutil.rmtree(self._home / "attempts" / attempt / name, ignore_errors=True)

    def _logs(self, given: Mapping[str, Any]) -> Any:
        if not self.tells_logs:
            raise Denied("this agent gives out no logs", "read them in the zone: they may hold what must not leave it")
        return self._executor.logs(self._handles.of(given["handle"]), given["slot"], given["after"], given["limit"])

    def _outbox(self, handle: str, after: str) -> Any:
        if not isinstance(self._executor, CanCarry):
            raise NotFound("this executor carries nothing", "its launchers tell the door themselves")
        return self._executor.outbox(self._handles.of(handle), after)

    def _forget(self, handle: str) -> None:
        self._tokens.forget(handle)
        self._executor.forget(self._handles.of(handle))
        self._handles.forget(handle)

    def _look(self, given: Mapping[str, Any]) -> Any:
        """What the files of a tree are: found here, since nobody else can open them."""
        from falaj.catalog.looking import look_into
        from falaj.snapshot.records import Tree

        lies = given["lies"]

        def fetch(digest: str, start: int, stop: int | None) -> Iterator[bytes]:
            key, size = lies[digest]
            return self._vault.get(
                given["tenant"], digest, key, (start, min(size, size if stop is None else stop), size)
            )

        return look_into(from_plain(Tree, given["tree"]), fetch, given["files"])

    def _list(self, prefix: str) -> list[tuple[str, int]]:
        found = [(one.key, one.size) for one, _ in zip(self._store.list(prefix), range(MOST_LISTED + 1), strict=False)]
        if len(found) > MOST_LISTED:
            raise Invalid(f"more than {MOST_LISTED} pieces lie here", "ask for a prefix")
        return found


def _noted(path: Path) -> dict[str, Any]:
    """What is written down of attempts that run. It ends with the machine, and so do they."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _secret(path: Path) -> bytes:
    """What local tokens follow from; made once, and known to this agent only."""
    if not path.exists():
        write_private(path, secrets.token_bytes(32))
    return path.read_bytes()


def _claims(token: str) -> dict[str, str]:
    """Which run of which tenant a token is for."""
    part = token.split(".")[1]
    said = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return {"tenant": str(said["tenant"]), "run": str(said["run"])}


def _attempt(plain: Mapping[str, Any]) -> Attempt:
    slots = tuple(Slot(**{**slot, "devices": tuple(slot["devices"])}) for slot in plain["slots"])
    return Attempt(**{**plain, "slots": slots, "command": tuple(plain["command"])})
