"""The tail of a stream: what was pushed and not yet settled, in sealed blocks on the Series port.

A block is written before the transaction that gives it its numbers: until then nobody reads it, and one that no
transaction names is as if it never came.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from falaj.core.context import CallContext
from falaj.core.errors import CorruptData
from falaj.core.ports import SeriesBlock, SeriesStore
from falaj.features.row_stream import PushedBlock, RowStream, make_stream_ref
from falaj.store.ledger import Ledger

_encode = msgspec.msgpack.Encoder().encode


class BufferedRows(msgspec.Struct, frozen=True, array_like=True):
    """What a block holds: rows that are in (keys, `event`, `created`, features), and those that broke a rule."""

    good: dict[str, list[Any]]
    bad: dict[str, list[Any]] = {}


_decode = msgspec.msgpack.Decoder(BufferedRows).decode


class WriteBuffer:
    """Blocks of pushed rows, of any stream."""

    def __init__(self, series: SeriesStore, ledger: Ledger) -> None:
        self._series_store = series
        self._ledger = ledger

    def write(self, ctx: CallContext, stream: RowStream, zone: str, block: str, rows: BufferedRows) -> None:
        """Durable on return; the same block again is left out."""
        self._series_store.append([self._make_block(ctx, stream, zone, block, rows)])

    def read(
        self, ctx: CallContext, stream: RowStream, pushed_blocks: Iterable[PushedBlock]
    ) -> list[tuple[PushedBlock, BufferedRows]]:
        """Blocks that the stream's record names, with their rows."""
        blocks = {
            stored_block.id: stored_block
            for stored_block in self._series_store.read(ctx.tenant, (_make_series_name(stream),), "")
        }
        block_rows: list[tuple[PushedBlock, BufferedRows]] = []
        for pushed in pushed_blocks:
            block = blocks.get(pushed.id)
            if block is None:
                raise CorruptData(
                    f"pushed rows of {stream.view} are gone", "restore the series from a backup", stream.view
                )
            block_rows.append((pushed, self._decrypt_block(block)))
        return block_rows

    def drop(self, ctx: CallContext, stream: RowStream, ids: Sequence[str]) -> None:
        """Remove blocks that became segments."""
        if ids:
            self._series_store.swap(ctx.tenant, _make_series_name(stream), ids, [])

    def replace(self, ctx: CallContext, stream: RowStream, zone: str, block: str, rows: BufferedRows) -> None:
        """Put other rows in a block's place: the same without a person."""
        self._series_store.swap(
            ctx.tenant, _make_series_name(stream), [block], [self._make_block(ctx, stream, zone, block, rows)]
        )

    def _make_block(
        self, ctx: CallContext, stream: RowStream, zone: str, block: str, rows: BufferedRows
    ) -> SeriesBlock:
        count = len(rows.good["event"])
        empty_block = SeriesBlock(
            ctx.tenant, _make_series_name(stream), "", block, zone, "", "", count, ctx.now(), b"", False
        )
        return empty_block._replace(data=self._encrypt_block(empty_block, _encode(rows)))

    def _encrypt_block(self, block: SeriesBlock, plain: bytes) -> bytes:
        cipher = self._ledger.cipher
        return plain if cipher is None else cipher.seal(block.tenant, block.zone, plain, _make_associated_data(block))

    def _decrypt_block(self, block: SeriesBlock) -> BufferedRows:
        cipher = self._ledger.cipher
        plain = (
            block.data
            if cipher is None
            else cipher.unseal(block.tenant, block.zone, block.data, _make_associated_data(block))
        )
        try:
            return _decode(plain)
        except msgspec.MsgspecError as error:
            raise CorruptData(
                "a block of pushed rows cannot be read", "it may be of a newer release, or damaged"
            ) from error


def _make_series_name(stream: RowStream) -> str:
    return str(make_stream_ref(stream.view, stream.rows))


def _make_associated_data(block: SeriesBlock) -> bytes:
    return f"features\0{block.tenant}\0{block.series}\0{block.id}".encode()
