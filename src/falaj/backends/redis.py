"""Online features in Redis or Valkey: `redis://host:6379/0`, `rediss://…` with TLS, `?cluster=yes`. Replicas share it.

A get is one MGET over all spaces (in a cluster, to all servers at once): one round trip. A put goes through a script
that compares ranks inside the server, so rows that arrive late, twice or from several writers converge. Redis is
memory: what it loses (a restart without its append-only file) is filled again by the platform, which sees that the
space's mark is gone.

Keys: PREFIX{bucket}, 16 bytes of the space's hash, a dot, the key. A bucket is one of 4,096 by the key's checksum. What
stands before the dot is the name of a set: the keys of that space in that bucket. A cluster spreads buckets, and keeps
a row and its set together.

One server of a cluster may come back empty while the mark of a space lies on another. So in a cluster every bucket has
a seed of the space before the first row comes in, and a space whose seeds are not all there passes for not filled.
"""

import contextlib
import hashlib
import itertools
import re
import ssl
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as TooLate
from redis.retry import Retry

from falaj.backends.redis_reach import Cluster, OneServer, Reach, pieces
from falaj.backends.redis_readers import admit_reader, dismiss_reader, reader_address
from falaj.backends.redis_wire import SocketWire, TlsWire, Wire
from falaj.core.breaker import CircuitBreaker, NoAnswer
from falaj.core.credential import credential
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.online import after as after_moment
from falaj.core.online import checked, space_bytes

BUCKETS = 4096
_PAGE = 64
_PIPELINE_ROWS = 3200
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,200}", re.ASCII)
_OPTIONS = {"prefix", "password", "ca", "wait_s", "chunk", "connections", "cluster", "socket", "readonly"}
_SEED = b"*"
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
# At once, or a put between the two would stand and not be named in its set.
_DELETE = """
local head, gone = tonumber(ARGV[1]), 0
for _, key in ipairs(KEYS) do
  gone = gone + redis.call('UNLINK', key)
  redis.call('SREM', string.sub(key, 1, head), string.sub(key, head + 2))
end
return gone
"""
_NAMES = {script: hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest() for script in (_PUT, _DELETE)}


