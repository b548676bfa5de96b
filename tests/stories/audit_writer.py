"""A process that writes events and seals them, and says on stdout what was acknowledged to it, until it is killed.

Usage: python -m tests.stories.audit_writer URL WHO
"""

import sys
import threading

from falaj.audit.seal_loop import SealLoop
from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import StaleRevision
from falaj.core.ref import Ref
from falaj.store.ledger import LedgerWriter
from falaj.store.reconcile_loop import LoopRunner
from tests.audit.house import House


def open_house(url: str) -> House:
    return House(SqliteLedgerStore(url) if url.startswith("sqlite") else PostgresLedgerStore(url), url=url)


def say(lock: threading.Lock, line: str) -> None:
    with lock:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def write(house: House, who: str, lock: threading.Lock) -> None:
    while True:
        ctx = CallContext(Actor(who, "bank"), zone="home")

        def work(tx: LedgerWriter, ctx: CallContext = ctx) -> str:
            record = tx.put(Ref("thing", "demo", f"t{ctx.request}"), {"n": 1})
            return tx.emit("demo.make", record.ref, n=1).id

        say(lock, f"event {house.ledger.retry(ctx, work, tries=1000)}")


def seal(house: House, lock: threading.Lock) -> None:
    """A caller that needs proofs at once, beside the loop: the two race all the time."""
    ctx = CallContext(Actor("auditor", "bank"), zone="home")
    while True:
        try:
            made = house.sealer.seal(ctx, "bank", "home")
        except StaleRevision:
            made = None
        if made is not None:
            say(lock, f"seal {made.number} {made.size} {made.root}")


def main() -> None:
    url, who = sys.argv[1:3]
    house, lock = open_house(url), threading.Lock()
    loop = SealLoop(house.ledger, house.sealer, 0.01)
    LoopRunner(
        house.ledger, who, [loop], lambda name: CallContext(Actor("loop", SYSTEM_TENANT, "service"), zone="home")
    ).start()
    threads = [threading.Thread(target=write, args=(house, f"{who}-{n}", lock)) for n in range(3)]
    threads.append(threading.Thread(target=seal, args=(house, lock)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
