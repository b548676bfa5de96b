"""The census: every copy the platform knows of, asked again whether it may lie where it lies."""

from collections import Counter

from falaj.comply.records import CopyCensus
from falaj.core.client_command import Client
from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import Denied, Invalid, NotFound, Unavailable
from falaj.govern.copies import HOLDER_KINDS, OBJECT_KIND
from falaj.govern.records import CopyPage, MisplacedCopy

COUNTED_KINDS = (
    *HOLDER_KINDS,
    "view",
    "entity",
    "service",
    "endpoint",
    "run",
    "output",
    "trace",
    "job",
    "secret",
    OBJECT_KIND,
)
"""What keeps bytes or facts of its own in a zone, and the sealed bytes themselves."""
UNSEEN_NOTES = (
    "what was lawfully handed out: downloads, packs and answers of endpoints; the log names each act",
    "block caches on the disks of processes: they hold the sealed bytes of objects counted here, beside their readers",
    "backups of the ledger kept by other tools, and copies that the blob store makes of itself",
)


def count_copies(client: Client) -> CopyCensus:
    """Ask zone by zone, kind by kind."""
    copies_by_zone: Counter[str] = Counter()
    things_by_kind: Counter[str] = Counter()
    misplaced: list[MisplacedCopy] = []
    for kind in COUNTED_KINDS:
        after = ""
        while True:
            page: CopyPage = client.zones.copies(kind, after=after)
            copies_by_zone.update(page.zones)
            things_by_kind[kind] += page.things
            misplaced += page.misplaced
            after = page.next
            if not after:
                break
    copies = sum(copies_by_zone.values())
    stray_copies, unseen_stores = _list_stray_copies(client)
    all_misplaced = tuple(
        sorted([*misplaced, *stray_copies], key=lambda misplaced_copy: (misplaced_copy.zone, misplaced_copy.thing))
    )
    counts_by_kind = {kind: number for kind, number in sorted(things_by_kind.items()) if number}
    return CopyCensus(
        not all_misplaced,
        sum(things_by_kind.values()),
        copies,
        dict(sorted(copies_by_zone.items())),
        counts_by_kind,
        all_misplaced,
        (*UNSEEN_NOTES, *unseen_stores),
    )


def _list_stray_copies(client: Client) -> tuple[list[MisplacedCopy], list[str]]:
    """What lies in the stores themselves beside all ledgers; only whoever runs the installation may look there."""
    if client.people.whoami().tenant != SYSTEM_TENANT:
        return [], ["what lies in stores beside all ledgers: the census of whoever runs the installation walks them"]
    strays: list[MisplacedCopy] = []
    unseen_stores: list[str] = []
    for zone in client.zones.list():
        try:
            stray_report = client.store.strays(zone.id)
        except (Unavailable, NotFound, Invalid, Denied) as error:
            unseen_stores.append(f"the store of {zone.id}: {error.message}")
            continue
        reason = "in the store and in no ledger: nobody can say which law holds for it"
        strays += [
            MisplacedCopy(f"stored {name[:40]}", zone.id, ("unaccounted",), reason) for name in stray_report.names
        ]
    return strays, unseen_stores