class RedisOnline:
    """Options, also in the address: `prefix`, `password` (env:NAME or file:/path), `ca`, `wait_s`, `chunk`
    (rows a script call), `connections` (at most, for this process and each server), `cluster` (yes), `socket` (a path),
    `readonly` (never writes; its user needs no right to).
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        asked = _asked(url, options or {})
        prefix = asked.get("prefix", "falaj")
        if not _PREFIX.fullmatch(prefix):
            raise Invalid("this is no prefix for keys in Redis", "use letters, digits, and _ . : -")
        self._heads = [f"{prefix}{{{bucket:03x}}}".encode() for bucket in range(BUCKETS)]
        self._prefix, self._url = prefix.encode(), url
        self._chunk = max(1, int(asked.get("chunk", "200")))
        self._reach = _reach(url, asked, self._heads)
        self._probing = _reach(url, {**asked, "wait_s": "1", "connections": "2"}, self._heads, retries=0)
        self._breaker = CircuitBreaker("Redis", self.probe)
        self._kept = False
        self._sown: set[str] = set()
        self._closed = False

    def put(self, space: str, rows: Sequence[tuple[bytes, bytes]], now_us: int) -> int:
        """Take rows in, newest wins; in the server's memory when it returns."""
        self._check_kept()
        hashed = space_bytes(space)
        pairs = [(self._place(hashed, key), checked(row)) for key, row in rows]
        head = len(self._heads[0]) + len(hashed)
        calls = [
            (len(part), *(key for key, _ in part), after_moment(now_us), head, *(row for _, row in part))
            for part in self._reach.groups(pairs, self._chunk)
        ]
        return self._run(_PUT, calls)

    def get(self, asks: Sequence[tuple[str, Sequence[bytes]]]) -> list[list[bytes | None]]:
        """What lies under keys of several spaces, in one command."""
        if self._closed:
            raise _closed()
        self._breaker.check()
        heads, crc = self._heads, zlib.crc32
        places = [
            heads[crc(key) & 0xFFF] + hashed + key
            for hashed, keys in ((space_bytes(space) + b".", keys) for space, keys in asks)
            for key in keys
        ]
        try:
            found = self._reach.mget(places) if places else []
        except (RedisError, OSError) as error:
            failure = _failure(error)
            if isinstance(failure, NoAnswer):
                self._breaker.record_failure()
            raise failure from None
        self._breaker.record_answer()
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
            for part in pieces(keys, limit):
                cells = self.get([(space, part)])[0]
                found += [(key, cell) for key, cell in zip(part, cells, strict=True) if cell is not None]
                if len(found) >= limit:
                    return found[:limit]
        return found

    def delete(self, space: str, keys: Sequence[bytes]) -> int:
        """Remove keys; gives how many were there."""
        hashed = space_bytes(space)
        head = len(self._heads[0]) + len(hashed)
        pairs = [(self._place(hashed, key), None) for key in keys]
        calls = [(len(part), *(place for place, _ in part), head) for part in self._reach.groups(pairs, self._chunk)]
        return self._run(_DELETE, calls)

    def drop(self, space: str) -> None:
        """Remove a space, its mark first: what is left of a drop that was killed passes for nothing filled."""
        self._ask("UNLINK", self._mark(space))
        hashed, sown = space_bytes(space), bool(self._seeds())
        self._sown.discard(space)
        for start in range(0, BUCKETS, _PAGE):
            names = [head + hashed for head in self._heads[start : start + _PAGE]]
            sets = self._pipeline([("SMEMBERS", name) for name in names])
            held = [(name, list(members)) for name, members in zip(names, sets, strict=True) if members]
            # The set goes last: what is left of a drop that was killed is still named.
            gone = [
                command
                for name, members in held
                for command in (
                    *(("UNLINK", *(name + b"." + key for key in part)) for part in pieces(members, 1000)),
                    ("UNLINK", name),
                )
            ]
            self._pipeline(gone + [("UNLINK", name + _SEED) for name in names if sown])

    def note(self, space: str, value: bytes | None = None) -> bytes | None:
        """Read, or write, the mark of a space."""
        seeds = [("GET", self._heads[bucket] + space_bytes(space) + _SEED) for bucket in self._seeds()]
        if value is not None:
            # Where it was read before, seeds were there before the rows; to sow now would hide what was lost since.
            if seeds and space not in self._sown and self._ask("GET", self._mark(space)) is None:
                self._sow(space)
            self._ask("SET", self._mark(space), value)
            return value
        mark, *found = self._pipeline([("GET", self._mark(space)), *seeds])
        if seeds and (mark is None or None in found):
            self._sow(space)
            return None
        return cast(bytes | None, mark)

    def admit_reader(self, password_digest: str) -> str:
        """The address at which a user of Redis who can only read this prefix signs in; creates that user."""
        with self._clear_errors():
            return reader_address(self._url, admit_reader(self._reach, self._prefix.decode(), password_digest))

    def dismiss_reader(self, password_digest: str) -> None:
        """Remove the password; connections that signed in with it stay until they end."""
        with self._clear_errors():
            dismiss_reader(self._reach, self._prefix.decode(), password_digest)

    def probe(self) -> None:
        """Ask the server, or any server of a cluster, for a second at most; raise the reason it cannot be used."""
        try:
            self._probing.probe()
        except (RedisError, OSError) as error:
            failure = _failure(error)
            (self._breaker.record_failure if isinstance(failure, NoAnswer) else self._breaker.record_answer)()
            raise failure from None
        self._breaker.record_answer()

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        self._breaker.close()
        self._reach.close()
        self._probing.close()

    def _place(self, hashed: bytes, key: bytes) -> bytes:
        return self._heads[zlib.crc32(key) & 0xFFF] + hashed + b"." + key

    def _mark(self, space: str) -> bytes:
        return self._prefix + b":mark:" + space_bytes(space)

    def _seeds(self) -> list[int]:
        with self._clear_errors():
            return self._reach.seeds()

    def _sow(self, space: str) -> None:
        """Before a space is filled (again): what a server loses from now on is seen. Its mark goes first."""
        self._ask("UNLINK", self._mark(space))
        self._sown.add(space)
        self._pipeline([("SET", head + space_bytes(space) + _SEED, b"") for head in self._heads])

    def _run(self, script: str, calls: Sequence[tuple[Any, ...]]) -> int:
        return sum(self._run_some(script, part) for part in _loads(calls))

    def _run_some(self, script: str, calls: Sequence[tuple[Any, ...]]) -> int:
        commands = [("EVALSHA", _NAMES[script], *call) for call in calls]
        with contextlib.suppress(NoScriptError):
            return sum(self._pipeline(commands))
        with self._clear_errors():
            self._reach.everywhere("SCRIPT LOAD", script)
        # Once more is no harm: a row that stands already changes nothing.
        return sum(self._pipeline(commands))

    def _check_kept(self) -> None:
        """Refuse a server that throws rows away by itself: whoever reads could not tell that from nothing known."""
        if self._kept:
            return
        with self._clear_errors():
            told = self._reach.everywhere("INFO", "memory")
        if any(str(one.get("maxmemory_policy", "")).startswith("allkeys") for one in told):
            raise Invalid(
                "this Redis throws away keys when it is full, so features would go missing in silence",
                "set its maxmemory-policy to noeviction",
            )
        self._kept = True

    def _ask(self, *command: Any) -> Any:
        with self._clear_errors():
            return self._reach.ask(*command)

    def _pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        with self._clear_errors():
            return self._reach.pipeline(commands)

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        if self._closed:
            raise _closed()
        with self._breaker.guard():
            try:
                yield
            except NoScriptError:
                raise
            except (RedisError, OSError) as error:
                # Their words may name hosts, users and keys.
                raise _failure(error) from None


