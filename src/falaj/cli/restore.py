"""`falaj restore`: a backup brought into an empty store, or tried in a drill. A house that stands is not empty."""

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from falaj.cli.argument_parsing import CommandParser, parse_arguments
from falaj.cli.cli_context import CliContext
from falaj.cli.output import print_result
from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound, Unavailable
from falaj.core.ref import Ref

if TYPE_CHECKING:
    from falaj.core.settings import Settings
    from falaj.server import Server
    from falaj.store.backup import ReportProgress
    from falaj.store.backup_restore import BackupRestore, RestoreReport
    from falaj.store.ledger import Ledger
    from falaj.store.records import LedgerRecord

_PAGE_SIZE = 1000


def run_restore_command(context: CliContext, arguments: list[str]) -> int:
    """All or nothing, proven by computing the root of every log again."""
    parser = CommandParser(
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
    context, parsed_arguments = parse_arguments(context, parser, arguments)
    if parsed_arguments.activate:
        from falaj.cli.activate import activate_copy

        return activate_copy(context, parsed_arguments.old_is_gone)
    if parsed_arguments.drill:
        return _run_drill(context, parsed_arguments.backup, parsed_arguments.all_blobs)
    home = context.folder("a backup is restored on the machine that holds the store", "falaj restore FILE --at FOLDER")
    if not parsed_arguments.source:
        raise Invalid("no backup is named", "falaj restore FILE, falaj restore dir:/…, or: falaj restore --drill")
    from falaj.server import load_settings, restore_into_store

    progress = None if context.as_json else _print_progress
    overrides = {"zone": parsed_arguments.zone} if parsed_arguments.zone else {}
    if ":" in parsed_arguments.source and not Path(parsed_arguments.source).exists():
        report: Any = restore_from_target(
            load_settings(home, overrides), parsed_arguments.source, parsed_arguments.backup, progress
        )
    else:
        report = restore_into_store(load_settings(home, overrides), parsed_arguments.source, progress)
    print_result(report, as_json=context.as_json)
    _print_warnings(report)
    return 0


def restore_from_target(
    settings: "Settings", source: str, backup_name: str = "", report_progress: "ReportProgress | None" = None
) -> "RestoreReport":
    """A house from a place of backups: ledger, then bytes, then what the log must say of it."""
    from falaj.plugins import load_plugin
    from falaj.server import Server
    from falaj.store.backup_restore import BackupRestore
    from falaj.store.backup_target import BackupTarget
    from falaj.store.copy_fence import raise_fence
    from falaj.store.ledger import Ledger

    def open_backend(port: str, url: str) -> Any:
        return stack.enter_context(contextlib.closing(load_plugin(port, url.partition(":")[0])(settings.at(url), {})))

    def open_ledger_file(path: str) -> Any:
        return contextlib.closing(load_plugin("store", "sqlite")(f"sqlite:{path}", {}))

    with contextlib.ExitStack() as stack:
        Path(settings.home).mkdir(mode=0o700, parents=True, exist_ok=True)
        backup_restore = BackupRestore(BackupTarget(open_backend("blobs", source)), backup_name, report_progress)
        settings = _with_zone(settings, backup_restore)
        root_key_provider = open_backend("secrets", settings.secrets)
        own_zone_objects = open_backend("blobs", settings.blobs) if settings.zone == backup_restore.made.zone else None
        ledger = Ledger(open_backend("store", settings.store))
        try:
            backup_restore.load(
                ledger,
                own_zone_objects,
                lambda record: _require_matching_root_keys(root_key_provider, record),
                open_ledger_file,
            )
        except Conflict:
            if not _is_unfinished_restore(ledger, backup_restore.made.name):
                raise
        raise_fence(ledger, source, time.time())
        _save_zone(settings)
        server = stack.enter_context(contextlib.closing(Server(settings)))
        return _finish_restore(server, backup_restore)


def _is_unfinished_restore(ledger: "Ledger", backup_name: str) -> bool:
    """True when this very backup was being restored here and did not come to its end: then it goes on."""
    names_by_operation = {
        operation: {row.subject.name for row in ledger.store.events(tenant=SYSTEM_TENANT, verb=operation, limit=1000)}
        for operation in ("store.revive", "store.restore")
    }
    return backup_name in names_by_operation["store.revive"] - names_by_operation["store.restore"]


def _run_drill(context: CliContext, backup: str, all_blobs: bool) -> int:
    with context.connect() as client:
        report = client.store.drill(backup=backup, all_blobs=all_blobs)
    print_result(report, as_json=context.as_json)
    return 0 if report.ok else 1


def _with_zone(settings: "Settings", backup_restore: "BackupRestore") -> "Settings":
    """The settings with the zone to stand in: where the house stood, or the zone that the backup was made for."""
    manifest = backup_restore.made
    if "zone" not in settings.sources:
        settings = replace(settings, zone=manifest.zone)
    if settings.zone not in (manifest.zone, manifest.place):
        raise Denied(
            f"this backup is of zone {manifest.zone} and may lie in {manifest.place}, not in {settings.zone}",
            f"falaj restore … --zone {manifest.place}",
        )
    return settings


def _save_zone(settings: "Settings") -> None:
    """The zone in the folder's own settings, where nothing else says it: the next command must stand there too."""
    settings_file = Path(settings.home) / "falaj.toml"
    if settings.zone != "home" and not settings_file.exists() and settings.sources.get("zone") != "environment":
        settings_file.write_text(f'zone = "{settings.zone}"\n', encoding="utf-8")


def _require_matching_root_keys(root_key_provider: Any, record: "LedgerRecord") -> None:
    """The root keys that were given open the keys of zones, before anything of the backup is kept."""
    from falaj.govern.key_table import KeySlot, decode_root_wrapped

    slot = KeySlot.of(record.key)
    if slot.purpose != "zone":
        return
    version = int(record.body["current"])
    try:
        root_key_provider.unwrap("falaj", decode_root_wrapped(record.body["versions"][str(version)]), slot.aad(version))
    except (CorruptData, NotFound) as error:
        raise Unavailable(
            f"the root keys given do not open the keys of zone {slot.zone}; nothing was restored",
            "put the root keys of the house where the setting `secrets` says, then restore again",
        ) from error


def _finish_restore(server: "Server", backup_restore: "BackupRestore") -> "RestoreReport":
    from falaj.plugins import load_plugin

    ctx, own_zone = server.system(), server.settings.zone
    subject = Ref("backup", backup_restore.made.zone, backup_restore.made.name, "r1")
    with server.ledger.write(ctx) as tx:
        tx.emit("store.revive", subject, zone=own_zone)
    _record_destroyed_keys(server, backup_restore)
    own_zone_record = next((zone for zone in server.zones.list(ctx) if zone.id == own_zone), None)
    if own_zone_record is not None and server.settings.at(own_zone_record.store) != server.settings.at(
        server.settings.blobs
    ):
        server.zones.change(ctx, own_zone, {"store": server.settings.blobs})
    url = server.settings.series_url
    backup_restore.measure(lambda: contextlib.closing(load_plugin("series", url.partition(":")[0])(url, {})))
    skipped_count = len(backup_restore.contents.left)
    for zone in sorted({backed_up_object.zone for backed_up_object in backup_restore.contents.blobs}):
        if zone == own_zone or own_zone == backup_restore.made.zone:
            skipped_count += _restore_zone_objects(server, backup_restore, zone)
    if own_zone != backup_restore.made.zone:
        skipped_count += _relocate_zone(server, backup_restore)
    report = backup_restore.told(own_zone, skipped_count)
    with server.ledger.write(ctx) as tx:
        root = next(
            (log.root for log in report.logs if (log.tenant, log.zone) == (SYSTEM_TENANT, backup_restore.made.zone)), ""
        )
        tx.emit(
            "store.restore", subject, zone=own_zone, root=root,
            rows=sum(report.rows.values()), logs=len(report.logs), blobs=report.blobs, bytes=report.bytes,
            left=report.left, erased=report.erased,
        )  # fmt: skip
    return report


def _record_destroyed_keys(server: "Server", backup_restore: "BackupRestore") -> None:
    """Say in the log which keys were not let in again."""
    from falaj.core.ports import RecordKey
    from falaj.govern.key_table import KEYS_PROJECT, KeySlot

    for destroyed_key in backup_restore.buried:
        key = RecordKey(destroyed_key.tenant, "key", KEYS_PROJECT, destroyed_key.name)
        slot = KeySlot.of(key)
        ctx = replace(server.system(), tenant=destroyed_key.tenant, zone=slot.zone)
        with server.ledger.write(ctx) as tx:
            record = tx.key(key)
            if record is not None:
                tx.emit("subjects.forget", record.ref, pseudonym=slot.subject, zone=slot.zone, at=destroyed_key.at)


def _restore_zone_objects(server: "Server", backup_restore: "BackupRestore", zone: str) -> int:
    """Bytes of a zone into its store, where it answers; how many could not be laid there."""
    zone_objects = [
        backed_up_object for backed_up_object in backup_restore.contents.blobs if backed_up_object.zone == zone
    ]
    try:
        backup_restore.lay(zone_objects, server.blobs.open_zone(zone))
    except (Unavailable, Invalid, NotFound):
        return len(zone_objects)
    return 0


def _relocate_zone(server: "Server", backup_restore: "BackupRestore") -> int:
    from falaj.store.backup_restore import ZoneRelocation

    ctx, own_zone = server.system(), server.settings.zone
    for zone in server.zones.list(ctx):
        # Said first: what is not brought over yet must not look lost. The stores of other zones may well be there.
        if zone.id != own_zone and zone.store and (zone.id == backup_restore.made.zone or "{home}" in zone.store):
            server.zones.change(ctx, zone.id, {"store": f"left:{zone.id}"})
    relocation = ZoneRelocation(backup_restore, server.blobs, own_zone)
    for tenant in sorted({tenant for tenant, _ in server.ledger.logs()}):
        for record in _iterate_holders(server, replace(ctx, tenant=tenant)):
            relocation.carry(ctx, record)
    return relocation.left


def _iterate_holders(server: "Server", ctx: CallContext) -> "Iterator[LedgerRecord]":
    from falaj.server import BLOB_HOLDER_KINDS

    for kind in BLOB_HOLDER_KINDS:
        after = ""
        while True:
            with server.ledger.read(ctx) as tx:
                page = tx.find(kind, after=after, limit=_PAGE_SIZE)
            yield from page.records
            after = page.next
            if not after:
                break


def _print_warnings(report: Any) -> None:
    """What a person must do after a restore, where an older state came back."""
    sys.stderr.write(
        "note: this copy is FENCED: it starts no job and reaches no cluster, hook or agent. Once the installation it "
        "was made from is gone: falaj restore --activate\n"
    )
    erasures_to_repeat = getattr(report, "repeat", None)
    if erasures_to_repeat is None:
        sys.stderr.write(
            "note: a file does not know who was forgotten after it was made; repeat those erasures, "
            "or restore from the place of backups, which knows\n"
        )
    elif erasures_to_repeat:
        sys.stderr.write(
            f"note: carry these erasures out again, their rows are back: {', '.join(erasures_to_repeat)}\n"
        )


def _print_progress(restored_rows: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{restored_rows:,} rows restored")
