"""Online features in Redis or Valkey: `redis://host:6379/0`, `rediss://…` with TLS. Replicas share it.

A get is one MGET over all spaces: one round trip. A put goes through a script that compares ranks inside the server, so
rows that arrive late, twice or from several writers converge. Redis is memory: what it loses (a restart without its
append-only file) is filled again by the platform, which sees that the space's mark is gone.

Keys: PREFIX{bucket}, 16 bytes of the space's hash, a dot, the key. A bucket is one of 4,096 by the key's checksum. What
stands before the dot is the name of a set: the keys of that space in that bucket. A cluster spreads buckets, and keeps
a row and its set together, so one row a call (`chunk=1`) would work there.
"""

import contextlib
import hashlib
import itertools
import os
import re
import ssl
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.retry import Retry

from falaj.core.credential import credential
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.online import after as after_moment
from falaj.core.online import checked, space_bytes

BUCKETS = 4096
_PAGE = 64
_PIPELINE = 16
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)
_OPTIONS = {"prefix", "password", "ca", "wait_s", "chunk", "connections"}
_EXAMPLE = "for example rediss://falaj@redis.example:6379/0?password=env:REDIS_PASSWORD"
# Strings in Lua compare by the server's locale, so ranks are compared as numbers of 32 bits.
_PUT = """
local s1, s2 = struct.unpack('>I4I4', ARGV[1])
local head = tonumber(ARGV[2])
local several = string.rep('\\255', 8)
local function due(row)
  local a, b = struct.unpack('>I4I4', row)
  return a < s1 or (a == s1 and b < s2)
end
local function above(x, y)
  for at = 1, 17, 8 do
    local a, b = struct.unpack('>I4I4', x, at)
    local c, d = struct.unpack('>I4I4', y, at)
    if a ~= c then return a > c end
    if b ~= d then return b > d end
  end
  return false
end
local function rows_in(cell)
  if string.sub(cell, 1, 8) ~= several then return {cell} end
  local rows, at = {}, 9
  while at <= #cell do
    local size = struct.unpack('<I4', cell, at)
    rows[#rows + 1] = string.sub(cell, at + 4, at + 3 + size)
    at = at + 4 + size
  end
  return rows
end
local function settled(cell, row)
  local best, rows, now = {}, {}, nil
  local all = rows_in(cell)
  all[#all + 1] = row
  for _, one in ipairs(all) do
    local moment = string.sub(one, 1, 8)
    if not best[moment] or above(one, best[moment]) then best[moment] = one end
  end
  for _, one in pairs(best) do
    if not due(one) then rows[#rows + 1] = one
    elseif not now or above(one, now) then now = one end
  end
  if now then rows[#rows + 1] = now end
  if #rows == 1 then return rows[1] end
  table.sort(rows, function(x, y) return above(y, x) end)
  for i, one in ipairs(rows) do rows[i] = struct.pack('<I4', #one) .. one end
  return several .. table.concat(rows)
end
local changed = 0
for i, key in ipairs(KEYS) do
  local row, cell = ARGV[i + 2], redis.call('GET', key)
  local merged = cell
  if not cell then
    merged = row
    redis.call('SADD', string.sub(key, 1, head), string.sub(key, head + 2))
  elseif string.sub(cell, 1, 8) ~= several and due(cell) and due(row) then
    if above(row, cell) then merged = row end
  else
    merged = settled(cell, row)
  end
  if merged ~= cell then
    redis.call('SET', key, merged)
    changed = changed + 1
  end
end
return changed
"""
_SHA = hashlib.sha1(_PUT.encode(), usedforsecurity=False).hexdigest()


