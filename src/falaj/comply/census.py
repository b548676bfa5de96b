"""The census: every copy the platform knows of, asked again whether it may lie where it lies."""

from collections import Counter

from falaj.comply.records import Census
from falaj.core.errand import Here
from falaj.govern.copies import HOLDERS, OBJECTS
from falaj.govern.records import CopyPage, Misplaced

KINDS = (*HOLDERS, "view", "entity", "service", "endpoint", "run", "output", "trace", "job", "secret", OBJECTS)
"""What keeps bytes or facts of its own in a zone, and the sealed bytes themselves."""
UNSEEN = (
    "what was lawfully handed out: downloads, packs and answers of endpoints; the log names each act",
    "block caches on the disks of processes: they hold the sealed bytes of objects counted here, beside their readers",
    "backups of the ledger kept by other tools, and copies that the blob store makes of itself",
)


def count(here: Here) -> Census:
    """Ask zone by zone, kind by kind."""
    zones: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    misplaced: list[Misplaced] = []
    for kind in KINDS:
        after = ""
        while True:
            page: CopyPage = here.zones.copies(kind, after=after)
            zones.update(page.zones)
            kinds[kind] += page.things
            misplaced += page.misplaced
            after = page.next
            if not after:
                break
    copies = sum(zones.values())
    wrong = tuple(sorted(misplaced, key=lambda one: (one.zone, one.thing)))
    seen = {kind: number for kind, number in sorted(kinds.items()) if number}
    return Census(not wrong, sum(kinds.values()), copies, dict(sorted(zones.items())), seen, wrong, UNSEEN)
