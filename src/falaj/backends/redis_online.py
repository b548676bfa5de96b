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

from falaj.backends.redis_readers import admit_reader, dismiss_reader, make_reader_address
from falaj.backends.redis_servers import RedisClusterServers, RedisServers, SingleServer, split_into_pieces
from falaj.backends.redis_wire import SocketWire, TlsWire, Wire
from falaj.core.circuit_breaker import CircuitBreaker, NoAnswerError
from falaj.core.credential import read_credential
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.online_rows import hash_space_name, require_rank
from falaj.core.online_rows import pack_moment_bound as after_moment

BUCKET_COUNT = 4096
_PAGE_BUCKETS = 64
_MAX_PIPELINE_ROWS = 3200
_PREFIX_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,200}", re.ASCII)
_KNOWN_OPTIONS = {"prefix", "password", "ca", "wait_s", "chunk", "connections", "cluster", "socket", "readonly"}
_SENTINEL_SUFFIX = b"*"
_ADDRESS_EXAMPLE = "for example rediss://falaj@redis.example:6379/0?password=env:REDIS_PASSWORD"
# Strings in Lua compare by the server's locale, so ranks are compared as numbers of 32 bits.
_PUT_SCRIPT = """
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
_DELETE_SCRIPT = """
local head, gone = tonumber(ARGV[1]), 0
for _, key in ipairs(KEYS) do
  gone = gone + redis.call('UNLINK', key)
  redis.call('SREM', string.sub(key, 1, head), string.sub(key, head + 2))
