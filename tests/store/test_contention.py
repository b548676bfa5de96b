"""Several writers at once on PostgreSQL: who is turned away tries again, and nobody keeps a connection."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

from tests.town import Town

WRITERS, EACH = 8, 40
"""Twice as many as a replica has lanes."""


def test_writers_that_meet_all_get_through(postgres_url: str, tmp_path: Path) -> None:
    town = Town(tmp_path, store=postgres_url)
    amal = town.as_("amal")
    made = amal.track.create("experiment:fraud/busy")

    def work(turn: int) -> None:
        run = amal.track.start(made.ref, title=f"run {turn}", params={"n": str(turn)})
        amal.track.log(run.ref, tags={"a": "b"})

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(work, range(WRITERS * EACH)))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        held = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE '%aborted%'"
        ).fetchone()
    assert held == (0,)
    assert len(amal.track.list(experiments=(made.ref,), limit=1000).runs) == WRITERS * EACH
    town.close()
