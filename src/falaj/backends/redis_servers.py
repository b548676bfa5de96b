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

KeyValues = Sequence[tuple[bytes, Any]]
CreatePool = Callable[..., Any]
_SENTINELS_PER_SERVER = 16
_CONNECTION_ERRORS = (NoConnection, TooLate)
_REDIRECT_ERRORS = (AskError, TryAgainError, ClusterDownError, *_CONNECTION_ERRORS)  # that it moved is a kind of ASK
_MAX_PIPELINE_COMMANDS = 4096


class RedisServers(Protocol):
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

    def mget(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What lies under keys, in one round trip."""
        ...

    def groups(self, pairs: KeyValues, max_keys: int) -> Iterator[KeyValues]:
        """Parts that one call of a script may touch."""
        ...

    def seeds(self) -> list[int]:
        """Buckets that tell whether a server lost what it had; none where the mark of a space does."""
        ...

    def probe(self) -> None:
        """Return once a server answers; raise the client's error where none does."""
        ...

    def close(self) -> None: ...


def split_into_pieces(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Cut into parts of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))


class SingleServer:
    """Everything on one server."""

    def __init__(self, pool: Any) -> None:
        self._client: Any = redis.Redis(connection_pool=pool)
        self._connections = Lines(pool)

    def ask(self, *command: Any) -> Any:
        return self._client.execute_command(*command)

    def everywhere(self, *command: Any) -> list[Any]:
        return [self.ask(*command)]

    def pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        return _run_client_pipeline(self._client, commands)

    def mget(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return cast(list[bytes | None], self._connections.exchange(packed_mget(keys)))

    def groups(self, pairs: KeyValues, max_keys: int) -> Iterator[KeyValues]:
        return split_into_pieces(pairs, max_keys)

    def seeds(self) -> list[int]:
        return []

    def probe(self) -> None:
        self._client.ping()

    def close(self) -> None:
        self._connections.close()


class RedisClusterServers:
    """Buckets spread over servers. `heads` are their names: what stands before each key of a bucket."""

    def __init__(
        self,
        nodes: Sequence[tuple[str, int]],
        create_pool: CreatePool,
        bucket_prefixes: Sequence[bytes],
        client_options: Any,
    ) -> None:
        self._nodes, self._create_pool, self._client_options = nodes, create_pool, client_options
        self._slot_by_bucket = [key_slot(head) for head in bucket_prefixes]
        self._bucket_number_slice = slice(bucket_prefixes[0].index(b"{") + 1, bucket_prefixes[0].index(b"}"))
        self._cluster_client: Any = None
        self._client_lock = Lock()
        self._connections_by_server: dict[str, Lines] = {}

    def ask(self, *command: Any) -> Any:
        return self._client.execute_command(*command)

    def everywhere(self, *command: Any) -> list[Any]:
        # On each by itself: the client gives one reply where only one server was asked, else a dict of them.
        return [node.redis_connection.execute_command(*command) for node in self._client.get_primaries()]

    def pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(commands), _MAX_PIPELINE_COMMANDS):
            page = commands[start : start + _MAX_PIPELINE_COMMANDS]
            replies += self._run_packed(page, [hiredis.pack_command(command) for command in page])
        return replies

    def mget(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """One MGET for each bucket, since a command must stay in its slot."""
        buckets: dict[bytes, list[int]] = {}
        for key_index, key in enumerate(keys):
            buckets.setdefault(key[self._bucket_number_slice], []).append(key_index)
        keys_by_bucket = [[keys[key_index] for key_index in key_indexes] for key_indexes in buckets.values()]
        replies = self._run_packed(
            [("MGET", *key_indexes) for key_indexes in keys_by_bucket],
            [packed_mget(key_indexes) for key_indexes in keys_by_bucket],
        )
        entries: list[bytes | None] = [None] * len(keys)
        for key_indexes, bucket_entries in zip(buckets.values(), replies, strict=True):
            for key_index, entry in zip(key_indexes, bucket_entries, strict=True):
                entries[key_index] = entry
        return entries

    def groups(self, pairs: KeyValues, max_keys: int) -> Iterator[KeyValues]:
        pairs_by_bucket: dict[bytes, list[tuple[bytes, Any]]] = {}
        for pair in pairs:
            pairs_by_bucket.setdefault(pair[0][self._bucket_number_slice], []).append(pair)
        for bucket_pairs in pairs_by_bucket.values():
            yield from split_into_pieces(bucket_pairs, max_keys)

    def seeds(self) -> list[int]:
        """Some buckets of each server."""
        buckets_by_server: dict[str, list[int]] = {}
        for bucket, slot in enumerate(self._slot_by_bucket):
            buckets_by_server.setdefault(self._get_server(slot).name, []).append(bucket)
        return [
            bucket
            for server_buckets in buckets_by_server.values()
            for bucket in server_buckets[:: max(1, len(server_buckets) // _SENTINELS_PER_SERVER)]
        ]

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
        for connections in self._connections_by_server.values():
            connections.close()
        if self._cluster_client is not None:
            self._cluster_client.close()

    @property
    def _client(self) -> Any:
        """Made when it is first needed, since making it asks the servers who has what."""
        if self._cluster_client is None:
            with self._client_lock:
                if self._cluster_client is None:
                    node_class: Any = ClusterNode
                    nodes = [node_class(*node) for node in self._nodes]
                    self._cluster_client = RedisCluster(startup_nodes=nodes, **self._client_options)
        return self._cluster_client

    def _get_server(self, slot: int) -> Any:
        manager = self._client.nodes_manager
        # Its own table, first: asking the manager for each of ten keys takes longer than a server takes for all.
        return (manager.slots_cache.get(slot) or [None])[0] or manager.get_node_from_slot(slot)

    def _get_slot(self, command: tuple[Any, ...]) -> int:
        key: bytes = command[3 if command[0] == "EVALSHA" else 1]
        has_bucket_prefix = key[self._bucket_number_slice.start - 1 : self._bucket_number_slice.start] == b"{"
        return self._slot_by_bucket[int(key[self._bucket_number_slice], 16)] if has_bucket_prefix else key_slot(key)

    def _run_packed(self, commands: Sequence[tuple[Any, ...]], packed_commands: Sequence[bytes]) -> list[Any]:
        """The replies in order; what a server no longer has, or that does not answer, is asked for where it is now."""
        replies = self._run_in_parallel(
            [self._get_server(self._get_slot(command)) for command in commands], packed_commands
        )
        retry_indexes = [
            command_index for command_index, reply in enumerate(replies) if isinstance(reply, _REDIRECT_ERRORS)
        ]
        for command_index, reply in zip(
            retry_indexes,
            _run_client_pipeline(self._client, [commands[command_index] for command_index in retry_indexes]),
            strict=True,
        ):
            replies[command_index] = reply
        if failed := next((reply for reply in replies if isinstance(reply, RedisError)), None):
            raise failed
        return replies

    def _run_in_parallel(self, nodes: Sequence[Any], packed_commands: Sequence[bytes]) -> list[Any]:
        """Ask every server, then hear every server: all work at the same time. Errors are replies like others."""
        indexes_by_server: dict[str, list[int]] = {}
        for command_index, node in enumerate(nodes):
            indexes_by_server.setdefault(node.name, []).append(command_index)
        replies: list[Any] = [NoConnection()] * len(packed_commands)
        taken_connections: list[tuple[Lines, Any, list[int]]] = []
        try:
            for name in sorted(indexes_by_server):  # in one order, so that no two readers wait for each other's lines
                command_indexes, connections = (
                    indexes_by_server[name],
                    self._get_connections(nodes[indexes_by_server[name][0]]),
                )
                with contextlib.suppress(*_CONNECTION_ERRORS):
                    taken_connections.append((connections, connections.take(), command_indexes))
                    taken_connections[-1][1].ask(
                        b"".join([packed_commands[command_index] for command_index in command_indexes])
                    )
            for _, connection, command_indexes in taken_connections:
                with contextlib.suppress(*_CONNECTION_ERRORS):
                    for command_index in command_indexes:
                        replies[command_index] = connection.heard()
        except BaseException:
            for connections, connection, _ in taken_connections:
                connections.lose(connection)
            raise
        for connections, connection, _ in taken_connections:
            connections.give(connection)
        return replies

    def _get_connections(self, node: Any) -> Lines:
        if node.name not in self._connections_by_server:
            self._connections_by_server.setdefault(node.name, Lines(self._create_pool(host=node.host, port=node.port)))
        return self._connections_by_server[node.name]


def _run_client_pipeline(client: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    replies: list[Any] = []
    for start in range(0, len(commands), _MAX_PIPELINE_COMMANDS):
        with client.pipeline(transaction=False) as pipeline:
            for command in commands[start : start + _MAX_PIPELINE_COMMANDS]:
                pipeline.execute_command(*command)
            replies += pipeline.execute()
    return replies