end
return gone
"""
_SHA1_BY_SCRIPT = {
    script: hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest() for script in (_PUT_SCRIPT, _DELETE_SCRIPT)
}


class RedisOnlineStore:
    """Options, also in the address: `prefix`, `password` (env:NAME or file:/path), `ca`, `wait_s`, `chunk`
    (rows a script call), `connections` (at most, for this process and each server), `cluster` (yes), `socket` (a path),
    `readonly` (never writes; its user needs no right to).
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        option_values = _parse_options(url, options or {})
        prefix = option_values.get("prefix", "falaj")
        if not _PREFIX_PATTERN.fullmatch(prefix):
            raise Invalid("this is no prefix for keys in Redis", "use letters, digits, and _ . : -")
        self._bucket_prefixes = [f"{prefix}{{{bucket:03x}}}".encode() for bucket in range(BUCKET_COUNT)]
        self._prefix, self._url = prefix.encode(), url
        self._rows_per_call = max(1, int(option_values.get("chunk", "200")))
        self._servers = _create_servers(url, option_values, self._bucket_prefixes)
        self._probe_servers = _create_servers(
            url, {**option_values, "wait_s": "1", "connections": "2"}, self._bucket_prefixes, retries=0
        )
        self._breaker = CircuitBreaker("Redis", self.probe)
        self._has_checked_eviction = False
        self._sentinel_spaces: set[str] = set()
        self._is_closed = False

    def put(self, space: str, rows: Sequence[tuple[bytes, bytes]], now_us: int) -> int:
        """Take rows in, newest wins; in the server's memory when it returns."""
        self._require_no_eviction()
        space_hash = hash_space_name(space)
        stored_rows = [(self._to_stored_key(space_hash, key), require_rank(row)) for key, row in rows]
        prefix_length = len(self._bucket_prefixes[0]) + len(space_hash)
        calls = [
            (
                len(call_rows),
                *(key for key, _ in call_rows),
                after_moment(now_us),
                prefix_length,
                *(row for _, row in call_rows),
            )
            for call_rows in self._servers.groups(stored_rows, self._rows_per_call)
        ]
        return self._run_script(_PUT_SCRIPT, calls)

    def get(self, requests: Sequence[tuple[str, Sequence[bytes]]]) -> list[list[bytes | None]]:
        """What lies under keys of several spaces, in one command."""
        if self._is_closed:
            raise _closed_error()
        self._breaker.check()
        bucket_prefixes, crc = self._bucket_prefixes, zlib.crc32
        stored_keys = [
            bucket_prefixes[crc(key) & 0xFFF] + space_prefix + key
            for space_prefix, keys in ((hash_space_name(space) + b".", keys) for space, keys in requests)
            for key in keys
        ]
        try:
            entries = self._servers.mget(stored_keys) if stored_keys else []
        except (RedisError, OSError) as error:
            failure = _translate_error(error)
            if isinstance(failure, NoAnswerError):
                self._breaker.record_failure()
            raise failure from None
        self._breaker.record_answer()
        if len(requests) == 1:
            return [entries]
        ends = list(itertools.accumulate(len(keys) for _, keys in requests))
        return [entries[end - len(keys) : end] for end, (_, keys) in zip(ends, requests, strict=True)]

    def scan(self, space: str, after: bytes | None = None, limit: int = 10_000) -> list[tuple[bytes, bytes]]:
        """(key, cell) behind a key (none: from the beginning; the empty one is a key), by bucket and then by key."""
        space_hash, entries = hash_space_name(space), list[tuple[bytes, bytes]]()
        first_bucket = zlib.crc32(after or b"") & 0xFFF
        for start in range(first_bucket, BUCKET_COUNT, _PAGE_BUCKETS):
            buckets = range(start, min(start + _PAGE_BUCKETS, BUCKET_COUNT))
            sets = self._run_pipeline([("SMEMBERS", self._bucket_prefixes[bucket] + space_hash) for bucket in buckets])
            keys = [
                key
                for bucket, members in zip(buckets, sets, strict=True)
                for key in sorted(members)
                if after is None or bucket > first_bucket or key > after
            ]
            for page_keys in split_into_pieces(keys, limit):
                page_entries = self.get([(space, page_keys)])[0]
                entries += [
                    (key, entry) for key, entry in zip(page_keys, page_entries, strict=True) if entry is not None
                ]
                if len(entries) >= limit:
                    return entries[:limit]
        return entries

    def delete(self, space: str, keys: Sequence[bytes]) -> int:
        """Remove keys; gives how many were there."""
        space_hash = hash_space_name(space)
        prefix_length = len(self._bucket_prefixes[0]) + len(space_hash)
        stored_keys = [(self._to_stored_key(space_hash, key), None) for key in keys]
        calls = [
            (len(call_keys), *(stored_key for stored_key, _ in call_keys), prefix_length)
            for call_keys in self._servers.groups(stored_keys, self._rows_per_call)
        ]
        return self._run_script(_DELETE_SCRIPT, calls)

    def drop(self, space: str) -> None:
        """Remove a space, its mark first: what is left of a drop that was killed passes for nothing filled."""
        self._run_command("UNLINK", self._mark_key(space))
        space_hash, has_sentinels = hash_space_name(space), bool(self._list_sentinel_buckets())
        self._sentinel_spaces.discard(space)
        for start in range(0, BUCKET_COUNT, _PAGE_BUCKETS):
            set_names = [
                bucket_prefix + space_hash for bucket_prefix in self._bucket_prefixes[start : start + _PAGE_BUCKETS]
            ]
            sets = self._run_pipeline([("SMEMBERS", name) for name in set_names])
            members_by_set = [(name, list(members)) for name, members in zip(set_names, sets, strict=True) if members]
            # The set goes last: what is left of a drop that was killed is still named.
            delete_commands = [
                command
                for name, members in members_by_set
                for command in (
                    *(
                        ("UNLINK", *(name + b"." + key for key in page_keys))
                        for page_keys in split_into_pieces(members, 1000)
                    ),
                    ("UNLINK", name),
                )
            ]
            self._run_pipeline(
                delete_commands + [("UNLINK", name + _SENTINEL_SUFFIX) for name in set_names if has_sentinels]
            )

    def note(self, space: str, value: bytes | None = None) -> bytes | None:
        """Read, or write, the mark of a space."""
        sentinel_reads = [
            ("GET", self._bucket_prefixes[bucket] + hash_space_name(space) + _SENTINEL_SUFFIX)
            for bucket in self._list_sentinel_buckets()
        ]
        if value is not None:
            # Where it was read before, seeds were there before the rows; to sow now would hide what was lost since.
            if (
                sentinel_reads
                and space not in self._sentinel_spaces
                and self._run_command("GET", self._mark_key(space)) is None
            ):
                self._write_sentinels(space)
            self._run_command("SET", self._mark_key(space), value)
            return value
        mark, *sentinel_values = self._run_pipeline([("GET", self._mark_key(space)), *sentinel_reads])
        if sentinel_reads and (mark is None or None in sentinel_values):
            self._write_sentinels(space)
            return None
        return cast(bytes | None, mark)

    def admit_reader(self, password_digest: str) -> str:
        """The address at which a user of Redis who can only read this prefix signs in; creates that user."""
        with self._translate_errors():
            return make_reader_address(self._url, admit_reader(self._servers, self._prefix.decode(), password_digest))

    def dismiss_reader(self, password_digest: str) -> None:
        """Remove the password; connections that signed in with it stay until they end."""
        with self._translate_errors():
            dismiss_reader(self._servers, self._prefix.decode(), password_digest)

    def probe(self) -> None:
        """Ask the server, or any server of a cluster, for a second at most; raise the reason it cannot be used."""
        try:
            self._probe_servers.probe()
        except (RedisError, OSError) as error:
            failure = _translate_error(error)
            (self._breaker.record_failure if isinstance(failure, NoAnswerError) else self._breaker.record_answer)()
            raise failure from None
        self._breaker.record_answer()

    def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        self._breaker.close()
        self._servers.close()
        self._probe_servers.close()

    def _to_stored_key(self, space_hash: bytes, key: bytes) -> bytes:
        return self._bucket_prefixes[zlib.crc32(key) & 0xFFF] + space_hash + b"." + key

    def _mark_key(self, space: str) -> bytes:
        return self._prefix + b":mark:" + hash_space_name(space)

    def _list_sentinel_buckets(self) -> list[int]:
        with self._translate_errors():
            return self._servers.seeds()

    def _write_sentinels(self, space: str) -> None:
        """Before a space is filled (again): what a server loses from now on is seen. Its mark goes first."""
        self._run_command("UNLINK", self._mark_key(space))
        self._sentinel_spaces.add(space)
        self._run_pipeline(
            [
                ("SET", bucket_prefix + hash_space_name(space) + _SENTINEL_SUFFIX, b"")
                for bucket_prefix in self._bucket_prefixes
            ]
        )

    def _run_script(self, script: str, calls: Sequence[tuple[Any, ...]]) -> int:
        return sum(self._run_script_calls(script, script_calls) for script_calls in _group_calls(calls))

    def _run_script_calls(self, script: str, calls: Sequence[tuple[Any, ...]]) -> int:
        commands = [("EVALSHA", _SHA1_BY_SCRIPT[script], *call) for call in calls]
        with contextlib.suppress(NoScriptError):
            return sum(self._run_pipeline(commands))
        with self._translate_errors():
            self._servers.everywhere("SCRIPT LOAD", script)
        # Once more is no harm: a row that stands already changes nothing.
        return sum(self._run_pipeline(commands))

    def _require_no_eviction(self) -> None:
        """Refuse a server that throws rows away by itself: whoever reads could not tell that from nothing known."""
        if self._has_checked_eviction:
            return
        with self._translate_errors():
            memory_infos = self._servers.everywhere("INFO", "memory")
        if any(str(memory_info.get("maxmemory_policy", "")).startswith("allkeys") for memory_info in memory_infos):
            raise Invalid(
                "this Redis throws away keys when it is full, so features would go missing in silence",
                "set its maxmemory-policy to noeviction",
            )
        self._has_checked_eviction = True

    def _run_command(self, *command: Any) -> Any:
        with self._translate_errors():
            return self._servers.ask(*command)

    def _run_pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        with self._translate_errors():
            return self._servers.pipeline(commands)

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        if self._is_closed:
            raise _closed_error()
        with self._breaker.guard():
            try:
                yield
            except NoScriptError:
                raise
            except (RedisError, OSError) as error:
                # Their words may name hosts, users and keys.
                raise _translate_error(error) from None