class RedisOnline:
    """Options, also in the address: `prefix`, `password` (env:NAME or file:/path), `ca`, `wait_s`, `chunk`
    (rows a script call), `connections` (at most, for this process).
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        asked = _asked(url, options or {})
        prefix = asked.get("prefix", "falaj")
        if not _PREFIX.fullmatch(prefix):
            raise Invalid("this is no prefix for keys in Redis", "use letters, digits, and _ . : -")
        self._heads = [f"{prefix}{{{bucket:03x}}}".encode() for bucket in range(BUCKETS)]
        self._prefix = prefix.encode()
        self._chunk = max(1, int(asked.get("chunk", "200")))
        self._pool: Any = _pool(url, asked)
        self._client: Any = redis.Redis(connection_pool=self._pool)
        # Half of the connections stay with readers: asking the pool for one and giving it back takes half as long as a
        # read. Those that wait for the next are a stack, since adding to a list and taking from it needs no lock.
        self._idle: list[Any] = []
        self._ours: set[Any] = set()
        self._choosing, self._owner = Lock(), os.getpid()
        self._kept = False
        self._closed = False

    def put(self, space: str, rows: Sequence[tuple[bytes, bytes]], now_us: int) -> int:
        """Take rows in, newest wins; in the server's memory when it returns."""
        self._check_kept()
        hashed = space_bytes(space)
        pairs = [(self._place(hashed, key), checked(row)) for key, row in rows]
        head = len(self._heads[0]) + len(hashed)
        calls = [
            (len(part), *(key for key, _ in part), after_moment(now_us), head, *(row for _, row in part))
            for part in _pieces(pairs, self._chunk)
        ]
        return sum(self._run(part) for part in _pieces(calls, _PIPELINE))

    def get(self, asks: Sequence[tuple[str, Sequence[bytes]]]) -> list[list[bytes | None]]:
        """What lies under keys of several spaces, in one command."""
        heads, crc = self._heads, zlib.crc32
        places = [
            heads[crc(key) & 0xFFF] + hashed + key
            for hashed, keys in ((space_bytes(space) + b".", keys) for space, keys in asks)
            for key in keys
        ]
        found = self._mget(places) if places else []
        if len(asks) == 1:
            return [found]
        ends = list(itertools.accumulate(len(keys) for _, keys in asks))
        return [found[end - len(keys) : end] for end, (_, keys) in zip(ends, asks, strict=True)]

    def scan(self, space: str, after: bytes | None = None, limit: int = 10_000) -> list[tuple[bytes, bytes]]:
        """(key, cell) behind a key (none: from the beginning; the empty one is a key), by bucket and then by key."""
        hashed, found = space_bytes(space), list[tuple[bytes, bytes]]()
        first = zlib.crc32(after or b"") & 0xFFF
        for start in range(first, BUCKETS, _PAGE):
            buckets = range(start, min(start + _PAGE, BUCKETS))
            sets = self._pipeline([("SMEMBERS", self._heads[bucket] + hashed) for bucket in buckets])
            keys = [
                key
                for bucket, members in zip(buckets, sets, strict=True)
                for key in sorted(members)
                if after is None or bucket > first or key > after
            ]
            for part in _pieces(keys, limit):
                cells = self.get([(space, part)])[0]
                found += [(key, cell) for key, cell in zip(part, cells, strict=True) if cell is not None]
                if len(found) >= limit:
                    return found[:limit]
        return found

    def delete(self, space: str, keys: Sequence[bytes]) -> int:
        """Remove keys; gives how many were there."""
        hashed, gone = space_bytes(space), 0
        head = len(self._heads[0]) + len(hashed)
        for part in _pieces([self._place(hashed, key) for key in keys], 500):
            pairs = [(("UNLINK", place), ("SREM", place[:head], place[head + 1 :])) for place in part]
            # At once, or a put between the two would stand and not be named in its set.
            gone += sum(self._pipeline([command for pair in pairs for command in pair], atomic=True)[::2])
        return gone

    def drop(self, space: str) -> None:
        """Remove a space, its mark first: what is left of a drop that was killed passes for nothing filled."""
        self._ask("UNLINK", self._mark(space))
        hashed = space_bytes(space)
        for start in range(0, BUCKETS, _PAGE):
            names = [head + hashed for head in self._heads[start : start + _PAGE]]
            sets = self._pipeline([("SMEMBERS", name) for name in names])
            places = [name + b"." + key for name, members in zip(names, sets, strict=True) for key in members]
            for part in _pieces(places, 1000):
                self._pipeline([("UNLINK", place) for place in part])
            self._pipeline([("UNLINK", name) for name, members in zip(names, sets, strict=True) if members])

    def note(self, space: str, value: bytes | None = None) -> bytes | None:
        """Read, or write, the mark of a space."""
        if value is None:
            return cast(bytes | None, self._ask("GET", self._mark(space)))
        self._ask("SET", self._mark(space), value)
        return value

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        self._idle.clear()
        self._pool.disconnect()

    def _place(self, hashed: bytes, key: bytes) -> bytes:
        return self._heads[zlib.crc32(key) & 0xFFF] + hashed + b"." + key

    def _mark(self, space: str) -> bytes:
        return self._prefix + b":mark:" + space_bytes(space)

    def _run(self, calls: Sequence[tuple[Any, ...]]) -> int:
        commands = [("EVALSHA", _SHA, *call) for call in calls]
        with contextlib.suppress(NoScriptError):
            return sum(self._pipeline(commands))
        self._ask("SCRIPT LOAD", _PUT)
        # Once more is no harm: a row that stands already changes nothing.
        return sum(self._pipeline(commands))

    def _check_kept(self) -> None:
        """Refuse a server that throws rows away by itself: whoever reads could not tell that from nothing known."""
        if self._kept:
            return
        policy = str(self._ask("INFO", "memory").get("maxmemory_policy", ""))
        if policy.startswith("allkeys"):
            raise Invalid(
                "this Redis throws away keys when it is full, so features would go missing in silence",
                "set its maxmemory-policy to noeviction",
            )
        self._kept = True

    def _mget(self, places: Sequence[bytes]) -> list[bytes | None]:
        """The command is written out here: going through the client's layers takes as long as the server does."""
        words = b"".join([b"$%d\r\n%b\r\n" % (len(place), place) for place in places])
        command = [b"*%d\r\n$4\r\nMGET\r\n%b" % (len(places) + 1, words)]
        with self._clear_errors():
            connection = self._connection()

            def exchange() -> Any:
                connection.send_packed_command(command)
                return connection.read_response()

            try:
                found = connection.retry.call_with_retry(exchange, lambda _: connection.disconnect())
            except BaseException:
                self._ours.discard(connection)
                self._pool.release(connection)  # which looks, before it lends it again, whether something is left in it
                raise
            (self._idle.append if connection in self._ours else self._pool.release)(connection)
            return cast(list[bytes | None], found)

    def _connection(self) -> Any:
        """One for a read."""
        if self._owner != os.getpid():  # what a parent opened is not ours
            self._idle, self._ours, self._choosing, self._owner = [], set(), Lock(), os.getpid()
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        connection = self._pool.get_connection()
        with self._choosing:
            if len(self._ours) < self._pool.max_connections // 2:
                self._ours.add(connection)
        return connection

    def _ask(self, *command: Any) -> Any:
        with self._clear_errors():
            return self._client.execute_command(*command)

    def _pipeline(self, commands: Iterable[tuple[Any, ...]], *, atomic: bool = False) -> list[Any]:
        with self._clear_errors(), self._client.pipeline(transaction=atomic) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return cast(list[Any], pipeline.execute())

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        if self._closed:
            raise Unavailable("the online store is closed", "open it again")
        try:
            yield
        except NoScriptError:
            raise
        except (RedisError, OSError) as error:
            # Their words may name hosts, users and keys.
            raise _failure(error) from None


