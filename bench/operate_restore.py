"""How fast a house comes back: a part of bench/operate.py, or `python bench/operate_restore.py` alone.

A house of 300,000 events, 60,000 records and 2 GB of bytes is backed up to a folder, then brought back by turns with
`cp -r` and a sync of the very bytes that the backup has, on the same disk. Everything that a restore does is in its
time: every digest and every root computed again, all of it durable.
"""

import os
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bars import bar, told
from scratch import folder

from falaj.cli.restore import restore_from_target
from falaj.core.byte_stream import ByteStream
from falaj.core.context import Actor, CallContext
from falaj.core.ref import Ref
from falaj.server import LocalClient, Server, load_settings

ROUNDS = int(os.environ.get("ROUNDS", "3"))
EVENTS = int(os.environ.get("EVENTS", "300000"))
BYTES = int(os.environ.get("BYTES", str(2_000_000_000)))
EACH, PIECE = 5, 64 << 20
"""Events with every record, and bytes of every blob."""
COPY, SYNC = ["cp", "-r"], ["sync", "-f"]


def restore() -> None:
    """`restore_vs_copy`: how many times as fast as a raw copy of the same bytes; the median of each."""
    with folder() as home:
        _house(home / "house", f"dir:{home}/shelf")
        size = sum(path.stat().st_size for path in (home / "shelf").rglob("*") if path.is_file())
        (ledger,) = (home / "shelf/objects").rglob("ledger~*")
        of = ledger.stat().st_size
        took: dict[str, list[tuple[float, float]]] = {"copy": [], "restore": []}
        for number in range(ROUNDS):
            again = home / f"again-{number}"
            took["copy"].append(_timed(_copy, home / "shelf", again))
            shutil.rmtree(again)
            took["restore"].append(_timed(_revive, home, again))
            shutil.rmtree(again)
        middle = {name: statistics.median(wall for wall, _ in values) for name, values in took.items()}
        busy = {name: statistics.median(cpu for _, cpu in values) for name, values in took.items()}
    note = f"{size / 1e9:.2f} GB: copied in {middle['copy']:.1f} s, restored in {middle['restore']:.1f} s"
    bar("restore_vs_copy", middle["copy"] / middle["restore"], ">=", 0.5, note)
    print(f"    of it the ledger: {of / 1e6:.0f} MB, {EVENTS:,} events")
    print("    processor seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in busy.items()))


def _house(home: Path, shelf: str) -> None:
    house = Server(load_settings(str(home), {"backup.to": shelf, "sandbox": "off"}))
    noise, here = random.Random(7), LocalClient(house, house.owner())
    for number in range(0, BYTES, PIECE):
        here.store.put(f"blob:bench/b{number}", ByteStream(noise.randbytes(1 << 20) for _ in range(PIECE >> 20)))
    for start in range(0, EVENTS // EACH, 500):
        with house.ledger.group():
            for number in range(start, min(start + 500, EVENTS // EACH)):
                _write(house, number)
    kept = house.storage.kept
    assert kept is not None
    kept.now(house.system())
    house.close()


def _write(house: Server, number: int) -> None:
    ctx = CallContext(Actor("bench", f"team-{number % 4}"), house.settings.zone)
    with house.ledger.write(ctx) as tx:
        body = {"rows": number, "columns": ["day", "amount", "place"], "told": "of what was seen that day"}
        made = tx.put(Ref("thing", "bench", f"n{number}"), body, terms={"live": "yes"})
        for event in range(EACH):
            inputs = (Ref("thing", "bench", f"n{number - 1}", "r1"),) if number and not event else ()
            tx.emit("bench.step", made.ref, inputs, step=event, why="it was asked for")


def _revive(home: Path, again: Path) -> None:
    again.mkdir(mode=0o700)
    shutil.copytree(home / "house/keys", again / "keys")
    restore_from_target(load_settings(str(again), {"sandbox": "off"}), f"dir:{home}/shelf")


def _copy(source: Path, target: Path) -> None:
    subprocess.run([*COPY, str(source), str(target)], check=True)
    subprocess.run([*SYNC, str(target)], check=True)


def _timed(act: Callable[[Path, Path], None], source: Path, target: Path) -> tuple[float, float]:
    """The seconds it took, and those of processors in them: what a loaded machine makes of the first is not ours."""
    os.sync()
    began, busy = time.monotonic(), sum(os.times()[:4])
    act(source, target)
    return time.monotonic() - began, sum(os.times()[:4]) - busy


if __name__ == "__main__":
    told("operate_restore", [restore])
