"""The order of a key's rows, and the cell that holds them in an online store.

A row begins with its rank: event, created and sequence number as 24 bytes that sort as the numbers do. A cell is what
lies under a key: nearly always one row, as it is. Where rows of later moments wait for their time it is a mark that no
row can begin with, and then each row behind its length, in order. The script in backends/redis.py does the same.
"""

import hashlib
import hmac
import re
import struct
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from falaj.core.errors import Corrupt, Invalid

RANK_BYTES = 24
SEVERAL = b"\xff" * 8
"""What a cell of several rows begins with. As a moment it would be the last one that int64 holds: a row of that one,
which never comes, is written as of the moment before it."""
LAST_US = (1 << 63) - 2
_RANK, _MOMENT, _LENGTH = struct.Struct(">QQQ"), struct.Struct(">Q"), struct.Struct("<I")
_FLIP = 1 << 63
READER_PASSWORD = "FALAJ_PARAM_ONLINE_PASSWORD"  # noqa: S105  # nosec B105 - the name of a variable
"""The variable in which a replica keeps the password of its tenant's reader."""
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


def reader_password(endpoint_key: str) -> str:
    """What replicas of an endpoint sign in with at a store that has users; they derive it from the endpoint's key."""
    return hmac.new(endpoint_key.encode(), b"falaj online reader", hashlib.sha256).hexdigest()


def tenant_address(address: str, tenant: str) -> str:
    """The address of one tenant's online store: a folder (LMDB) or a key prefix (Redis) that no other tenant shares.

    An operator may write `{tenant}` into the address to name a server, database or user for each tenant.
    """
    if not _TENANT.fullmatch(tenant):
        raise Invalid(f"tenant {tenant[:80]!r}: expected letters, digits, '.', '_' and '-'", "check the tenant's name")
    scheme, _, place = address.partition(":")
    if scheme in ("redis", "rediss"):
        parts = urlsplit(address)
        options = dict(parse_qsl(parts.query))
        prefix = options.get("prefix", "falaj")
        options["prefix"] = prefix if "{tenant}" in prefix else f"{prefix}:{{tenant}}:"
        address = urlunsplit(parts._replace(query=urlencode(options, safe=":/{}")))
    elif scheme == "lmdb" and place and "{tenant}" not in place:
        address = f"lmdb:{place.rstrip('/')}/{{tenant}}"
    if "{tenant}" in address:
        return address.replace("{tenant}", tenant)
    raise Invalid(
        f"online store {scheme[:40]!r}: expected an address that differs by tenant", "write {tenant} into the address"
    )


@lru_cache(4096)
def space_bytes(space: str) -> bytes:
    """The name of a space as stores write it before each key: short, and of one length."""
    return hashlib.blake2b(space.encode(), digest_size=16).digest()


def pack_rank(event_us: int, created_us: int, seq: int) -> bytes:
    """The first bytes of a row."""
    try:
        return _RANK.pack(event_us + _FLIP - (event_us == LAST_US + 1), created_us + _FLIP, seq + _FLIP)
    except struct.error:
        raise Invalid("a moment or a sequence number is beyond 64 bits", "count microseconds since 1970") from None


def rank_of(row: bytes) -> tuple[int, int, int]:
    """(event, created, seq) of a row."""
    event, created, seq = _RANK.unpack_from(checked(row))
    return event - _FLIP, created - _FLIP, seq - _FLIP


def moment_of(row: bytes) -> int:
    """When what the row says was true, in microseconds since 1970."""
    return int(_MOMENT.unpack_from(row)[0]) - _FLIP


def after(moment_us: int) -> bytes:
    """The least bytes above every row of this moment: a row (or a cell of one) is not later exactly if it is below."""
    return _MOMENT.pack(min(max(moment_us + _FLIP + 1, 0), (1 << 64) - 1))


def checked(row: bytes) -> bytes:
    """A row that has a rank, or Corrupt."""
    if len(row) < RANK_BYTES or row.startswith(SEVERAL):
        raise Corrupt("a row of the online store has no rank", "fill the store anew")
    return row


def merge(cell: bytes | None, row: bytes, now_us: int) -> bytes:
    """The cell with this row taken in; the very same object where nothing changes."""
    return fold(cell, row, after(now_us))


def fold(cell: bytes | None, row: bytes, soon: bytes) -> bytes:
    """`merge` for many rows: `soon` is `after(now_us)`."""
    if cell is None:
        return row
    # Both alone and due; a cell of several is above every moment.
    if cell < soon and row < soon:
        return row if row[:RANK_BYTES] > cell[:RANK_BYTES] else cell
    best: dict[bytes, bytes] = {}
    for one in (*rows_in(cell), row):
        held = best.get(one[:8])
        if held is None or one[:RANK_BYTES] > held[:RANK_BYTES]:
            best[one[:8]] = one
    moments = sorted(best)
    num_due = sum(moment < soon for moment in moments)
    merged = pack_cell([best[moment] for moment in moments[max(num_due - 1, 0) :]])
    return cell if merged == cell else merged


def pack_cell(rows: list[bytes]) -> bytes:
    """A cell of rows in their order."""
    if len(rows) == 1:
        return rows[0]
    return SEVERAL + b"".join(_LENGTH.pack(len(row)) + row for row in rows)


def rows_in(cell: bytes) -> list[bytes]:
    """The rows of a cell in their order."""
    if not cell.startswith(SEVERAL):
        return [checked(cell)]
    rows, at = [], len(SEVERAL)
    while at < len(cell):
        size = int.from_bytes(cell[at : at + 4], "little")
        row = cell[at + 4 : at + 4 + size]
        if len(row) != size or at + 4 > len(cell):
            raise Corrupt("a cell of the online store is cut short", "fill the store anew")
        rows.append(checked(row))
        at += 4 + size
    if not rows:
        raise Corrupt("a cell of the online store holds no row", "fill the store anew")
    return rows


def due(cell: bytes, now_us: int) -> bytes | None:
    """The row that stands now, if any does."""
    soon = after(now_us)
    return max((row for row in rows_in(cell) if row < soon), key=lambda row: row[:RANK_BYTES], default=None)
