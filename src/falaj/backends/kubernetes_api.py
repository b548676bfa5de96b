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

from falaj.backends.kubernetes_connection import KubernetesConnection
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound, Unauthenticated, Unavailable

JsonObject = dict[str, Any]
REQUEST_TIMEOUT_S = 30.0
_MAX_TRIES = 4
_MAX_PAUSE_S = 5.0
_PAGE_SIZE = 500
_WATCH_TIMEOUT_S = 290
_WATCH_SILENCE_TIMEOUT_S = 90.0
"""Bookmarks come about every minute: a watch that is silent for longer is taken for dead, and goes on elsewhere."""
_MERGE_PATCH_HEADERS = {"Content-Type": "application/merge-patch+json"}


class ResourceVersionExpired(FalajError):
    """What we wanted to go on from is too old: begin again."""


class KubernetesApi:
    """Calls of one API server. Paths are those of the public REST API."""

    def __init__(self, connection: KubernetesConnection) -> None:
        self._connection, self._token = connection, ""
        limits = httpx.Limits(max_connections=32, max_keepalive_connections=8)
        self._http_client = httpx.Client(
            base_url=connection.url,
            verify=connection.context,
            timeout=REQUEST_TIMEOUT_S,
            limits=limits,
            trust_env=False,
        )

    def get(self, path: str, **params: str) -> JsonObject:
        return _read_json_object(self._send_request("GET", path, params=params))

    def text(self, path: str, **params: str) -> bytes:
        return self._send_request("GET", path, params=params).content

    def create(self, path: str, body: JsonObject) -> JsonObject:
        """Make it; Conflict when the name is taken. Fields the server does not know are refused, not dropped."""
        return _read_json_object(self._send_request("POST", path, params={"fieldValidation": "Strict"}, json=body))

    def patch(self, path: str, body: JsonObject) -> JsonObject:
        return _read_json_object(
            self._send_request("PATCH", path, content=json.dumps(body), headers=_MERGE_PATCH_HEADERS)
        )

    def delete(self, path: str, body: JsonObject, **params: str) -> JsonObject:
        """Remove it, or all that a selector names; what is not there is no error."""
        try:
            return _read_json_object(self._send_request("DELETE", path, params=params, json=body))
        except NotFound:
            return {}

    def list(self, path: str, **params: str) -> tuple[list[JsonObject], str]:
        """Every object, page by page, and the version that a watch goes on from."""
        objects: list[JsonObject] = []
        page_cursor = ""
        while True:
            try:
                page = self.get(
                    path, limit=str(_PAGE_SIZE), **params, **({"continue": page_cursor} if page_cursor else {})
                )
            except ResourceVersionExpired:
                if not page_cursor:
                    raise
                objects, page_cursor = [], ""
                continue
            objects += page.get("items") or ()
            metadata = page.get("metadata") or {}
            if not (page_cursor := metadata.get("continue") or ""):
                return objects, str(metadata.get("resourceVersion", ""))

    @contextlib.contextmanager
    def watch(
        self, path: str, version: str, **params: str
    ) -> Iterator[tuple[Iterator[JsonObject], Callable[[], None]]]:
        """Events after a version as they come, and how to end them from another thread."""
        query_params = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        query_params |= {"timeoutSeconds": str(_WATCH_TIMEOUT_S), **params}
        response = self._open_watch(path, query_params, renew_token=False)
        if response.status_code == 401:
            response.close()
            response = self._open_watch(path, query_params, renew_token=True)
        try:
            if response.status_code != 200:
                response.read()
                raise _error_from_response(response)
            yield (json.loads(line) for line in response.iter_lines() if line), lambda: _shut_down_socket(response)
        finally:
            response.close()

    def close(self) -> None:
        self._http_client.close()

    def _open_watch(self, path: str, query_params: Mapping[str, str], renew_token: bool) -> httpx.Response:
        timeout = httpx.Timeout(REQUEST_TIMEOUT_S, read=_WATCH_SILENCE_TIMEOUT_S)
        request = self._http_client.build_request(
            "GET", path, params=query_params, headers=self._make_auth_headers(renew_token), timeout=timeout
        )
        return self._http_client.send(request, stream=True)

    def _make_auth_headers(self, renew_token: bool = False) -> dict[str, str]:
        if renew_token or not self._token:
            self._token = self._connection.token()
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _send_request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **request_options: Any
    ) -> httpx.Response:
        """Every call of ours can be made twice: names are ours to choose, and patches say what is to be."""
        renew_token = False
        for tries_left in reversed(range(_MAX_TRIES)):
            try:
                response = self._http_client.request(
                    method, path, headers={**(headers or {}), **self._make_auth_headers(renew_token)}, **request_options
                )
            except httpx.TransportError as error:
                if not tries_left:
                    raise _no_answer_error(error) from None
                time.sleep(_compute_pause_s("", tries_left))
                continue
            if response.is_success:
                return response
            if not tries_left or not _is_transient(response) or (response.status_code == 401 and renew_token):
                raise _error_from_response(response)
            renew_token = response.status_code == 401
            if not renew_token:
                time.sleep(_compute_pause_s(response.headers.get("Retry-After", ""), tries_left))
        raise AssertionError("the last try returns or raises")


