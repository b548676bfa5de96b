"""Counts the request bytes that a server holds, so that neither anonymous clients nor a caller can exhaust its memory.

Bytes are reserved as they arrive or are inflated, and released when the request is answered. Small bodies are not
counted: the number of connections and of requests at once on each bounds their sum.
"""

import ctypes
from collections.abc import Callable

import msgspec

from falaj.core.errors import Unavailable

UNKNOWN_PRINCIPAL = ""
"""The principal of bytes whose sender is not authenticated yet."""
_TRIM_BYTES = 32 << 20
"""The allocator is asked to return memory after the sum fell from above this."""


class ByteBudget:
    """The sum over all connections, and the share of each principal in it. Used on the event loop only."""

    __slots__ = ("by_principal", "peak", "principal_bytes", "reserved", "total_bytes", "unknown_bytes")

    def __init__(
        self, total_bytes: int = 1 << 30, principal_bytes: int = 512 << 20, unknown_bytes: int = 32 << 20
    ) -> None:
        self.total_bytes, self.principal_bytes, self.unknown_bytes = total_bytes, principal_bytes, unknown_bytes
        self.by_principal: dict[str, int] = {}
        self.reserved = self.peak = 0

    def trim_due(self) -> bool:
        """True once after much was held and most of it was released."""
        if self.peak < _TRIM_BYTES or self.reserved > self.peak >> 2:
            return False
        self.peak = self.reserved
        return True


class ByteReservation(msgspec.Struct, eq=False):
    """The bytes of one request, counted to whom sends it."""

    budget: ByteBudget
    principal: str = UNKNOWN_PRINCIPAL
    size: int = 0
    closed: bool = False

    def grow(self, size: int) -> bool:
        """Reserve `size` more bytes; False, and nothing reserved, where a limit forbids it."""
        budget, principal = self.budget, self.principal
        principal_used, total_reserved = budget.by_principal.get(principal, 0) + size, budget.reserved + size
        if (
            principal_used > (budget.principal_bytes if principal else budget.unknown_bytes)
            or total_reserved > budget.total_bytes
        ):
            return False
        budget.by_principal[principal], budget.reserved = principal_used, total_reserved
        if total_reserved > budget.peak:
            budget.peak = total_reserved
        self.size += size
        return True

    def shrink(self, size: int) -> None:
        """Give `size` bytes back."""
        budget, principal = self.budget, self.principal
        remaining = budget.by_principal.get(principal, 0) - size
        budget.reserved -= size
        self.size -= size
        if remaining:
            budget.by_principal[principal] = remaining
        else:
            budget.by_principal.pop(principal, None)

    def assign(self, principal: str) -> bool:
        """Move the bytes to the share of `principal`, who sent them; False where that share is used up."""
        size = self.size
        self.shrink(size)
        self.principal = principal
        return self.grow(size)

    def release(self) -> None:
        """Give everything back; the request is over."""
        if self.size:
            self.shrink(self.size)
        self.closed = True


def over_budget_error() -> Unavailable:
    """The refusal of a request whose bytes exceed the budget."""
    return Unavailable("the server holds as many request bytes as it may", "send the request again in a second")


def _find_trim() -> Callable[[int], int]:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # an allocator without it
        return lambda _: 0


_malloc_trim = _find_trim()


def trim_memory() -> None:
    """Let the C allocator give free pages back to the system; takes milliseconds, without the interpreter's lock."""
    _malloc_trim(0)