def _parse_options(url: str, options: Mapping[str, Any]) -> dict[str, str]:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or not parts.netloc:
        raise Invalid("this is no address of a Redis server", _ADDRESS_EXAMPLE)
    if parts.password is not None:
        raise Invalid("the address of the Redis server holds a password", f"point at it, {_ADDRESS_EXAMPLE}")
    option_values = dict(parse_qsl(parts.query)) | {name: str(value) for name, value in options.items()}
    if unknown := set(option_values) - _KNOWN_OPTIONS:
        raise Invalid(
            f"Redis has no option {min(unknown)[:40]!r} here", f"there are: {', '.join(sorted(_KNOWN_OPTIONS))}"
        )
    return option_values


def _create_servers(
    url: str, option_values: Mapping[str, str], bucket_prefixes: Sequence[bytes], retries: int = 3
) -> RedisServers:
    """What speaks to the server, or to the servers."""
    parts = urlsplit(url)
    nodes = _parse_nodes(parts.netloc.rpartition("@")[2])
    wait_s = float(option_values.get("wait_s", "5"))
    # What the second version of the protocol does not have is of no use here, and its replies are what they look like.
    connection_options: dict[str, Any] = {"socket_timeout": wait_s, "socket_connect_timeout": wait_s, "protocol": 2}
    tls_options: dict[str, Any] = {}
    if parts.scheme == "rediss":
        tls_options = {
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        }
        tls_options |= {"ssl_ca_certs": option_values["ca"]} if "ca" in option_values else {}
    if "password" in option_values:
        user = unquote(parts.username) if parts.username else None
        connection_options |= {"username": user, "password": read_credential(option_values["password"], "password")}
    pool_options = {"max_connections": int(option_values.get("connections", "32"))}
    connection_class: Any = TlsWire if tls_options else Wire

    def make_pool(**address: Any) -> Any:
        pool_class: Any = redis.BlockingConnectionPool
        retry = Retry(ExponentialBackoff(cap=0.5, base=0.02), retries)
        return pool_class(**address, **pool_options, timeout=wait_s, retry=retry, **connection_options, **tls_options)

    if option_values.get("cluster", "no") == "yes":
        if parts.path.strip("/0") or "socket" in option_values:
            raise Invalid("a Redis cluster has the database 0 only, and no socket", _ADDRESS_EXAMPLE)
        create_pool = partial(make_pool, connection_class=connection_class)
        return RedisClusterServers(
            nodes,
            create_pool,
            bucket_prefixes,
            {**connection_options, **pool_options, **tls_options, **({"ssl": True} if tls_options else {})},
        )
    if len(nodes) != 1 or ("socket" in option_values and tls_options):
        raise Invalid("several servers are a cluster (?cluster=yes), and a socket has no TLS", _ADDRESS_EXAMPLE)
    try:
        database_number = int(parts.path.strip("/") or 0)
    except ValueError:
        raise Invalid("the number of the Redis database is no number", _ADDRESS_EXAMPLE) from None
    if "socket" in option_values:
        return SingleServer(make_pool(path=option_values["socket"], connection_class=SocketWire, db=database_number))
    return SingleServer(
        make_pool(host=nodes[0][0], port=nodes[0][1], connection_class=connection_class, db=database_number)
    )


