"""A rolling upgrade under load: a part of bench/operate.py, or `python bench/operate_upgrade.py` alone.

Two platforms and two gateways on PostgreSQL (with fsync) and SeaweedFS behind HAProxy, all processes of this machine,
TLS everywhere. Requests of a mix come at a fixed rate whatever became of the last, and none is sent twice; meanwhile
all four are replaced by the next version, by this one again, and by the next one: twelve restarts. `RATE` sets another
rate.
"""

import os
import sys
import time
from contextlib import closing
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from bars import bar, told  # noqa: E402
from scratch import folder  # noqa: E402

from tests.servers.postgres import PostgresServer  # noqa: E402
from tests.servers.seaweed import SeaweedServer  # noqa: E402
from tests.stories.upgrade_ground import Submitter, Town, Watched, town  # noqa: E402
from tests.stories.upgrade_load import MIX, Load, Mixed, Told  # noqa: E402

RATE = float(os.environ.get("RATE", "510"))
WARM_S = 5.0


def upgrade() -> None:
    """`upgrade_failed_requests` at `upgrade_requests_per_s`, and the longest time that nobody was answered."""
    with (
        folder() as place,
        PostgresServer(fsync="on") as postgres,
        SeaweedServer() as objects,
        town(Path(place), postgres.create_database(), objects) as made,
    ):
        _measured(made)


def _measured(made: Town) -> None:
    with closing(made.client(made.people.mona)) as here:
        here.track.create("experiment:fraud/loss")
        run, blob = here.track.start("experiment:fraud/loss").ref, here.store.put("blob:fraud/sample", b"x" * 2000)
    ask = Mixed(made.people.mona, str(run), str(blob))
    load = Load({role: made.address(role) for role in ("api", "gateway")}, made.ca, RATE, ask)
    watched, jobs = Watched(made.store), Submitter(made.client(made.people.mona), 3.0)
    for thread in (watched, jobs, load):
        thread.start()
    time.sleep(WARM_S)  # load alone, for comparison with what follows
    for version in (made.newer, made.older, made.newer):
        made.roll(version)
    jobs.stop()
    _told(load.stop(), watched.stop(), len(jobs.failed), made.codes)


def _told(found: Told, idle: dict[str, float], jobs_failed: int, codes: list[int]) -> None:
    took, answered = sorted(found.took) or [0.0], sum(found.answers.values()) - len(found.failed)
    for line in found.failed[:10]:
        print(f"    {line}")
    shares = ", ".join(f"{share} % {kind}" for kind, share in MIX.items())
    print(f"    {found.asked} requests in {found.seconds:.0f} s ({shares})")
    print(f"    {len(codes)} restarts, exit codes {set(codes)}")
    note = f"p50 {1000 * took[len(took) // 2]:.0f} ms, p99 {1000 * took[int(0.99 * len(took))]:.0f} ms"
    bar("upgrade_failed_requests", len(found.failed) + jobs_failed, "==", 0)
    bar("upgrade_requests_per_s", answered / found.seconds, ">=", 500, note)
    bar("upgrade_longest_gap_s", max(found.gaps.values(), default=found.seconds), "<=", 3.0, "without any answer")
    bar("upgrade_loops_idle_s", max(idle.values()), "<=", 5.0, "a loop that nobody led")


if __name__ == "__main__":
    told("operate_upgrade", [upgrade])
