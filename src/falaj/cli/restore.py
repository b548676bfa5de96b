"""`falaj restore`: a backup brought into an empty store, or tried in a drill. A house that stands is not empty."""

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from falaj.cli.frame import Frame
from falaj.cli.parsing import Parser, read
from falaj.cli.tables import put
from falaj.core.context import HOUSE, Context
from falaj.core.errors import Conflict, Corrupt, Denied, Invalid, NotFound, Unavailable
from falaj.core.ref import Ref

if TYPE_CHECKING:
    from falaj.core.settings import Settings
    from falaj.platform import House
    from falaj.store.backup import Progress
    from falaj.store.ledger import Ledger
    from falaj.store.records import Record
    from falaj.store.revive import Revival, Revived

_PAGE = 1000


def restore(frame: Frame, arguments: list[str]) -> int:
    """All or nothing, proven by computing the root of every log again."""
    parser = Parser(
        prog="falaj restore",
        description="Bring a backup into the empty store of a folder's settings; the root of every log proves it.",
        epilog="Example: falaj restore s3://backups/falaj --at /srv/falaj, or: falaj restore --drill. A restored copy "
        "is fenced until: falaj restore --activate --old-is-gone REASON",
    )
    parser.add_argument("source", nargs="?", default="", help="a file, or the place of backups: dir:/… or s3://…")
    parser.add_argument("--backup", default="", metavar="NAME", help="which one of that place; the newest if left out")
    parser.add_argument("--zone", default="", help="the zone to stand in, where that is another than before")
    parser.add_argument("--drill", action="store_true", help="restore into an empty place, prove it, remove it")
    parser.add_argument("--all-blobs", action="store_true", help="with --drill: open all bytes, not only a sample")
    parser.add_argument("--activate", action="store_true", help="let a restored copy act, once the old one is gone")
    parser.add_argument(
        "--old-is-gone", default="", metavar="REASON", help="with --activate: how you know; it is logged"
    )
    frame, found = read(frame, parser, arguments)
    if found.activate:
        from falaj.cli.activate import activate

        return activate(frame, found.old_is_gone)
    if found.drill:
        return _drill(frame, found.backup, found.all_blobs)
    home = frame.folder("a backup is restored on the machine that holds the store", "falaj restore FILE --at FOLDER")
    if not found.source:
        raise Invalid("no backup is named", "falaj restore FILE, falaj restore dir:/…, or: falaj restore --drill")
    from falaj.platform import load_settings, restore_into

    progress = None if frame.as_json else _told
    overrides = {"zone": found.zone} if found.zone else {}
    if ":" in found.source and not Path(found.source).exists():
        report: Any = revive(load_settings(home, overrides), found.source, found.backup, progress)
    else:
        report = restore_into(load_settings(home, overrides), found.source, progress)
    put(report, as_json=frame.as_json)
    _warn(report)
    return 0


def revive(settings: "Settings", source: str, name: str = "", progress: "Progress | None" = None) -> "Revived":
    """A house from a place of backups: ledger, then bytes, then what the log must say of it."""
    from falaj.platform import House
    from falaj.plugins import plugin
    from falaj.store.fence import raise_fence
    from falaj.store.ledger import Ledger
    from falaj.store.revive import Revival
    from falaj.store.shelf import Shelf

    def opened(port: str, url: str) -> Any:
        return stack.enter_context(contextlib.closing(plugin(port, url.partition(":")[0])(settings.at(url), {})))

    def files(path: str) -> Any:
        return contextlib.closing(plugin("store", "sqlite")(f"sqlite:{path}", {}))

    with contextlib.ExitStack() as stack:
        Path(settings.home).mkdir(mode=0o700, parents=True, exist_ok=True)
        revival = Revival(Shelf(opened("blobs", source)), name, progress)
        settings = _standing(settings, revival)
        secrets = opened("secrets", settings.secrets)
        own = opened("blobs", settings.blobs) if settings.zone == revival.made.zone else None
        ledger = Ledger(opened("store", settings.store))
        try:
            revival.load(ledger, own, lambda record: _check_key(secrets, record), files)
        except Conflict:
            if not _begun(ledger, revival.made.name):
                raise
        raise_fence(ledger, source, time.time())
        _remember(settings)
        house = stack.enter_context(contextlib.closing(House(settings)))
        return _settled(house, revival)


def _begun(ledger: "Ledger", name: str) -> bool:
    """True when this very backup was being restored here and did not come to its end: then it goes on."""
    told = {
        verb: {row.subject.name for row in ledger.store.events(tenant=HOUSE, verb=verb, limit=1000)}
        for verb in ("store.revive", "store.restore")
    }
    return name in told["store.revive"] - told["store.restore"]


def _drill(frame: Frame, backup: str, all_blobs: bool) -> int:
    with frame.connect() as here:
        report = here.store.drill(backup=backup, all_blobs=all_blobs)
    put(report, as_json=frame.as_json)
    return 0 if report.ok else 1


def _standing(settings: "Settings", revival: "Revival") -> "Settings":
    """The settings with the zone to stand in: where the house stood, or the zone that the backup was made for."""
    made = revival.made
    if "zone" not in settings.sources:
        settings = replace(settings, zone=made.zone)
    if settings.zone not in (made.zone, made.place):
        raise Denied(
            f"this backup is of zone {made.zone} and may lie in {made.place}, not in {settings.zone}",
            f"falaj restore … --zone {made.place}",
        )
    return settings