def _asked(url: str, options: Mapping[str, Any]) -> dict[str, str]:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or not parts.netloc:
        raise Invalid("this is no address of a Redis server", _EXAMPLE)
    if parts.password is not None:
        raise Invalid("the address of the Redis server holds a password", f"point at it, {_EXAMPLE}")
    asked = dict(parse_qsl(parts.query)) | {name: str(value) for name, value in options.items()}
    if unknown := set(asked) - _OPTIONS:
        raise Invalid(f"Redis has no option {min(unknown)[:40]!r} here", f"there are: {', '.join(sorted(_OPTIONS))}")
    return asked


def _reach(url: str, asked: Mapping[str, str], heads: Sequence[bytes], retries: int = 3) -> Reach:
    """What speaks to the server, or to the servers."""
    parts = urlsplit(url)
    nodes = _nodes(parts.netloc.rpartition("@")[2])
    wait_s = float(asked.get("wait_s", "5"))
    # What the second version of the protocol does not have is of no use here, and its replies are what they look like.
    more: dict[str, Any] = {"socket_timeout": wait_s, "socket_connect_timeout": wait_s, "protocol": 2}
    tls: dict[str, Any] = {}
    if parts.scheme == "rediss":
        tls = {"ssl_cert_reqs": "required", "ssl_check_hostname": True, "ssl_min_version": ssl.TLSVersion.TLSv1_2}
        tls |= {"ssl_ca_certs": asked["ca"]} if "ca" in asked else {}
    if "password" in asked:
        user = unquote(parts.username) if parts.username else None
        more |= {"username": user, "password": credential(asked["password"], "password")}
    most = {"max_connections": int(asked.get("connections", "32"))}
    kind: Any = TlsWire if tls else Wire

    def pool(**where: Any) -> Any:
        made: Any = redis.BlockingConnectionPool
        retry = Retry(ExponentialBackoff(cap=0.5, base=0.02), retries)
        return made(**where, **most, timeout=wait_s, retry=retry, **more, **tls)

    if asked.get("cluster", "no") == "yes":
        if parts.path.strip("/0") or "socket" in asked:
            raise Invalid("a Redis cluster has the database 0 only, and no socket", _EXAMPLE)
        spread = partial(pool, connection_class=kind)
        return Cluster(nodes, spread, heads, {**more, **most, **tls, **({"ssl": True} if tls else {})})
    if len(nodes) != 1 or ("socket" in asked and tls):
        raise Invalid("several servers are a cluster (?cluster=yes), and a socket has no TLS", _EXAMPLE)
    try:
        number = int(parts.path.strip("/") or 0)
    except ValueError:
        raise Invalid("the number of the Redis database is no number", _EXAMPLE) from None
    if "socket" in asked:
        return OneServer(pool(path=asked["socket"], connection_class=SocketWire, db=number))
    return OneServer(pool(host=nodes[0][0], port=nodes[0][1], connection_class=kind, db=number))


def _nodes(said: str) -> list[tuple[str, int]]:
    """Hosts and ports, with commas between them."""
    try:
        found = [urlsplit(f"//{one}") for one in said.split(",")]
        nodes = [(one.hostname or "", one.port or 6379) for one in found]
    except ValueError:
        raise Invalid("the port of the Redis server is no number", _EXAMPLE) from None
    if not all(host for host, _ in nodes):
        raise Invalid("this is no address of a Redis server", _EXAMPLE)
    return nodes


def _closed() -> FalajError:
    return Unavailable("the online store is closed", "open it again")


def _failure(error: BaseException) -> FalajError:
    if str(error).startswith(("MOVED", "CROSSSLOT")) or isinstance(error, (ClusterCrossSlotError, MovedError)):
        return Unavailable("this Redis is one server of a cluster", "say so in the address: ?cluster=yes")
    if isinstance(error, ClusterDownError):
        return Unavailable("a part of the Redis cluster is down", "try again; then check its health")
    if isinstance(error, (AuthenticationError, NoPermissionError)):
        return Unavailable("Redis refuses our credentials", "check who the platform is there and what it may do")
    if isinstance(error, OutOfMemoryError):
        return Unavailable("Redis has no memory left; not all was written", "give it more, call again")
    if isinstance(error, ReadOnlyError):
        return Unavailable("this Redis is a copy that takes no writes", "name the primary in the address")
    if isinstance(error, BusyLoadingError):
        return Unavailable("Redis is still loading what it kept", "call again in a moment")
    if isinstance(error, (NoConnection, TooLate, OSError)):
        return NoAnswer("Redis does not answer", "try again; then check its address and health")
    return Unavailable("Redis does not answer as it should", "try again; then check its address and health")


def _loads(calls: Sequence[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Calls of a script that go together: each begins with how many keys it has."""
    load: list[tuple[Any, ...]] = []
    size = 0
    for call in calls:
        load.append(call)
        size += call[0]
        if size >= _PIPELINE_ROWS:
            yield load
            load, size = [], 0
    if load:
        yield load