class ObjectMirror:
    """Objects of one kind that carry our label, kept up to date by a watch in a thread that the first look starts."""

    def __init__(self, api: KubernetesApi, path: str, **params: str) -> None:
        self._api, self._api_path, self._query_params = api, path, params
        self._objects: dict[str, JsonObject] = {}
        self._version = ""
        self._is_current = self._has_heard = False
        self._error: FalajError | None = None
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._end_watch: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None

    def all(self) -> dict[str, JsonObject]:
        """By name, as of a moment ago; raises why the cluster does not tell us."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_watch_loop, name="kubernetes-watch", daemon=True)
                self._thread.start()
            if not self._changed.wait_for(lambda: self._is_current or self._error is not None, REQUEST_TIMEOUT_S):
                raise Unavailable("Kubernetes takes too long to list what is ours", "the same call may work later")
            if self._error is not None:
                raise self._error
            return dict(self._objects)

    def put(self, kube_object: JsonObject) -> None:
        """Take in what a call of ours was answered, so that we see what we did before the watch tells us."""
        with self._changed:
            name = kube_object["metadata"]["name"]
            existing = self._objects.get(name)
            if existing is None or _get_resource_version(kube_object) >= _get_resource_version(existing):
                self._objects[name] = _trim_object(kube_object)

    def close(self) -> None:
        self._closed.set()
        self._end_watch()
        if self._thread is not None:
            self._thread.join(REQUEST_TIMEOUT_S)

    def _run_watch_loop(self) -> None:
        pause_s, silent_count = 0.1, 0
        while not self._closed.is_set():
            try:
                if not self._version:
                    self._load_objects()
                self._apply_watch_events()
                pause_s, silent_count = 0.1, 0
            except ResourceVersionExpired:
                self._version = ""
            except (httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError, ValueError):
                # Dropped on the way: it goes on where it was. One that never says a word is asked for a list instead.
                silent_count = 0 if self._has_heard else silent_count + 1
                self._version = "" if silent_count > 1 else self._version
                self._closed.wait(pause_s)
            except (httpx.HTTPError, FalajError) as error:
                self._set_error(error if isinstance(error, FalajError) else _no_answer_error(error))
                self._closed.wait(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # nosec B311 - only spreads tries
                pause_s = min(pause_s * 2, _MAX_PAUSE_S)

    def _load_objects(self) -> None:
        objects, version = self._api.list(self._api_path, **self._query_params)
        with self._changed:
            self._objects = {kube_object["metadata"]["name"]: _trim_object(kube_object) for kube_object in objects}
            self._version, self._is_current, self._error = version, True, None
            self._changed.notify_all()

    def _apply_watch_events(self) -> None:
        self._has_heard = False
        with self._api.watch(self._api_path, self._version, **self._query_params) as (events, end_watch):
            self._end_watch = end_watch
            self._set_error(None)
            for event in () if self._closed.is_set() else events:
                self._apply_event(str(event.get("type")), event.get("object") or {})

    def _apply_event(self, event_type: str, kube_object: JsonObject) -> None:
        if event_type == "ERROR":
            raise (
                ResourceVersionExpired("the watch is too old")
                if kube_object.get("code") == 410
                else Unavailable(str(kube_object.get("message")))
            )
        metadata = kube_object.get("metadata") or {}
        with self._changed:
            self._has_heard = True
            self._version = str(metadata.get("resourceVersion", "")) or self._version
            existing = self._objects.get(str(metadata.get("name")))
            if event_type == "DELETED":
                self._objects.pop(metadata["name"], None)
            elif event_type in ("ADDED", "MODIFIED") and (
                existing is None or _get_resource_version(kube_object) >= _get_resource_version(existing)
            ):
                self._objects[metadata["name"]] = _trim_object(kube_object)

    def _set_error(self, error: FalajError | None) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()


def _trim_object(kube_object: JsonObject) -> JsonObject:
    """What we ever look at: a whole pod is many times that."""
    metadata = {name: value for name, value in kube_object["metadata"].items() if name != "managedFields"}
    return {
        "metadata": metadata,
        "status": kube_object.get("status") or {},
        "spec": {"suspend": _is_suspended(kube_object)},
    }


def _is_suspended(kube_object: JsonObject) -> bool:
    return bool((kube_object.get("spec") or {}).get("suspend"))


def _get_resource_version(kube_object: JsonObject) -> int:
    version = str(kube_object["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdigit() else 0


_ERROR_BY_STATUS: dict[int, tuple[type[FalajError], str, str]] = {
    401: (Unauthenticated, "Kubernetes does not know our token or certificate", "give the cluster's option `token`"),
    404: (NotFound, "Kubernetes has none", "it may have been deleted"),
    409: (Conflict, "Kubernetes has it already", "the name is taken"),
    410: (ResourceVersionExpired, "Kubernetes has forgotten what we go on from", "begin again"),
    **dict.fromkeys((400, 403, 405, 413, 422), (Invalid, "Kubernetes refuses", "change what the message names")),
}


def _is_transient(response: httpx.Response) -> bool:
    """Whether the same call may go well in a moment."""
    if response.status_code == 409:
        return _read_message_and_reason(response)[1] == "Conflict"
    return response.status_code in (401, 429, 502, 503, 504) or "Retry-After" in response.headers


def _compute_pause_s(retry_after: str, tries_left: int) -> float:
    pause_s = float(retry_after) if retry_after.isdigit() else 0.1 * 2 ** (_MAX_TRIES - tries_left)
    return min(pause_s, _MAX_PAUSE_S)


def _error_from_response(response: httpx.Response) -> FalajError:
    message, _ = _read_message_and_reason(response)
    status = response.status_code
    if status == 403 and re.search(r'User "[^"]*" cannot', message):
        return Denied(f"Kubernetes does not let us: {message}", "give our service account the rights that docs list")
    if status == 403 and "exceeded quota" in message:
        return Unavailable(f"the namespace is full: {message}", "wait for room, or raise its ResourceQuota")
    error_class, text, hint = _ERROR_BY_STATUS.get(
        status, (Unavailable, f"Kubernetes is not ready ({status})", "try again later")
    )
    return error_class(f"{text}: {message}", hint)


def _read_message_and_reason(response: httpx.Response) -> tuple[str, str]:
    try:
        body = response.json()
        return str(body.get("message", ""))[:500], str(body.get("reason", ""))
    except (ValueError, AttributeError):
        return f"status {response.status_code}", ""


def _read_json_object(response: httpx.Response) -> JsonObject:
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Unavailable("the answer is not Kubernetes'", "is this address really an API server?")
    return body


def _no_answer_error(error: httpx.HTTPError) -> Unavailable:
    return Unavailable(f"Kubernetes does not answer ({type(error).__name__})", "check its address and certificate")


def _shut_down_socket(response: httpx.Response) -> None:
    """End a read that another thread is in."""
    stream = response.extensions.get("network_stream")
    tcp_socket = stream.get_extra_info("socket") if stream is not None else None
    if tcp_socket is not None:
        with contextlib.suppress(OSError):
            # Past TLS, whose own way of ending is not made for two threads.
            socket.socket.shutdown(tcp_socket, socket.SHUT_RDWR)
