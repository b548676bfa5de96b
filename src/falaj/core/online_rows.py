"""The order of a key's rows, and the cell that holds them in an online store.

A row begins with its rank: event, created and sequence number as 24 bytes that sort as the numbers do. A cell is what
lies under a key: nearly always one row, as it is. Where rows of later moments wait for their time it is a mark that no
row can begin with, and then each row behind its length, in order. The script in backends/redis_online.py does the same.
"""

import hashlib
import hmac
import re
import struct
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from falaj.core.errors import CorruptData, Invalid

RANK_BYTES = 24
MULTIPLE_ROWS_MARK = b"\xff" * 8
"""What a cell of several rows begins with. As a moment it would be the last one that int64 holds: a row of that one,
which never comes, is written as of the moment before it."""
LAST_MOMENT_US = (1 << 63) - 2
_RANK_FORMAT, _MOMENT_FORMAT, _LENGTH_FORMAT = struct.Struct(">QQQ"), struct.Struct(">Q"), struct.Struct("<I")
_SIGN_OFFSET = 1 << 63
READER_PASSWORD_VARIABLE = "FALAJ_PARAM_ONLINE_PASSWORD"  # noqa: S105  # nosec B105 - the name of a variable
"""The variable in which a replica keeps the password of its tenant's reader."""
_TENANT_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


def derive_reader_password(endpoint_key: str) -> str:
    """What replicas of an endpoint sign in with at a store that has users; they derive it from the endpoint's key."""
    return hmac.new(endpoint_key.encode(), b"falaj online reader", hashlib.sha256).hexdigest()


def build_tenant_address(address: str, tenant: str) -> str:
    """The address of one tenant's online store: a folder (LMDB) or a key prefix (Redis) that no other tenant shares.

    An operator may write `{tenant}` into the address to name a server, database or user for each tenant.
    """
    if not _TENANT_PATTERN.fullmatch(tenant):
        raise Invalid(f"tenant {tenant[:80]!r}: expected letters, digits, '.', '_' and '-'", "check the tenant's name")
    scheme, _, location = address.partition(":")
    if scheme in ("redis", "rediss"):
        parts = urlsplit(address)
        options = dict(parse_qsl(parts.query))
        key_prefix = options.get("prefix", "falaj")
        options["prefix"] = key_prefix if "{tenant}" in key_prefix else f"{key_prefix}:{{tenant}}:"
        address = urlunsplit(parts._replace(query=urlencode(options, safe=":/{}")))
    elif scheme == "lmdb" and location and "{tenant}" not in location:
        address = f"lmdb:{location.rstrip('/')}/{{tenant}}"
    if "{tenant}" in address:
        return address.replace("{tenant}", tenant)
    raise Invalid(
        f"online store {scheme[:40]!r}: expected an address that differs by tenant", "write {tenant} into the address"
    )


@lru_cache(4096)
def hash_space_name(space: str) -> bytes:
    """The name of a space as stores write it before each key: short, and of one length."""
    return hashlib.blake2b(space.encode(), digest_size=16).digest()


def pack_rank(event_us: int, created_us: int, seq: int) -> bytes:
    """The first bytes of a row."""
    try:
        return _RANK_FORMAT.pack(
            event_us + _SIGN_OFFSET - (event_us == LAST_MOMENT_US + 1), created_us + _SIGN_OFFSET, seq + _SIGN_OFFSET
        )
    except struct.error:
        raise Invalid("a moment or a sequence number is beyond 64 bits", "count microseconds since 1970") from None


def unpack_rank(row: bytes) -> tuple[int, int, int]:
    """(event, created, seq) of a row."""
    event_offset, created_offset, seq_offset = _RANK_FORMAT.unpack_from(require_rank(row))
    return event_offset - _SIGN_OFFSET, created_offset - _SIGN_OFFSET, seq_offset - _SIGN_OFFSET


def unpack_moment(row: bytes) -> int:
    """When what the row says was true, in microseconds since 1970."""
    return int(_MOMENT_FORMAT.unpack_from(row)[0]) - _SIGN_OFFSET


def pack_moment_bound(moment_us: int) -> bytes:
    """The least bytes above every row of this moment: a row (or a cell of one) is not later exactly if it is below."""
    return _MOMENT_FORMAT.pack(min(max(moment_us + _SIGN_OFFSET + 1, 0), (1 << 64) - 1))


def require_rank(row: bytes) -> bytes:
    """A row that has a rank, or Corrupt."""
    if len(row) < RANK_BYTES or row.startswith(MULTIPLE_ROWS_MARK):
        raise CorruptData("a row of the online store has no rank", "fill the store anew")
    return row


def merge_row(entry: bytes | None, row: bytes, now_us: int) -> bytes:
    """The cell with this row taken in; the very same object where nothing changes."""
    return merge_row_before(entry, row, pack_moment_bound(now_us))


def merge_row_before(entry: bytes | None, row: bytes, moment_bound: bytes) -> bytes:
    """`merge` for many rows: `moment_bound` is `after(now_us)`."""
    if entry is None:
        return row
    # Both alone and due; a cell of several is above every moment.
    if entry < moment_bound and row < moment_bound:
        return row if row[:RANK_BYTES] > entry[:RANK_BYTES] else entry
    newest_rows: dict[bytes, bytes] = {}
    for candidate in (*unpack_entry(entry), row):
        newest = newest_rows.get(candidate[:8])
        if newest is None or candidate[:RANK_BYTES] > newest[:RANK_BYTES]:
            newest_rows[candidate[:8]] = candidate
    moments = sorted(newest_rows)
    due_count = sum(moment < moment_bound for moment in moments)
    merged = pack_entry([newest_rows[moment] for moment in moments[max(due_count - 1, 0) :]])
    return entry if merged == entry else merged


def pack_entry(rows: list[bytes]) -> bytes:
    """A cell of rows in their order."""
    if len(rows) == 1:
        return rows[0]
    return MULTIPLE_ROWS_MARK + b"".join(_LENGTH_FORMAT.pack(len(row)) + row for row in rows)


def unpack_entry(entry: bytes) -> list[bytes]:
    """The rows of a cell in their order."""
    if not entry.startswith(MULTIPLE_ROWS_MARK):
        return [require_rank(entry)]
    rows, offset = [], len(MULTIPLE_ROWS_MARK)
    while offset < len(entry):
        size = int.from_bytes(entry[offset : offset + 4], "little")
        row = entry[offset + 4 : offset + 4 + size]
        if len(row) != size or offset + 4 > len(entry):
            raise CorruptData("a cell of the online store is cut short", "fill the store anew")
        rows.append(require_rank(row))
        offset += 4 + size
    if not rows:
        raise CorruptData("a cell of the online store holds no row", "fill the store anew")
    return rows


def find_current_row(entry: bytes, now_us: int) -> bytes | None:
    """The row that stands now, if any does."""
    moment_bound = pack_moment_bound(now_us)
    return max(
        (row for row in unpack_entry(entry) if row < moment_bound), key=lambda row: row[:RANK_BYTES], default=None
    )