def _parse_nodes(addresses: str) -> list[tuple[str, int]]:
    """Hosts and ports, with commas between them."""
    try:
        parsed_addresses = [urlsplit(f"//{parsed_address}") for parsed_address in addresses.split(",")]
        nodes = [(parsed_address.hostname or "", parsed_address.port or 6379) for parsed_address in parsed_addresses]
    except ValueError:
        raise Invalid("the port of the Redis server is no number", _ADDRESS_EXAMPLE) from None
    if not all(host for host, _ in nodes):
        raise Invalid("this is no address of a Redis server", _ADDRESS_EXAMPLE)
    return nodes


def _closed_error() -> FalajError:
    return Unavailable("the online store is closed", "open it again")


def _translate_error(error: BaseException) -> FalajError:
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
        return NoAnswerError("Redis does not answer", "try again; then check its address and health")
    return Unavailable("Redis does not answer as it should", "try again; then check its address and health")


def _group_calls(calls: Sequence[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Calls of a script that go together: each begins with how many keys it has."""
    call_group: list[tuple[Any, ...]] = []
    size = 0
    for call in calls:
        call_group.append(call)
        size += call[0]
        if size >= _MAX_PIPELINE_ROWS:
            yield call_group
            call_group, size = [], 0
    if call_group:
        yield call_group
