"""A small client of Kubernetes' REST API, and a mirror of objects that a watch keeps up to date.

What a server may say at any time is dealt with here: slow down (429, 503 with Retry-After), a token that ended (401), a
change that crossed another (409), a dropped connection, a watch too old to go on (410).
"""

import contextlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx

from falaj.backends.kubernetes_reach import Reach
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound, Unauthenticated, Unavailable

Json = dict[str, Any]
TIMEOUT_S = 30.0
_TRIES = 4
_LONGEST_PAUSE_S = 5.0
_PAGE = 500
_WATCH_S = 290
_SILENT_S = 90.0
"""Bookmarks come about every minute: a watch that is silent for longer is taken for dead, and goes on elsewhere."""
_MERGE = {"Content-Type": "application/merge-patch+json"}


class Gone(FalajError):
    """What we wanted to go on from is too old: begin again."""


class KubeApi:
    """Calls of one API server. Paths are those of the public REST API."""

    def __init__(self, reach: Reach) -> None:
        self._reach, self._token = reach, ""
        limits = httpx.Limits(max_connections=32, max_keepalive_connections=8)
        self._http = httpx.Client(
            base_url=reach.url, verify=reach.context, timeout=TIMEOUT_S, limits=limits, trust_env=False
        )

    def get(self, path: str, **params: str) -> Json:
        return _json(self._ask("GET", path, params=params))

    def text(self, path: str, **params: str) -> bytes:
        return self._ask("GET", path, params=params).content

    def create(self, path: str, body: Json) -> Json:
        """Make it; Conflict when the name is taken. Fields the server does not know are refused, not dropped."""
        return _json(self._ask("POST", path, params={"fieldValidation": "Strict"}, json=body))

    def patch(self, path: str, body: Json) -> Json:
        return _json(self._ask("PATCH", path, content=json.dumps(body), headers=_MERGE))

    def delete(self, path: str, body: Json, **params: str) -> Json:
        """Remove it, or all that a selector names; what is not there is no error."""
        try:
            return _json(self._ask("DELETE", path, params=params, json=body))
        except NotFound:
            return {}

    def list(self, path: str, **params: str) -> tuple[list[Json], str]:
        """Every object, page by page, and the version that a watch goes on from."""
        found: list[Json] = []
        rest = ""
        while True:
            try:
                page = self.get(path, limit=str(_PAGE), **params, **({"continue": rest} if rest else {}))
            except Gone:
                if not rest:
                    raise
                found, rest = [], ""
                continue
            found += page.get("items") or ()
            about = page.get("metadata") or {}
            if not (rest := about.get("continue") or ""):
                return found, str(about.get("resourceVersion", ""))

    @contextlib.contextmanager
    def watch(self, path: str, version: str, **params: str) -> Iterator[tuple[Iterator[Json], Callable[[], None]]]:
        """Events after a version as they come, and how to end them from another thread."""
        asked = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        asked |= {"timeoutSeconds": str(_WATCH_S), **params}
        answer = self._open(path, asked, again=False)
        if answer.status_code == 401:
            answer.close()
            answer = self._open(path, asked, again=True)
        try:
            if answer.status_code != 200:
                answer.read()
                raise _refusal(answer)
            yield (json.loads(line) for line in answer.iter_lines() if line), lambda: _hang_up(answer)
        finally:
            answer.close()

    def close(self) -> None:
        self._http.close()

    def _open(self, path: str, asked: Mapping[str, str], again: bool) -> httpx.Response:
        timeout = httpx.Timeout(TIMEOUT_S, read=_SILENT_S)
        request = self._http.build_request("GET", path, params=asked, headers=self._who(again), timeout=timeout)
        return self._http.send(request, stream=True)

    def _who(self, again: bool = False) -> dict[str, str]:
        if again or not self._token:
            self._token = self._reach.token()
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, **how: Any) -> httpx.Response:
        """Every call of ours can be made twice: names are ours to choose, and patches say what is to be."""
        again = False
        for left in reversed(range(_TRIES)):
            try:
                answer = self._http.request(method, path, headers={**(headers or {}), **self._who(again)}, **how)
            except httpx.TransportError as error:
                if not left:
                    raise _silent(error) from None
                time.sleep(_pause("", left))
                continue
            if answer.is_success:
                return answer
            if not left or not _passing(answer) or (answer.status_code == 401 and again):
                raise _refusal(answer)
            again = answer.status_code == 401
            if not again:
                time.sleep(_pause(answer.headers.get("Retry-After", ""), left))
        raise AssertionError("the last try returns or raises")


