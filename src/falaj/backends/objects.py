"""Blobs in an object store: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://account/container`, `memory:`.

How to reach it stands in the address (`s3://bucket/falaj?endpoint=https://s3.example&region=me-central-1`); who we are
never does: credentials come from the environment, from the machine's role, or from options that point at them
(`env:NAME`, `file:/path`). What the store or its client says in an error may name accounts and hosts, so none of it is
passed on.

An object appears whole or not at all, also when it went up in pieces. A multipart upload of a process that died cannot
be taken up again through obstore and stays hidden in the bucket until its lifecycle rule ends it; so nothing larger
than a part of a blob is ever one object (store/blobs.py), and a repeated put sends only the parts that are missing.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore.exceptions import (
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from falaj.core.credential import credential
from falaj.core.errors import FalajError, Invalid, NotFound, Unavailable
from falaj.core.ports import Stat, open_url

_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}(/[A-Za-z0-9_-]{1,128}){0,3}", re.ASCII)
_SECRET = re.compile(r"key|secret|token|sas|password|credential", re.IGNORECASE)
_STORES: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_CLIENT = ("allow_http", "proxy_url", "connect_timeout", "timeout", "read_timeout", "root_certificate")
_PIECE = 8 << 20
_RETRY: Mapping[str, Any] = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_TROUBLE = (BaseError, OSError, ValueError)


class ObjectBlobs:
    """Objects of one bucket or container, under one prefix."""

    requests = 4
    """How many requests at once keep a line to a far store busy."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        scheme = open_url(url)[0]
        self._store: Any = MemoryStore() if scheme == "memory" else _connect(scheme, url, options)

    def put(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Write all or nothing, durable on return; gives the size."""
        path, count = _checked(key), _Counted(chunks)
        first = list(count.upto(_PIECE))
        try:
            if count.ended:
                obstore.put(self._store, path, b"".join(first), use_multipart=False)
            else:
                self._put_pieces(path, first, count)
        except FileNotFoundError:
            raise Unavailable(
                "the bucket of the blob store does not exist", "make it, or correct its address"
            ) from None
        except _TROUBLE as error:
            raise count.failed or _failure(error) from None
        return count.size

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to `stop`; fewer where the object is shorter."""
        path = _checked(key)
        if stop is not None and stop <= start:
            return
        span: Any = {"offset": start} if stop is None else (start, stop)
        try:
            for piece in obstore.get(self._store, path, options={"range": span}).stream(min_chunk_size=1 << 20):
                yield bytes(piece)
        except _TROUBLE as error:
            # A range that begins behind the end is an error here and nothing in a folder; make them alike.
            if not isinstance(error, FileNotFoundError) and self._ends_before(key, start):
                return
            raise _failure(error) from None

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
        try:
            for page in obstore.list(self._store, folder or None):
                for item in page:
                    if item["path"].startswith(prefix):
                        yield Stat(item["path"], item["size"])
        except _TROUBLE as error:
            raise _failure(error) from None

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is removed already."""
        try:
            obstore.delete(self._store, _checked(key))
        except FileNotFoundError:
            return
        except _TROUBLE as error:
            raise _failure(error) from None

    def close(self) -> None:
        """Connections close by themselves when idle."""

    def _put_pieces(self, path: str, first: Iterable[bytes], rest: "_Counted") -> None:
        pieces = rest.joined(first, _PIECE)
        obstore.put(self._store, path, pieces, use_multipart=True, chunk_size=_PIECE, max_concurrency=4)

    def _size(self, path: str) -> int:
        try:
            return int(obstore.head(self._store, path)["size"])
        except _TROUBLE as error:
            raise _failure(error) from None

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


def _connect(scheme: str, url: str, options: Mapping[str, Any]) -> Any:
    address = urlsplit(url)
    wishes = dict(parse_qsl(address.query))
    if address.username or address.password or any(_SECRET.search(name) for name in wishes):
        raise Invalid("the address of a blob store holds a credential", "use the environment or point at it in options")
    wishes |= {name: _pointed(name, value) for name, value in options.items() if name != "client_options"}
    client: dict[str, Any] = {"connect_timeout": "5s", "timeout": "120s", **options.get("client_options", {})}
    client |= {name: _flag(wishes.pop(name)) for name in _CLIENT if name in wishes}
    bare = f"{scheme}://{address.netloc}{address.path}"
    try:
        return _STORES[scheme].from_url(bare, config=wishes, client_options=client, retry_config=_RETRY)
    except UnknownConfigurationKeyError:
        known = "endpoint, region, allow_http, virtual_hosted_style_request and what else obstore knows"
        raise Invalid(f"the address of a {scheme} blob store has an option that does not exist", known) from None
    except _TROUBLE:
        raise Invalid(
            f"the address of a {scheme} blob store cannot be read", "for example s3://bucket/prefix"
        ) from None


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


def _failure(error: BaseException) -> FalajError:
    """What went wrong, in our words: theirs may name hosts, accounts and keys."""
    if isinstance(error, FileNotFoundError):
        return NotFound("the blob store has no such object", "run: falaj store scrub")
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return Unavailable(
            "the blob store refuses our credentials", "check who the platform is there and what it may do"
        )
    return Unavailable("the blob store does not answer as it should", "try again; then check its address and health")
