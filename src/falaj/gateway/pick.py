"""Which replica answers: the one with least to do, of two taken by chance where there are many. And how often again."""

import random
from collections.abc import Sequence
from itertools import count
from zlib import crc32

from falaj.gateway.link import Link

FEW = 4
_turns = count()
MOST_SAVED = 256.0
"""So many retries at once may be saved up: as many as one replica that is killed had to answer."""


def pick(links: Sequence[Link], now: float, tried: Sequence[Link] = ()) -> Link | None:
    """A replica that may be asked and was not tried yet; None where there is none."""
    if len(links) > FEW:
        one, other = random.choice(links), random.choice(links)  # noqa: S311 # nosec B311 - a balance, no secret
        best = _better(one, other, now)
        if best is not None and best not in tried:
            return best
    best, least, many = None, 1 << 60, len(links)
    first = next(_turns) % many if many > 1 else 0  # so that those with nothing to do take turns
    for at in range(first, first + many):
        link = links[at - many if at >= many else at]
        if link.client.outstanding < least and link.usable(now) and link not in tried:
            best, least = link, link.client.outstanding
    return best


def pinned(links: Sequence[Link], sequence: bytes) -> Link | None:
    """The replica that holds a sequence's state: the same one for as long as it is there."""
    found = [link for link in links if link.client.ready]
    return max(found, key=lambda link: crc32(link.place.name.encode(), crc32(sequence))) if found else None


def _better(one: Link, other: Link, now: float) -> Link | None:
    if other.usable(now) and (other.client.outstanding < one.client.outstanding or not one.usable(now)):
        return other
    return one if one.usable(now) else None


class Budget:
    """Retries are a share of requests: what fails for everybody is not asked twice by everybody."""

    __slots__ = ("_saved", "full", "taken")

    def __init__(self) -> None:
        self._saved, self.taken = MOST_SAVED, 0
        self.full = True
        """Nothing more can be saved."""

    def earn(self, share: float) -> None:
        """A request came."""
        self._saved += share
        self.full = self._saved >= MOST_SAVED

    def take(self) -> bool:
        """Whether one may be asked again."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        self.full = False
        self.taken += 1
        return True