class Mirror:
    """Objects of one kind that carry our label, kept up to date by a watch in a thread that the first look starts."""

    def __init__(self, api: KubeApi, path: str, **params: str) -> None:
        self._api, self._path, self._params = api, path, params
        self._objects: dict[str, Json] = {}
        self._version = ""
        self._current = self._heard = False
        self._error: FalajError | None = None
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._hang_up: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None

    def all(self) -> dict[str, Json]:
        """By name, as of a moment ago; raises why the cluster does not tell us."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="kubernetes-watch", daemon=True)
                self._thread.start()
            if not self._changed.wait_for(lambda: self._current or self._error is not None, TIMEOUT_S):
                raise Unavailable("Kubernetes takes too long to list what is ours", "the same call may work later")
            if self._error is not None:
                raise self._error
            return dict(self._objects)

    def put(self, one: Json) -> None:
        """Take in what a call of ours was answered, so that we see what we did before the watch tells us."""
        with self._changed:
            name = one["metadata"]["name"]
            known = self._objects.get(name)
            if known is None or _order(one) >= _order(known):
                self._objects[name] = _kept(one)

    def close(self) -> None:
        self._closed.set()
        self._hang_up()
        if self._thread is not None:
            self._thread.join(TIMEOUT_S)

    def _follow(self) -> None:
        pause, silent = 0.1, 0
        while not self._closed.is_set():
            try:
                if not self._version:
                    self._begin()
                self._go_on()
                pause, silent = 0.1, 0
            except Gone:
                self._version = ""
            except (httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError, ValueError):
                # Dropped on the way: it goes on where it was. One that never says a word is asked for a list instead.
                silent = 0 if self._heard else silent + 1
                self._version = "" if silent > 1 else self._version
                self._closed.wait(pause)
            except (httpx.HTTPError, FalajError) as error:
                self._say(error if isinstance(error, FalajError) else _silent(error))
                self._closed.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311  # nosec B311 - only spreads tries
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _begin(self) -> None:
        found, version = self._api.list(self._path, **self._params)
        with self._changed:
            self._objects = {one["metadata"]["name"]: _kept(one) for one in found}
            self._version, self._current, self._error = version, True, None
            self._changed.notify_all()

    def _go_on(self) -> None:
        self._heard = False
        with self._api.watch(self._path, self._version, **self._params) as (events, hang_up):
            self._hang_up = hang_up
            self._say(None)
            for event in () if self._closed.is_set() else events:
                self._hear(str(event.get("type")), event.get("object") or {})

    def _hear(self, kind: str, one: Json) -> None:
        if kind == "ERROR":
            raise Gone("the watch is too old") if one.get("code") == 410 else Unavailable(str(one.get("message")))
        about = one.get("metadata") or {}
        with self._changed:
            self._heard = True
            self._version = str(about.get("resourceVersion", "")) or self._version
            known = self._objects.get(str(about.get("name")))
            if kind == "DELETED":
                self._objects.pop(about["name"], None)
            elif kind in ("ADDED", "MODIFIED") and (known is None or _order(one) >= _order(known)):
                self._objects[about["name"]] = _kept(one)

    def _say(self, error: FalajError | None) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()


def _kept(one: Json) -> Json:
    """What we ever look at: a whole pod is many times that."""
    about = {name: value for name, value in one["metadata"].items() if name != "managedFields"}
    return {"metadata": about, "status": one.get("status") or {}, "spec": {"suspend": _suspended(one)}}


def _suspended(one: Json) -> bool:
    return bool((one.get("spec") or {}).get("suspend"))


def _order(one: Json) -> int:
    version = str(one["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdigit() else 0


_REFUSALS: dict[int, tuple[type[FalajError], str, str]] = {
    401: (Unauthenticated, "Kubernetes does not know our token or certificate", "give the cluster's option `token`"),
    404: (NotFound, "Kubernetes has none", "it may have been deleted"),
    409: (Conflict, "Kubernetes has it already", "the name is taken"),
    410: (Gone, "Kubernetes has forgotten what we go on from", "begin again"),
    **dict.fromkeys((400, 403, 405, 413, 422), (Invalid, "Kubernetes refuses", "change what the message names")),
}


def _passing(answer: httpx.Response) -> bool:
    """Whether the same call may go well in a moment."""
    if answer.status_code == 409:
        return _said(answer)[1] == "Conflict"
    return answer.status_code in (401, 429, 502, 503, 504) or "Retry-After" in answer.headers


def _pause(asked: str, left: int) -> float:
    wanted = float(asked) if asked.isdigit() else 0.1 * 2 ** (_TRIES - left)
    return min(wanted, _LONGEST_PAUSE_S)


def _refusal(answer: httpx.Response) -> FalajError:
    message, _ = _said(answer)
    status = answer.status_code
    if status == 403 and re.search(r'User "[^"]*" cannot', message):
        return Denied(f"Kubernetes does not let us: {message}", "give our service account the rights that docs list")
    if status == 403 and "exceeded quota" in message:
        return Unavailable(f"the namespace is full: {message}", "wait for room, or raise its ResourceQuota")
    kind, what, hint = _REFUSALS.get(status, (Unavailable, f"Kubernetes is not ready ({status})", "try again later"))
    return kind(f"{what}: {message}", hint)


def _said(answer: httpx.Response) -> tuple[str, str]:
    try:
        body = answer.json()
        return str(body.get("message", ""))[:500], str(body.get("reason", ""))
    except (ValueError, AttributeError):
        return f"status {answer.status_code}", ""


def _json(answer: httpx.Response) -> Json:
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Unavailable("the answer is not Kubernetes'", "is this address really an API server?")
    return body


def _silent(error: httpx.HTTPError) -> Unavailable:
    return Unavailable(f"Kubernetes does not answer ({type(error).__name__})", "check its address and certificate")


def _hang_up(answer: httpx.Response) -> None:
    """End a read that another thread is in."""
    stream = answer.extensions.get("network_stream")
    under = stream.get_extra_info("socket") if stream is not None else None
    if under is not None:
        with contextlib.suppress(OSError):
            # Past TLS, whose own way of ending is not made for two threads.
            socket.socket.shutdown(under, socket.SHUT_RDWR)
