"""Blobs in an object store: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://account/container`, `memory:`.

How to reach it stands in the address (`s3://bucket/falaj?endpoint=https://s3.example&region=me-central-1`); who we are
never does: credentials come from the environment, from the machine's role, or from options that point at them
(`env:NAME`, `file:/path`). What the store or its client says in an error may name accounts and hosts, so none of it is
passed on; backends/object_errors.py turns it into a reason of ours.

A store that hangs would hold every caller for a time-out. So a circuit breaker refuses calls while nothing answers; it
is probed by a client of its own, whose time-out is a second.

An object appears whole or not at all, also when it went up in pieces. A multipart upload of a process that died cannot
be taken up again through obstore and stays hidden in the bucket until its lifecycle rule ends it; so nothing larger
than a part of a blob is ever one object (store/blobs.py), and a repeated put sends only the parts that are missing.
"""

import contextlib
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import obstore
from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from falaj.backends.object_errors import bucket_missing, failure_of, names_missing_bucket
from falaj.core.breaker import CircuitBreaker, NoAnswer
from falaj.core.credential import credential
from falaj.core.errors import FalajError, Invalid, NotFound, Unavailable
from falaj.core.ports import Stat, open_url

_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}(/[A-Za-z0-9_-]{1,128}){0,3}", re.ASCII)
_SECRET = re.compile(r"key|secret|token|sas|password|credential", re.IGNORECASE)
_STORES: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_CLIENT = ("allow_http", "proxy_url", "connect_timeout", "timeout", "read_timeout", "root_certificate")
_PIECE = 8 << 20
_RETRY: Mapping[str, Any] = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_TIMEOUTS: Mapping[str, Any] = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "120s"}
"""Time to connect, to wait for the next bytes of an answer, and for one request as a whole."""
_PROBE_TIMEOUTS: Mapping[str, Any] = {"connect_timeout": "1s", "read_timeout": "1s", "timeout": "1s"}
_PROBE_RETRY: Mapping[str, Any] = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
_PROBE_KEY = "ready"
"""An object that never exists: asking for it costs a request and no bytes."""
_TROUBLE = (BaseError, OSError, ValueError)


