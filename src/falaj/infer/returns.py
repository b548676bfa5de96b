"""Whether those who were just answered ask again at once, and so whether the next batch is worth a moment.

Clients that wait for each answer come back together a round trip after their batch. Whoever cuts the next batch at that
moment parts them for ever: three run while five are on their way, then five while three are. So it is learned from
every run how many come back within a small part of what the run took; only where most do, the next cut waits for them,
never longer than that part, and not once as many are there as are expected.
"""

PATIENCE = 0.05
"""The part of a run's time that a cut may wait for."""
MOSTLY, LEARN = 0.5, 0.2


class Returns:
    """What is known of them. Its owner has a lock."""

    __slots__ = ("_answered", "_back", "_rows", "_until", "_waits", "share")

    def __init__(self) -> None:
        self.share = 0.0
        """Of the rows that were answered, those that came back in time, lately."""
        self._answered = self._back = self._rows = 0
        self._until = 0.0
        self._waits = False

    def ran(self, rows: int, waiting: int, began: float, ended: float) -> None:
        """A run of so many rows ended while others waited."""
        if self._answered:
            self.share += (min(1.0, self._back / self._answered) - self.share) * LEARN
        self._answered, self._back = rows, 0
        self._until = ended + (ended - began) * PATIENCE
        self._waits = self.share > MOSTLY
        self._rows = waiting + round(rows * self.share)

    def came(self, rows: int, now: float) -> None:
        """So many came just now."""
        if now < self._until:
            self._back += rows

    def worth_s(self, waiting: int, cap: int, now: float) -> float:
        """How long the next cut should still wait, at most, when so many rows wait; 0: not at all."""
        return max(0.0, self._until - now) if self._waits and waiting < min(self._rows, cap) else 0.0