def _remember(settings: "Settings") -> None:
    """The zone in the folder's own settings, where nothing else says it: the next command must stand there too."""
    file = Path(settings.home) / "falaj.toml"
    if settings.zone != "home" and not file.exists() and settings.sources.get("zone") != "environment":
        file.write_text(f'zone = "{settings.zone}"\n', encoding="utf-8")


def _check_key(secrets: Any, record: "Record") -> None:
    """The root keys that were given open the keys of zones, before anything of the backup is kept."""
    from falaj.govern.keytable import Slot, root_wrapped

    slot = Slot.of(record.key)
    if slot.purpose != "zone":
        return
    version = int(record.body["current"])
    try:
        secrets.unwrap("falaj", root_wrapped(record.body["versions"][str(version)]), slot.aad(version))
    except (Corrupt, NotFound) as error:
        raise Unavailable(
            f"the root keys given do not open the keys of zone {slot.zone}; nothing was restored",
            "put the root keys of the house where the setting `secrets` says, then restore again",
        ) from error


def _settled(house: "House", revival: "Revival") -> "Revived":
    from falaj.plugins import plugin

    ctx, own = house.system(), house.settings.zone
    subject = Ref("backup", revival.made.zone, revival.made.name, "r1")
    with house.ledger.write(ctx) as tx:
        tx.emit("store.revive", subject, zone=own)
    _bury(house, revival)
    here = next((zone for zone in house.zones.list(ctx) if zone.id == own), None)
    if here is not None and house.settings.at(here.store) != house.settings.at(house.settings.blobs):
        house.zones.change(ctx, own, {"store": house.settings.blobs})
    url = house.settings.series_url
    revival.measure(lambda: contextlib.closing(plugin("series", url.partition(":")[0])(url, {})))
    left = len(revival.contents.left)
    for zone in sorted({one.zone for one in revival.contents.blobs}):
        if zone == own or own == revival.made.zone:
            left += _lay(house, revival, zone)
    if own != revival.made.zone:
        left += _evacuate(house, revival)
    report = revival.told(own, left)
    with house.ledger.write(ctx) as tx:
        root = next((log.root for log in report.logs if (log.tenant, log.zone) == (HOUSE, revival.made.zone)), "")
        tx.emit(
            "store.restore", subject, zone=own, root=root,
            rows=sum(report.rows.values()), logs=len(report.logs), blobs=report.blobs, bytes=report.bytes,
            left=report.left, erased=report.erased,
        )  # fmt: skip
    return report


def _bury(house: "House", revival: "Revival") -> None:
    """Say in the log which keys were not let in again."""
    from falaj.core.ports import Key
    from falaj.govern.keytable import PROJECT, Slot

    for tomb in revival.buried:
        key = Key(tomb.tenant, "key", PROJECT, tomb.name)
        slot = Slot.of(key)
        ctx = replace(house.system(), tenant=tomb.tenant, zone=slot.zone)
        with house.ledger.write(ctx) as tx:
            record = tx.key(key)
            if record is not None:
                tx.emit("subjects.forget", record.ref, pseudonym=slot.subject, zone=slot.zone, at=tomb.at)


def _lay(house: "House", revival: "Revival", zone: str) -> int:
    """Bytes of a zone into its store, where it answers; how many could not be laid there."""
    wanted = [one for one in revival.contents.blobs if one.zone == zone]
    try:
        revival.lay(wanted, house.blobs.open_zone(zone))
    except (Unavailable, Invalid, NotFound):
        return len(wanted)
    return 0


def _evacuate(house: "House", revival: "Revival") -> int:
    from falaj.store.revive import Evacuation

    ctx, own = house.system(), house.settings.zone
    for zone in house.zones.list(ctx):
        # Said first: what is not brought over yet must not look lost. The stores of other zones may well be there.
        if zone.id != own and zone.store and (zone.id == revival.made.zone or "{home}" in zone.store):
            house.zones.change(ctx, zone.id, {"store": f"left:{zone.id}"})
    moving = Evacuation(revival, house.blobs, own)
    for tenant in sorted({tenant for tenant, _ in house.ledger.logs()}):
        for record in _held(house, replace(ctx, tenant=tenant)):
            moving.carry(ctx, record)
    return moving.left


def _held(house: "House", ctx: Context) -> "Iterator[Record]":
    from falaj.platform import HOLDERS

    for kind in HOLDERS:
        after = ""
        while True:
            with house.ledger.read(ctx) as tx:
                page = tx.find(kind, after=after, limit=_PAGE)
            yield from page.records
            after = page.next
            if not after:
                break


def _warn(report: Any) -> None:
    """What a person must do after a restore, where an older state came back."""
    sys.stderr.write(
        "note: this copy is FENCED: it starts no job and reaches no cluster, hook or agent. Once the installation it "
        "was made from is gone: falaj restore --activate\n"
    )
    again = getattr(report, "repeat", None)
    if again is None:
        sys.stderr.write(
            "note: a file does not know who was forgotten after it was made; repeat those erasures, "
            "or restore from the place of backups, which knows\n"
        )
    elif again:
        sys.stderr.write(f"note: carry these erasures out again, their rows are back: {', '.join(again)}\n")


def _told(done: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done:,} rows restored")
