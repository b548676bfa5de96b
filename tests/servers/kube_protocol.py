"""A strict Kubernetes API of the tests' own: TLS, tokens, versions, watches, selectors, pages, and refusals on demand.

It stores objects and refuses what the real schemas do not know; kube_kubelet.py runs what is stored: pods of Jobs,
processes of pods. It has no admission, no RBAC and no DNS.
"""

import contextlib
import copy
import datetime as dt
import ipaddress
import json
import re
import ssl
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Json = dict[str, Any]
_PATH = re.compile(
    r"(?P<group>/api/v1|/apis/[^/]+/[^/]+)(/namespaces/(?P<ns>[^/]+))?/(?P<kind>[a-z]+)"
    r"(/(?P<name>[^/]+))?(?P<sub>/log|/scale)?"
)


class Refusal(Exception):
    """An answer that is no object."""

    def __init__(self, code: int, reason: str, message: str = "", **headers: str) -> None:
        super().__init__(message)
        self.code, self.headers = code, headers
        self.body = {
            "kind": "Status",
            "status": "Failure",
            "reason": reason,
            "message": message or reason,
            "code": code,
        }


class Event(NamedTuple):
    version: int
    place: str
    type: str
    object: Json


class Store:
    """Objects by place (`group/kind`) and `namespace/name`, and everything that ever happened to them."""

    def __init__(self, check: Callable[[Json], None]) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.check = check
        self.objects: dict[str, dict[str, Json]] = {}
        self.events: list[Event] = []
        self.version = 100
        self.oldest = 0
        """Watches and pages from before this are gone."""

    def create(self, place: str, namespace: str, one: Json) -> Json:
        with self.changed:
            about = one["metadata"]
            if "generateName" in about:
                about["name"] = f"{about['generateName']}{uuid.uuid4().hex[:5]}"
            key = f"{namespace}/{about['name']}"
            if key in self.objects.setdefault(place, {}):
                raise Refusal(409, "AlreadyExists", f'{place} "{about["name"]}" already exists')
            made = copy.deepcopy(one)
            made["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()} | (
                {"namespace": namespace} if namespace else {}
            )
            self._save(place, key, made, "ADDED")
            return made

    def change(self, place: str, key: str, change: Callable[[Json], None]) -> Json:
        with self.changed:
            one = copy.deepcopy(self.get(place, key))
            before = copy.deepcopy(one)
            change(one)
            if one != before:
                self._save(place, key, one, "MODIFIED")
            return one

    def get(self, place: str, key: str) -> Json:
        with self.changed:
            if key not in self.objects.get(place, {}):
                raise Refusal(404, "NotFound", f'{place} "{key.partition("/")[2]}" not found')
            return self.objects[place][key]

    def delete(self, place: str, key: str, grace_s: float = 0.0) -> Json:
        """Foreground: it is marked, its own go first. A pod goes when its kubelet says so."""
        with self.changed:
            due = now(grace_s)
            one = self.change(place, key, lambda one: one["metadata"].setdefault("deletionTimestamp", due) and None)
            kept = False
            for where, mine in self.objects.items():
                for name, other in list(mine.items()):
                    owners = other["metadata"].get("ownerReferences") or ()
                    if any(owner["uid"] == one["metadata"]["uid"] for owner in owners):
                        pod = where.endswith("/pods")
                        self.delete(
                            where, name, float(other["spec"].get("terminationGracePeriodSeconds", 30)) if pod else 0
                        )
                        kept = True
            if not kept and not place.endswith("/pods"):
                self.remove(place, key)
            return one

    def remove(self, place: str, key: str) -> None:
        """It is gone; so is an owner that only waited for it."""
        with self.changed:
            one = self.objects[place].pop(key, None)
            if one is None:
                return
            self._save(place, "", one, "DELETED")
            for owner in one["metadata"].get("ownerReferences") or ():
                for where, mine in list(self.objects.items()):
                    for name, other in list(mine.items()):
                        if other["metadata"]["uid"] == owner["uid"] and other["metadata"].get("deletionTimestamp"):
                            self.delete(where, name)

    def compact(self) -> None:
        """Forget what happened: whoever goes on from before is told so, and open watches too."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.changed.notify_all()

    def _save(self, place: str, key: str, one: Json, kind: str) -> None:
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)
        if key:
            self.objects[place][key] = one
        self.events.append(Event(self.version, place, kind, copy.deepcopy(one)))
        self.changed.notify_all()


class KubeProtocol:
    """The server: `url`, `token`, `ca`; `store` behind it. `inject` answers the next call that fits with a refusal."""

    def __init__(self, check: Callable[[Json], None]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="falaj-kube-"))
        self.store, self.token = Store(check), uuid.uuid4().hex
        self.injected: list[tuple[str, str, Refusal | None]] = []
        self.asked: list[str] = []
        self.logs: dict[str, list[bytes]] = {}
        self.ca = self.folder / "ca.crt"
        key = _certificate(self.ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca, key)
        handler = type("Bound", (_Handler,), {"kube": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}"
        self.closed = False
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def inject(self, method: str, path: str, refusal: Refusal | None = None) -> None:
        """Refuse the next call of this method whose path and query hold this text; None drops the connection."""
        self.injected.append((method, path, refusal))

    def close(self) -> None:
        with self.store.changed:
            self.closed = True
            self.store.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    kube: KubeProtocol
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self._refuse_injected()
            if self.headers.get("Authorization") != f"Bearer {self.kube.token}":
                raise Refusal(401, "Unauthorized")
            found = _PATH.fullmatch(url.path)
            if found is None:
                raise Refusal(404, "NotFound", f"no such path: {url.path}")
            query = dict(parse_qsl(url.query))
            place = f"{found['group']}/{found['kind']}"
            if query.get("watch"):
                self._watch(place, found["ns"], query)
                return
            answer = self._serve(place, found, query, body)
            self._send(200, answer if isinstance(answer, bytes) else json.dumps(answer).encode())
        except Refusal as refusal:
            self._send(refusal.code, json.dumps(refusal.body).encode(), refusal.headers)
        except ConnectionError:
            self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815

    def _refuse_injected(self) -> None:
        self.kube.asked.append(f"{self.command} {self.path}")
        for one in self.kube.injected:
            method, path, refusal = one
            if method == self.command and path in self.path:
                self.kube.injected.remove(one)
                raise refusal or ConnectionAbortedError

    def _serve(self, place: str, found: re.Match[str], query: Json, body: bytes) -> Any:
        store, namespace, name = self.kube.store, found["ns"] or "", found["name"]
        key = f"{namespace}/{name}"
        if found["sub"] == "/scale":
            asked = {"spec": {"replicas": json.loads(body)["spec"]["replicas"]}}
            return store.change(place, key, lambda one: _merge(one, asked))
        if found["sub"]:
            return self._log(store.get(place, key), query)
        if self.command == "POST":
            one = json.loads(body)
            if query.get("fieldValidation") == "Strict":
                store.check(one)
            return store.create(place, namespace, one)
        if self.command == "PATCH":
            if self.headers["Content-Type"] != "application/merge-patch+json":
                raise Refusal(415, "UnsupportedMediaType")
            return store.change(place, key, lambda one: _merge(one, json.loads(body)))
        if self.command == "DELETE":
            grace = float(json.loads(body or b"{}").get("gracePeriodSeconds", 30))
            if name:
                return store.delete(place, key, grace)
            for one in list(_chosen(store, place, namespace, query)):
                store.delete(place, f"{namespace}/{one['metadata']['name']}", grace)
            return {"kind": "Status"}
        return store.get(place, key) if name else self._list(place, namespace, query)

    def _list(self, place: str, namespace: str, query: Json) -> Json:
        store = self.kube.store
        with store.changed:
            version, _, start = query.get("continue", f"{store.version}:0").partition(":")
            if query.get("continue") and int(version) < store.oldest:
                raise Refusal(410, "Expired", "the provided continue parameter is too old")
            found = sorted(_chosen(store, place, namespace, query), key=lambda one: one["metadata"]["name"])
            end = int(start) + int(query.get("limit", "500"))
            more = {"continue": f"{version}:{end}"} if end < len(found) else {}
            return {
                "kind": "List",
                "metadata": {"resourceVersion": str(version), **more},
                "items": found[int(start) : end],
            }

    def _watch(self, place: str, namespace: str, query: Json) -> None:
        store, version = self.kube.store, int(query["resourceVersion"])
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        end = time.monotonic() + float(query.get("timeoutSeconds", "300"))
        while time.monotonic() < end and not self.kube.closed:
            with store.changed:
                if version < store.oldest:
                    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                    self._chunk({"type": "ERROR", "object": gone})
                    break
                news = [one for one in store.events if one.version > version]
                version = store.version
                if not news:
                    store.changed.wait(0.5)
            for one in news:
                if one.place == place and _fits(one.object, namespace or "", query):
                    self._refuse_dropped()
                    self._chunk({"type": one.type, "object": one.object})
            if news:
                self._chunk({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}})
        self.wfile.write(b"0\r\n\r\n")

    def _refuse_dropped(self) -> None:
        """A watch that was to be dropped ends in the middle of a line."""
        for one in self.kube.injected:
            if one[0] == "WATCH" and one[1] in self.path:
                self.kube.injected.remove(one)
                self.wfile.write(b'9\r\n{"type":"A\r\n')
                self.wfile.flush()
                raise ConnectionAbortedError

    def _log(self, pod: Json, query: Json) -> bytes:
        lines = self.kube.logs.get(pod["metadata"]["name"])
        if lines is None:
            raise Refusal(
                400, "BadRequest", f"container {query.get('container')} is waiting to start: ContainerCreating"
            )
        since, last = query.get("sinceTime", "")[:19], int(query.get("tailLines", "0"))
        return b"".join(line for line in lines[-last:] if line[:19].decode() >= since)[
            : int(query.get("limitBytes", "1000000"))
        ]

    def _chunk(self, event: Json) -> None:
        data = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, code: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def now(later_s: float = 0.0) -> str:
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=later_s)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _chosen(store: Store, place: str, namespace: str, query: Json) -> Iterator[Json]:
    with store.changed:
        yield from (
            copy.deepcopy(one) for one in list(store.objects.get(place, {}).values()) if _fits(one, namespace, query)
        )


def _fits(one: Json, namespace: str, query: Json) -> bool:
    if namespace and one["metadata"].get("namespace") != namespace:
        return False
    labels = one["metadata"].get("labels") or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        name, equal, value = term.partition("=")
        if name not in labels or (equal and labels[name] != value):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        found: Any = one
        path, other, value = re.split(r"(!?)=", term)
        for word in path.split("."):
            found = found.get(word) or {}
        if ((found or "") == value) == bool(other):
            return False
    return True


def _merge(one: Json, patch: Json) -> None:
    for name, value in patch.items():
        if isinstance(value, dict):
            _merge(one.setdefault(name, {}), value)
        else:
            one[name] = value


def _certificate(path: Path) -> Path:
    """A certificate of 127.0.0.1 that signs itself; gives its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube")])
    when = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(when - dt.timedelta(days=1))
        .not_valid_after(when + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    hidden = path.with_suffix(".key")
    hidden.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return hidden
