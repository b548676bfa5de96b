"""Where keys of Redis lie: all on one server, or spread over the servers of a cluster by the slots of their names."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, Protocol, cast

import hiredis
import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, RedisError, TryAgainError
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as TooLate

from falaj.backends.redis_wire import Lines, packed_mget

Pairs = Sequence[tuple[bytes, Any]]
MakePool = Callable[..., Any]
_SEEDS = 16
_GONE = (NoConnection, TooLate)
_ELSEWHERE = (AskError, TryAgainError, ClusterDownError, *_GONE)  # that it moved is a kind of ASK
_COMMANDS = 4096


class Reach(Protocol):
    """What the store asks of servers."""

    def ask(self, *command: Any) -> Any:
        """One command about one key."""
        ...

    def everywhere(self, *command: Any) -> list[Any]:
        """One command to every server that takes writes."""
        ...

    def pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Commands about one key (or one group) each; their replies in order."""
        ...

    def mget(self, places: Sequence[bytes]) -> list[bytes | None]:
        """What lies under keys, in one round trip."""
        ...

    def groups(self, pairs: Pairs, most: int) -> Iterator[Pairs]:
        """Parts that one call of a script may touch."""
        ...

    def seeds(self) -> list[int]:
        """Buckets that tell whether a server lost what it had; none where the mark of a space does."""
        ...

    def probe(self) -> None:
        """Return once a server answers; raise the client's error where none does."""
        ...

    def close(self) -> None: ...