def _asked(url: str, options: Mapping[str, Any]) -> dict[str, str]:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        raise Invalid("this is no address of a Redis server", _EXAMPLE)
    if parts.password is not None:
        raise Invalid("the address of the Redis server holds a password", f"point at it, {_EXAMPLE}")
    asked = dict(parse_qsl(parts.query)) | {name: str(value) for name, value in options.items()}
    if unknown := set(asked) - _OPTIONS:
        raise Invalid(f"Redis has no option {min(unknown)[:40]!r} here", f"there are: {', '.join(sorted(_OPTIONS))}")
    return asked


def _pool(url: str, asked: Mapping[str, str]) -> redis.ConnectionPool:
    parts = urlsplit(url)
    wait_s = float(asked.get("wait_s", "5"))
    more: dict[str, Any] = {}
    if parts.scheme == "rediss":
        more = {"connection_class": redis.SSLConnection, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
        more |= {"ssl_min_version": ssl.TLSVersion.TLSv1_2} | ({"ssl_ca_certs": asked["ca"]} if "ca" in asked else {})
    if "password" in asked:
        more |= {"username": parts.username, "password": credential(asked["password"], "password")}
    try:
        more |= {"port": parts.port or 6379, "db": int(parts.path.strip("/") or 0)}
    except ValueError:
        raise Invalid("the port or the number of the Redis database is no number", _EXAMPLE) from None
    made: Any = redis.BlockingConnectionPool
    return cast(
        redis.ConnectionPool,
        made(
            host=parts.hostname,
            max_connections=int(asked.get("connections", "32")),
            timeout=wait_s,
            socket_timeout=wait_s,
            socket_connect_timeout=wait_s,
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.02), 3),
            **more,
        ),
    )


def _failure(error: BaseException) -> FalajError:
    if isinstance(error, (AuthenticationError, NoPermissionError)):
        return Unavailable("Redis refuses our credentials", "check who the platform is there and what it may do")
    if isinstance(error, OutOfMemoryError):
        return Unavailable("Redis has no memory left; not all was written", "give it more, call again")
    if isinstance(error, ReadOnlyError):
        return Unavailable("this Redis is a copy that takes no writes", "name the primary in the address")
    if isinstance(error, BusyLoadingError):
        return Unavailable("Redis is still loading what it kept", "call again in a moment")
    return Unavailable("Redis does not answer as it should", "try again; then check its address and health")


def _pieces(many: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (many[start : start + size] for start in range(0, len(many), size))
