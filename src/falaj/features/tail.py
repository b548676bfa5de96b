"""The tail of a stream: what was pushed and not yet settled, in sealed blocks on the Series port.

A block is written before the transaction that gives it its numbers: until then nobody reads it, and one that no
transaction names is as if it never came.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from falaj.core.context import Context
from falaj.core.errors import Corrupt
from falaj.core.ports import Block, Series
from falaj.features.stream import Pushed, Stream, stream_ref
from falaj.store.ledger import Ledger

_encode = msgspec.msgpack.Encoder().encode


class Rows(msgspec.Struct, frozen=True, array_like=True):
    """What a block holds: rows that are in (keys, `event`, `created`, features), and those that broke a rule."""

    good: dict[str, list[Any]]
    bad: dict[str, list[Any]] = {}


_decode = msgspec.msgpack.Decoder(Rows).decode


class Tail:
    """Blocks of pushed rows, of any stream."""

    def __init__(self, series: Series, ledger: Ledger) -> None:
        self._series = series
        self._ledger = ledger

    def write(self, ctx: Context, stream: Stream, zone: str, block: str, rows: Rows) -> None:
        """Durable on return; the same block again is left out."""
        self._series.append([self._block(ctx, stream, zone, block, rows)])

    def read(self, ctx: Context, stream: Stream, wanted: Iterable[Pushed]) -> list[tuple[Pushed, Rows]]:
        """Blocks that the stream's record names, with their rows."""
        blocks = {one.id: one for one in self._series.read(ctx.tenant, (_series(stream),), "")}
        found: list[tuple[Pushed, Rows]] = []
        for pushed in wanted:
            block = blocks.get(pushed.id)
            if block is None:
                raise Corrupt(f"pushed rows of {stream.view} are gone", "restore the series from a backup", stream.view)
            found.append((pushed, self._opened(block)))
        return found

    def drop(self, ctx: Context, stream: Stream, ids: Sequence[str]) -> None:
        """Remove blocks that became segments."""
        if ids:
            self._series.swap(ctx.tenant, _series(stream), ids, [])

    def replace(self, ctx: Context, stream: Stream, zone: str, block: str, rows: Rows) -> None:
        """Put other rows in a block's place: the same without a person."""
        self._series.swap(ctx.tenant, _series(stream), [block], [self._block(ctx, stream, zone, block, rows)])

    def _block(self, ctx: Context, stream: Stream, zone: str, block: str, rows: Rows) -> Block:
        count = len(rows.good["event"])
        bare = Block(ctx.tenant, _series(stream), "", block, zone, "", "", count, ctx.now(), b"", False)
        return bare._replace(data=self._seal(bare, _encode(rows)))

    def _seal(self, block: Block, plain: bytes) -> bytes:
        cipher = self._ledger.cipher
        return plain if cipher is None else cipher.seal(block.tenant, block.zone, plain, _aad(block))

    def _opened(self, block: Block) -> Rows:
        cipher = self._ledger.cipher
        plain = block.data if cipher is None else cipher.unseal(block.tenant, block.zone, block.data, _aad(block))
        try:
            return _decode(plain)
        except msgspec.MsgspecError as error:
            raise Corrupt(
                "a block of pushed rows cannot be read", "it may be of a newer release, or damaged"
            ) from error


def _series(stream: Stream) -> str:
    return str(stream_ref(stream.view, stream.rows))


def _aad(block: Block) -> bytes:
    return f"features\0{block.tenant}\0{block.series}\0{block.id}".encode()