def pieces(many: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Cut into parts of at most `size`."""
    return (many[start : start + size] for start in range(0, len(many), size))


class OneServer:
    """Everything on one server."""

    def __init__(self, pool: Any) -> None:
        self._client: Any = redis.Redis(connection_pool=pool)
        self._lines = Lines(pool)

    def ask(self, *command: Any) -> Any:
        return self._client.execute_command(*command)

    def everywhere(self, *command: Any) -> list[Any]:
        return [self.ask(*command)]

    def pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        return _piped(self._client, commands)

    def mget(self, places: Sequence[bytes]) -> list[bytes | None]:
        return cast(list[bytes | None], self._lines.exchange(packed_mget(places)))

    def groups(self, pairs: Pairs, most: int) -> Iterator[Pairs]:
        return pieces(pairs, most)

    def seeds(self) -> list[int]:
        return []

    def probe(self) -> None:
        self._client.ping()

    def close(self) -> None:
        self._lines.close()


class Cluster:
    """Buckets spread over servers. `heads` are their names: what stands before each key of a bucket."""

    def __init__(self, nodes: Sequence[tuple[str, int]], pool: MakePool, heads: Sequence[bytes], more: Any) -> None:
        self._nodes, self._make, self._more = nodes, pool, more
        self._slots = [key_slot(head) for head in heads]
        self._number = slice(heads[0].index(b"{") + 1, heads[0].index(b"}"))
        self._made: Any = None
        self._making = Lock()
        self._lines: dict[str, Lines] = {}

    def ask(self, *command: Any) -> Any:
        return self._client.execute_command(*command)

    def everywhere(self, *command: Any) -> list[Any]:
        # On each by itself: the client gives one reply where only one server was asked, else a dict of them.
        return [node.redis_connection.execute_command(*command) for node in self._client.get_primaries()]

    def pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(commands), _COMMANDS):
            part = commands[start : start + _COMMANDS]
            replies += self._answers(part, [hiredis.pack_command(command) for command in part])
        return replies

    def mget(self, places: Sequence[bytes]) -> list[bytes | None]:
        """One MGET for each bucket, since a command must stay in its slot."""
        buckets: dict[bytes, list[int]] = {}
        for at, place in enumerate(places):
            buckets.setdefault(place[self._number], []).append(at)
        asked = [[places[at] for at in every] for every in buckets.values()]
        replies = self._answers([("MGET", *every) for every in asked], [packed_mget(every) for every in asked])
        found: list[bytes | None] = [None] * len(places)
        for every, cells in zip(buckets.values(), replies, strict=True):
            for at, cell in zip(every, cells, strict=True):
                found[at] = cell
        return found

    def groups(self, pairs: Pairs, most: int) -> Iterator[Pairs]:
        buckets: dict[bytes, list[tuple[bytes, Any]]] = {}
        for pair in pairs:
            buckets.setdefault(pair[0][self._number], []).append(pair)
        for every in buckets.values():
            yield from pieces(every, most)

    def seeds(self) -> list[int]:
        """Some buckets of each server."""
        by_server: dict[str, list[int]] = {}
        for bucket, slot in enumerate(self._slots):
            by_server.setdefault(self._server(slot).name, []).append(bucket)
        return [bucket for every in by_server.values() for bucket in every[:: max(1, len(every) // _SEEDS)]]

    def probe(self) -> None:
        """One server that answers is enough: the client finds its way around those that do not."""
        error: RedisError = NoConnection()
        for node in self._client.get_primaries():
            try:
                node.redis_connection.ping()
            except RedisError as failure:
                error = failure
            else:
                return
        raise error

    def close(self) -> None:
        for lines in self._lines.values():
            lines.close()
        if self._made is not None:
            self._made.close()

    @property
    def _client(self) -> Any:
        """Made when it is first needed, since making it asks the servers who has what."""
        if self._made is None:
            with self._making:
                if self._made is None:
                    made: Any = ClusterNode
                    nodes = [made(*node) for node in self._nodes]
                    self._made = RedisCluster(startup_nodes=nodes, **self._more)
        return self._made

    def _server(self, slot: int) -> Any:
        manager = self._client.nodes_manager
        # Its own table, first: asking the manager for each of ten keys takes longer than a server takes for all.
        return (manager.slots_cache.get(slot) or [None])[0] or manager.get_node_from_slot(slot)

    def _slot(self, command: tuple[Any, ...]) -> int:
        key: bytes = command[3 if command[0] == "EVALSHA" else 1]
        opened = key[self._number.start - 1 : self._number.start] == b"{"
        return self._slots[int(key[self._number], 16)] if opened else key_slot(key)

    def _answers(self, commands: Sequence[tuple[Any, ...]], packed: Sequence[bytes]) -> list[Any]:
        """The replies in order; what a server no longer has, or that does not answer, is asked for where it is now."""
        replies = self._at_once([self._server(self._slot(command)) for command in commands], packed)
        again = [at for at, reply in enumerate(replies) if isinstance(reply, _ELSEWHERE)]
        for at, reply in zip(again, _piped(self._client, [commands[at] for at in again]), strict=True):
            replies[at] = reply
        if failed := next((reply for reply in replies if isinstance(reply, RedisError)), None):
            raise failed
        return replies

    def _at_once(self, nodes: Sequence[Any], packed: Sequence[bytes]) -> list[Any]:
        """Ask every server, then hear every server: all work at the same time. Errors are replies like others."""
        servers: dict[str, list[int]] = {}
        for at, node in enumerate(nodes):
            servers.setdefault(node.name, []).append(at)
        replies: list[Any] = [NoConnection()] * len(packed)
        taken: list[tuple[Lines, Any, list[int]]] = []
        try:
            for name in sorted(servers):  # in one order, so that no two readers wait for each other's lines
                every, lines = servers[name], self._lines_to(nodes[servers[name][0]])
                with contextlib.suppress(*_GONE):
                    taken.append((lines, lines.take(), every))
                    taken[-1][1].ask(b"".join([packed[at] for at in every]))
            for _, line, every in taken:
                with contextlib.suppress(*_GONE):
                    for at in every:
                        replies[at] = line.heard()
        except BaseException:
            for lines, line, _ in taken:
                lines.lose(line)
            raise
        for lines, line, _ in taken:
            lines.give(line)
        return replies

    def _lines_to(self, node: Any) -> Lines:
        if node.name not in self._lines:
            self._lines.setdefault(node.name, Lines(self._make(host=node.host, port=node.port)))
        return self._lines[node.name]


def _piped(client: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    replies: list[Any] = []
    for start in range(0, len(commands), _COMMANDS):
        with client.pipeline(transaction=False) as pipeline:
            for command in commands[start : start + _COMMANDS]:
                pipeline.execute_command(*command)
            replies += pipeline.execute()
    return replies
