"""The census: every copy the platform knows of, asked again whether it may lie where it lies."""

from collections import Counter

from falaj.comply.records import Census
from falaj.core.context import HOUSE
from falaj.core.errand import Here
from falaj.core.errors import Denied, Invalid, NotFound, Unavailable
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
    strange, unseen = _walked(here)
    wrong = tuple(sorted([*misplaced, *strange], key=lambda one: (one.zone, one.thing)))
    seen = {kind: number for kind, number in sorted(kinds.items()) if number}
    return Census(not wrong, sum(kinds.values()), copies, dict(sorted(zones.items())), seen, wrong, (*UNSEEN, *unseen))


def _walked(here: Here) -> tuple[list[Misplaced], list[str]]:
    """What lies in the stores themselves beside all ledgers; only whoever runs the installation may look there."""
    if here.people.whoami().tenant != HOUSE:
        return [], ["what lies in stores beside all ledgers: the census of whoever runs the installation walks them"]
    found: list[Misplaced] = []
    unseen: list[str] = []
    for zone in here.zones.list():
        try:
            walked = here.store.strays(zone.id)
        except (Unavailable, NotFound, Invalid, Denied) as error:
            unseen.append(f"the store of {zone.id}: {error.message}")
            continue
        why = "in the store and in no ledger: nobody can say which law holds for it"
        found += [Misplaced(f"stored {name[:40]}", zone.id, ("unaccounted",), why) for name in walked.names]
    return found, unseen
