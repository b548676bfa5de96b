"""A process that writes to a ledger and says on stdout what was acknowledged to it, until it is killed.

Usage: python -m tests.stories.ledger_writer URL WHO MODE [COUNT]; MODE is single, group or threads.
"""

import contextlib
import sys
import threading

from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.errors import FalajError, StaleRevision
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger, LedgerWriter


def open_ledger(url: str) -> Ledger:
    return Ledger(SqliteLedgerStore(url) if url.startswith("sqlite") else PostgresLedgerStore(url))


def write(ledger: Ledger, who: str, n: int) -> None:
    """One record and one event, tried again when the engine asks for it."""
    ctx = CallContext(Actor(who, "acme"), "uae")

    def work(tx: LedgerWriter) -> None:
        tx.emit("add", tx.put(Ref("thing", who, f"n{n}"), {"n": n}, terms={"who": who}).ref, n=n)

    ledger.retry(ctx, work, tries=1000)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def single(ledger: Ledger, who: str, count: int) -> None:
    for n in range(count):
        write(ledger, who, n)
        say(f"{who} {n}")


def group(ledger: Ledger, who: str, count: int) -> None:
    for start in range(0, count, 7):
        together(ledger, who, start)
        for n in range(start, start + 7):
            say(f"{who} {n}")


def together(ledger: Ledger, who: str, start: int) -> None:
    """Seven in one group, tried again when the engine turned all of it away."""
    while True:
        with contextlib.suppress(StaleRevision):
            with ledger.group():
                for n in range(start, start + 7):
                    write(ledger, who, n)
            return


def threads(ledger: Ledger, who: str, count: int) -> None:
    running = [threading.Thread(target=single, args=(ledger, f"{who}-{t}", count)) for t in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def main() -> None:
    url, who, mode = sys.argv[1:4]
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 1_000_000
    ledger = open_ledger(url)
    try:
        {"single": single, "group": group, "threads": threads}[mode](ledger, who, count)
    except FalajError as error:
        say(f"failed {error}")
        raise
    ledger.close()


if __name__ == "__main__":
    main()
