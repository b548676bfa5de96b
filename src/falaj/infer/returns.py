"""Whether those who were just answered ask again at once, and so whether the next batch is worth a moment.

Clients that wait for each answer come back together a round trip after their batch. Whoever cuts the next batch at that
moment parts them for ever: three run while five are on their way, then five while three are. So it is learned how many
come back within a small part of what the run took; only where most do, the next cut waits for them, never longer than
that part, and not once as many are there as are expected.

Where a run begins at once, the loop may not have had the core to answer and to read: that nobody came back then says
nothing. So one cut in some waits on trial, and only such as were given their time count against it.
"""

from math import ceil

PATIENCE = 0.05
"""The part of a run's time that a cut may wait for."""
MOSTLY, RISE, FALL = 0.5, 0.6, 0.2
TRIAL = 16
"""So many cuts, and one of them waits on trial: a third of a hundredth of the time, where it is in vain."""


class Returns:
    """What is known of them. Its owner has a lock."""

    __slots__ = ("_answered", "_back", "_free", "_rows", "_runs", "_until", "_waits", "share")

    def __init__(self) -> None:
        self.share = 0.0
        """Of the rows that were answered, those that came back in time, lately."""
        self._answered = self._back = self._rows = self._runs = 0
        self._until = 0.0
        self._waits = self._free = False
        """Whether the next cut waits; whether those who were answered last had the time to come back."""

    def ran(self, rows: int, waiting: int, began: float, ended: float) -> None:
        """A run of so many rows ended while others waited."""
        if self._answered:
            seen = min(1.0, self._back / self._answered) - self.share
            if seen > 0 or self._free:
                self.share += seen * (RISE if seen > 0 else FALL)
        self._runs += 1
        tries = waiting > 0 and self._runs % TRIAL == 0
        self._answered, self._back = rows, 0
        self._until = ended + (ended - began) * PATIENCE
        self._waits = tries or self.share > MOSTLY
        self._free = self._waits or not waiting
        self._rows = waiting + (rows if tries else ceil(rows * self.share - 0.1))

    def came(self, rows: int, now: float) -> None:
        """So many came just now."""
        if now < self._until:
            self._back += rows

    def worth_s(self, waiting: int, cap: int, now: float) -> float:
        """How long the next cut should still wait, at most, when so many rows wait; 0: not at all."""
        return max(0.0, self._until - now) if self._waits and waiting < min(self._rows, cap) else 0.0