class ObjectBlobs:
    """Objects of one bucket or container, under one prefix."""

    requests = 4
    """How many requests at once keep a line to a far store busy."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        scheme = open_url(url)[0]
        self._store: Any = MemoryStore() if scheme == "memory" else _connect(scheme, url, options)
        self._probing = self._store if scheme == "memory" else _connect(scheme, url, options, for_probes=True)
        self._breaker = CircuitBreaker("the blob store", self.probe)
        self._endpoint, self._authorities = _endpoint_of(scheme, url, options), _authorities_of(url)

    def remote_time(self) -> float:
        """The Unix time in the Date header of the store's server, which has whole seconds."""
        if not self._endpoint:
            raise Unavailable("this blob store has no server to ask for its time", "it is not compared")
        try:
            trust = ssl.create_default_context(cafile=self._authorities or None)
            response = httpx.head(self._endpoint, timeout=10.0, verify=trust)
            return parsedate_to_datetime(response.headers["date"]).timestamp() + 0.5
        except (httpx.HTTPError, httpx.InvalidURL, KeyError, ValueError, OSError) as error:
            hint = "it is asked again"
            raise Unavailable(f"the blob store does not tell its time ({type(error).__name__})", hint) from error

    def put(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Write all or nothing, durable on return; gives the size."""
        path, count = _checked(key), _Counted(chunks)
        self._breaker.check()
        first = list(count.upto(_PIECE))
        try:
            if count.ended:
                obstore.put(self._store, path, b"".join(first), use_multipart=False)
            else:
                self._put_pieces(path, first, count)
        except FileNotFoundError:
            raise bucket_missing() from None
        except _TROUBLE as error:
            raise count.failed or self._failure(error) from None
        self._breaker.record_answer()
        return count.size

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to `stop`; fewer where the object is shorter."""
        path = _checked(key)
        if stop is not None and stop <= start:
            return
        self._breaker.check()
        span: Any = {"offset": start} if stop is None else (start, stop)
        try:
            for piece in obstore.get(self._store, path, options={"range": span}).stream(min_chunk_size=1 << 20):
                yield bytes(piece)
        except _TROUBLE as error:
            # A range that begins behind the end is an error here and nothing in a folder; make them alike.
            if not isinstance(error, FileNotFoundError) and self._ends_before(key, start):
                return
            raise self._failure(error) from None
        self._breaker.record_answer()

    def stat(self, keys: Iterable[str]) -> dict[str, Stat]:
        """What is known of those of `keys` that exist."""
        found = {}
        for key in keys:
            with contextlib.suppress(NotFound):
                found[key] = Stat(key, self._size(_checked(key)))
        return found

    def list(self, prefix: str = "") -> Iterator[Stat]:
        """Every object whose key begins with `prefix`, in no order."""
        folder = prefix.rpartition("/")[0]
        self._breaker.check()
        try:
            for page in obstore.list(self._store, folder or None):
                for item in page:
                    if item["path"].startswith(prefix):
                        yield Stat(item["path"], item["size"])
        except _TROUBLE as error:
            raise self._failure(error) from None
        self._breaker.record_answer()

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is removed already."""
        self._breaker.check()
        try:
            obstore.delete(self._store, _checked(key))
        except FileNotFoundError:
            return
        except _TROUBLE as error:
            raise self._failure(error) from None
        self._breaker.record_answer()

    def probe(self) -> None:
        """Ask the store for an object that does not exist, for a second at most; raise the reason it cannot be used."""
        try:
            obstore.get(self._probing, _PROBE_KEY)
        except _TROUBLE as error:
            if not isinstance(error, FileNotFoundError):
                raise self._failure(error) from None
            self._breaker.record_answer()
            if names_missing_bucket(error):
                raise bucket_missing() from None
        else:
            self._breaker.record_answer()

    def close(self) -> None:
        """Connections close by themselves when idle."""
        self._breaker.close()

    def _put_pieces(self, path: str, first: Iterable[bytes], rest: "_Counted") -> None:
        pieces = rest.joined(first, _PIECE)
        obstore.put(self._store, path, pieces, use_multipart=True, chunk_size=_PIECE, max_concurrency=4)

    def _size(self, path: str) -> int:
        self._breaker.check()
        try:
            size = int(obstore.head(self._store, path)["size"])
        except _TROUBLE as error:
            raise self._failure(error) from None
        self._breaker.record_answer()
        return size

    def _failure(self, error: BaseException) -> FalajError:
        """The reason in our words; whether the store answered is counted."""
        failure = failure_of(error)
        if isinstance(failure, NoAnswer):
            self._breaker.record_failure()
        else:
            self._breaker.record_answer()
        return failure

    def _ends_before(self, key: str, start: int) -> bool:
        found = self.stat((key,)).get(key)
        return found is not None and found.size <= start


class _Counted:
    """Chunks on their way up: how many bytes went, whether they ended, and what broke inside their maker."""

    def __init__(self, chunks: Iterable[bytes | memoryview]) -> None:
        self._chunks = iter(chunks)
        self.size = 0
        self.ended = False
        self.failed: BaseException | None = None

    def upto(self, limit: int) -> Iterator[bytes]:
        """Chunks until `limit` bytes have gone or there are no more."""
        start = self.size
        while self.size - start < limit:
            chunk = next(self._chunks, None)
            if chunk is None:
                self.ended = True
                return
            self.size += len(chunk)
            yield bytes(chunk)  # the next one will lie in the same place

    def joined(self, first: Iterable[bytes], size: int) -> Iterator[bytes]:
        """`first` and all that is left, in pieces of about `size`."""
        try:
            piece = b"".join(first)
            while piece:
                yield piece
                piece = b"" if self.ended else b"".join(self.upto(size))
        except BaseException as error:
            # The client wraps what comes out of here; the caller must hear the error itself.
            self.failed = error
            raise


def _connect(scheme: str, url: str, options: Mapping[str, Any], *, for_probes: bool = False) -> Any:
    address = urlsplit(url)
    wishes = dict(parse_qsl(address.query))
    if address.username or address.password or any(_SECRET.search(name) for name in wishes):
        raise Invalid("the address of a blob store holds a credential", "use the environment or point at it in options")
    wishes |= {name: _pointed(name, value) for name, value in options.items() if name != "client_options"}
    client: dict[str, Any] = {**_TIMEOUTS, **options.get("client_options", {})}
    client |= {name: _flag(wishes.pop(name)) for name in _CLIENT if name in wishes}
    retry = _RETRY
    if for_probes:
        client, retry = {**client, **_PROBE_TIMEOUTS}, _PROBE_RETRY
    bare = f"{scheme}://{address.netloc}{address.path}"
    try:
        return _STORES[scheme].from_url(bare, config=wishes, client_options=client, retry_config=retry)
    except UnknownConfigurationKeyError:
        known = "endpoint, region, allow_http, virtual_hosted_style_request and what else obstore knows"
        raise Invalid(f"the address of a {scheme} blob store has an option that does not exist", known) from None
    except _TROUBLE:
        raise Invalid(
            f"the address of a {scheme} blob store cannot be read", "for example s3://bucket/prefix"
        ) from None


def _endpoint_of(scheme: str, url: str, options: Mapping[str, Any]) -> str:
    """The address of the store's server; only its answer's Date header is read."""
    address = urlsplit(url)
    wishes = dict(parse_qsl(address.query))
    defaults = {
        "s3": f"https://s3.{wishes.get('region', 'us-east-1')}.amazonaws.com",
        "gs": "https://storage.googleapis.com",
        "az": f"https://{address.netloc}.blob.core.windows.net",
    }
    return str(options.get("endpoint", "")) or wishes.get("endpoint", "") or defaults.get(scheme, "")


def _authorities_of(url: str) -> str:
    """The file of authorities of the store's server, where the address names one."""
    return dict(parse_qsl(urlsplit(url).query)).get("root_certificate", "")


def _pointed(name: str, value: Any) -> Any:
    if _SECRET.search(name) and isinstance(value, str) and value.startswith(("env:", "file:")):
        return credential(value, name)
    return value


def _flag(value: Any) -> Any:
    return {"true": True, "false": False}.get(str(value).lower(), value)


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise Invalid("this is no key of an object", "keys are made by the platform: letters, digits, - and _")
    return key
