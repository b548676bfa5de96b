"""Blobs in an object store: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://account/container`, `memory:`.

How to reach it stands in the address (`s3://bucket/falaj?endpoint=https://s3.example&region=me-central-1`); who we are
never does: credentials come from the environment, from the machine's role, or from options that point at them
(`env:NAME`, `file:/path`). What the store or its client says in an error may name accounts and hosts, so none of it is
passed on; backends/object_errors.py turns it into a reason of ours.

A store that hangs would hold every caller for a time-out. So a circuit breaker refuses calls while nothing answers; it
is probed by a client of its own, whose time-out is a second.

An object appears whole or not at all, also when it went up in pieces. A multipart upload of a process that died cannot
be taken up again through obstore and stays hidden in the bucket until its lifecycle rule ends it; so nothing larger
than a part of a blob is ever one object (store/blob_store.py), and a repeated put sends only the parts that are
missing.
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

from falaj.backends.object_errors import bucket_missing_error, names_missing_bucket, translate_error
from falaj.core.circuit_breaker import CircuitBreaker, NoAnswerError
from falaj.core.credential import read_credential
from falaj.core.errors import FalajError, Invalid, NotFound, Unavailable
from falaj.core.ports import ObjectStat, split_backend_url

_KEY_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,128}(/[A-Za-z0-9_-]{1,128}){0,3}", re.ASCII)
_SECRET_NAME_PATTERN = re.compile(r"key|secret|token|sas|password|credential", re.IGNORECASE)
_STORE_CLASSES: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_CLIENT_OPTIONS = ("allow_http", "proxy_url", "connect_timeout", "timeout", "read_timeout", "root_certificate")
_PIECE_BYTES = 8 << 20
_RETRY_OPTIONS: Mapping[str, Any] = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_TIMEOUT_OPTIONS: Mapping[str, Any] = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "120s"}
"""Time to connect, to wait for the next bytes of an answer, and for one request as a whole."""
_PROBE_TIMEOUT_OPTIONS: Mapping[str, Any] = {"connect_timeout": "1s", "read_timeout": "1s", "timeout": "1s"}
_PROBE_RETRY_OPTIONS: Mapping[str, Any] = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
_PROBE_KEY = "ready"
"""An object that never exists: asking for it costs a request and no bytes."""
_CLIENT_ERRORS = (BaseError, OSError, ValueError)


class CloudObjectStore:
    """Objects of one bucket or container, under one prefix."""

    requests = 4
    """How many requests at once keep a line to a far store busy."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        scheme = split_backend_url(url)[0]
        self._client: Any = MemoryStore() if scheme == "memory" else _create_client(scheme, url, options)
        self._probe_client = (
            self._client if scheme == "memory" else _create_client(scheme, url, options, for_probes=True)
        )
        self._breaker = CircuitBreaker("the blob store", self.probe)
        self._server_url, self._ca_file = _get_server_url(scheme, url, options), _get_ca_file(url)

    def remote_time(self) -> float:
        """The Unix time in the Date header of the store's server, which has whole seconds."""
        if not self._server_url:
            raise Unavailable("this blob store has no server to ask for its time", "it is not compared")
        try:
            ssl_context = ssl.create_default_context(cafile=self._ca_file or None)
            response = httpx.head(self._server_url, timeout=10.0, verify=ssl_context)
            return parsedate_to_datetime(response.headers["date"]).timestamp() + 0.5
        except (httpx.HTTPError, httpx.InvalidURL, KeyError, ValueError, OSError) as error:
            hint = "it is asked again"
            raise Unavailable(f"the blob store does not tell its time ({type(error).__name__})", hint) from error

    def put(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Write all or nothing, durable on return; gives the size."""
        path, counted_chunks = _require_valid_key(key), _CountedChunks(chunks)
        self._breaker.check()
        first = list(counted_chunks.upto(_PIECE_BYTES))
        try:
            if counted_chunks.ended:
                obstore.put(self._client, path, b"".join(first), use_multipart=False)
            else:
                self._put_pieces(path, first, counted_chunks)
        except FileNotFoundError:
            raise bucket_missing_error() from None
        except _CLIENT_ERRORS as error:
            raise counted_chunks.failed or self._record_and_translate(error) from None
        self._breaker.record_answer()
        return counted_chunks.size

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to `stop`; fewer where the object is shorter."""
        path = _require_valid_key(key)
        if stop is not None and stop <= start:
            return
        self._breaker.check()
        byte_range: Any = {"offset": start} if stop is None else (start, stop)
        try:
            for piece in obstore.get(self._client, path, options={"range": byte_range}).stream(min_chunk_size=1 << 20):
                yield bytes(piece)
        except _CLIENT_ERRORS as error:
            # A range that begins behind the end is an error here and nothing in a folder; make them alike.
            if not isinstance(error, FileNotFoundError) and self._ends_before(key, start):
                return
            raise self._record_and_translate(error) from None
        self._breaker.record_answer()

    def stat(self, keys: Iterable[str]) -> dict[str, ObjectStat]:
        """What is known of those of `keys` that exist."""
        stats = {}
        for key in keys:
            with contextlib.suppress(NotFound):
                stats[key] = ObjectStat(key, self._get_size(_require_valid_key(key)))
        return stats

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """Every object whose key begins with `prefix`, in no order."""
        folder = prefix.rpartition("/")[0]
        self._breaker.check()
        try:
            for page in obstore.list(self._client, folder or None):
                for item in page:
                    if item["path"].startswith(prefix):
                        yield ObjectStat(item["path"], item["size"])
        except _CLIENT_ERRORS as error:
            raise self._record_and_translate(error) from None
        self._breaker.record_answer()

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is removed already."""
        self._breaker.check()
        try:
            obstore.delete(self._client, _require_valid_key(key))
        except FileNotFoundError:
            return
        except _CLIENT_ERRORS as error:
            raise self._record_and_translate(error) from None
        self._breaker.record_answer()

    def probe(self) -> None:
        """Ask the store for an object that does not exist, for a second at most; raise the reason it cannot be used."""
        try:
            obstore.get(self._probe_client, _PROBE_KEY)
        except _CLIENT_ERRORS as error:
            if not isinstance(error, FileNotFoundError):
                raise self._record_and_translate(error) from None
            self._breaker.record_answer()
            if names_missing_bucket(error):
                raise bucket_missing_error() from None
        else:
            self._breaker.record_answer()

    def close(self) -> None:
        """Connections close by themselves when idle."""
        self._breaker.close()

    def _put_pieces(self, path: str, first: Iterable[bytes], counted_chunks: "_CountedChunks") -> None:
        pieces = counted_chunks.joined(first, _PIECE_BYTES)
        obstore.put(self._client, path, pieces, use_multipart=True, chunk_size=_PIECE_BYTES, max_concurrency=4)

    def _get_size(self, path: str) -> int:
        self._breaker.check()
        try:
            size = int(obstore.head(self._client, path)["size"])
        except _CLIENT_ERRORS as error:
            raise self._record_and_translate(error) from None
        self._breaker.record_answer()
        return size

    def _record_and_translate(self, error: BaseException) -> FalajError:
        """The reason in our words; whether the store answered is counted."""
        failure = translate_error(error)
        if isinstance(failure, NoAnswerError):
            self._breaker.record_failure()
        else:
            self._breaker.record_answer()
        return failure

    def _ends_before(self, key: str, start: int) -> bool:
        object_stat = self.stat((key,)).get(key)
        return object_stat is not None and object_stat.size <= start


class _CountedChunks:
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


def _create_client(scheme: str, url: str, options: Mapping[str, Any], *, for_probes: bool = False) -> Any:
    address = urlsplit(url)
    store_options = dict(parse_qsl(address.query))
    if address.username or address.password or any(_SECRET_NAME_PATTERN.search(name) for name in store_options):
        raise Invalid("the address of a blob store holds a credential", "use the environment or point at it in options")
    store_options |= {
        name: _resolve_credential(name, value) for name, value in options.items() if name != "client_options"
    }
    client: dict[str, Any] = {**_TIMEOUT_OPTIONS, **options.get("client_options", {})}
    client |= {name: _parse_flag(store_options.pop(name)) for name in _CLIENT_OPTIONS if name in store_options}
    retry = _RETRY_OPTIONS
    if for_probes:
        client, retry = {**client, **_PROBE_TIMEOUT_OPTIONS}, _PROBE_RETRY_OPTIONS
    plain_url = f"{scheme}://{address.netloc}{address.path}"
    try:
        return _STORE_CLASSES[scheme].from_url(
            plain_url, config=store_options, client_options=client, retry_config=retry
        )
    except UnknownConfigurationKeyError:
        known_options = "endpoint, region, allow_http, virtual_hosted_style_request and what else obstore knows"
        raise Invalid(
            f"the address of a {scheme} blob store has an option that does not exist", known_options
        ) from None
    except _CLIENT_ERRORS:
        raise Invalid(
            f"the address of a {scheme} blob store cannot be read", "for example s3://bucket/prefix"
        ) from None


def _get_server_url(scheme: str, url: str, options: Mapping[str, Any]) -> str:
    """The address of the store's server; only its answer's Date header is read."""
    address = urlsplit(url)
    query_options = dict(parse_qsl(address.query))
    defaults = {
        "s3": f"https://s3.{query_options.get('region', 'us-east-1')}.amazonaws.com",
        "gs": "https://storage.googleapis.com",
        "az": f"https://{address.netloc}.blob.core.windows.net",
    }
    return str(options.get("endpoint", "")) or query_options.get("endpoint", "") or defaults.get(scheme, "")


def _get_ca_file(url: str) -> str:
    """The file of authorities of the store's server, where the address names one."""
    return dict(parse_qsl(urlsplit(url).query)).get("root_certificate", "")


def _resolve_credential(name: str, value: Any) -> Any:
    if _SECRET_NAME_PATTERN.search(name) and isinstance(value, str) and value.startswith(("env:", "file:")):
        return read_credential(value, name)
    return value


def _parse_flag(value: Any) -> Any:
    return {"true": True, "false": False}.get(str(value).lower(), value)


def _require_valid_key(key: str) -> str:
    if not _KEY_PATTERN.fullmatch(key):
        raise Invalid("this is no key of an object", "keys are made by the platform: letters, digits, - and _")
    return key
