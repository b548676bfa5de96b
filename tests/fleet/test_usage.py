"""Usage: what an attempt held is what it attained and what was lost, and rows are sums of attempts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.label import Label
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.fleet.usage import MAX_ENTRIES_PER_RECORD, UsageEntry, sum_entries, to_usage_entry, write_entries
from falaj.fleet.usage import iter_entries as read
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import system_context
from falaj.store.records import LedgerRecord

COSTS = st.fixed_dictionaries({"gpu_s": st.integers(0, 10**12), "cpu_s": st.integers(0, 10**12)})


def ended(
    outcome: str, cost: dict[str, int], seconds: float, saved: float = 0.0, code: int = 0, **more: Any
) -> UsageEntry:
    body = {
        "id": more.get("id", "j1"), "queue": more.get("queue", "root/a"), "who": {"id": more.get("who", "amal")},
        "attempt": {"id": "a-1", "started": 1000.0, "band": more.get("band", 2)},
    }  # fmt: skip
    after = {
        "attempts": [{"outcome": outcome, "code": code, "nodes": ["hall/n1"]}], "saved": saved,
        "outputs": more.get("outputs", {}),
    }  # fmt: skip
    record = LedgerRecord(
        RecordKey("bank", "job", "fraud", body["id"]), 3, body, Label(), "ae-dubai", "amal", False, 0.0
    )
    return to_usage_entry(record, after, cost, seconds, 1000.0 + seconds)


@given(
    st.sampled_from(["succeeded", "failed: x", "lost", "evicted", "cancelled"]),
    COSTS,
    st.floats(0, 1e6),
    st.floats(0, 2e6),
)
def test_attained_and_lost_are_what_was_held(word: str, cost: dict[str, int], seconds: float, saved: float) -> None:
    spell = ended(word, cost, seconds, saved)
    for unit, amount in cost.items():
        assert 0 <= spell.lost[unit] <= amount
    if word == "succeeded":
        assert not any(spell.lost.values())


def test_a_checkpoint_saves_what_came_before_it() -> None:
    cost = {"gpu_s": 100_000}
    assert ended("evicted", cost, 100).lost == cost
    assert ended("evicted", cost, 100, saved=1080).lost == {"gpu_s": 20_000}
    assert ended("evicted", cost, 100, saved=900).lost == cost  # of the attempt before
    assert ended("failed: exit code 85", cost, 100, code=85).lost == {"gpu_s": 0}


def test_rows_are_sums_and_name_who_wasted_what() -> None:
    hour = 3_600_000
    spells = [
        ended("failed: oom", {"gpu_s": 2 * hour, "money": 4_000_000}, 3600, id="j1"),
        ended("succeeded", {"gpu_s": 3 * hour, "money": 6_000_000}, 3600, id="j1", outputs={"m": "model:fraud/m@v2"}),
        ended("evicted", {"cpu_s": hour}, 3600, id="j2", who="mona", queue="root/b", band=0),
    ]
    first, second = sum_entries(spells, "queue", {"j1": 1800.0})
    assert (first.name, first.attempts, first.gpu_hours, first.lost_gpu_hours) == ("root/a", 2, 5, 2)
    assert (first.idle_gpu_hours, first.money, first.lost_to) == (0.5, 10, {"failed": 2})
    assert (second.name, second.cpu_hours, second.lost_to) == ("root/b", 1, {"evicted": 1})
    assert [row.name for row in sum_entries(spells, "person", {})] == ["amal", "mona"]
    assert [(row.name, row.money) for row in sum_entries(spells, "model", {})] == [("model:fraud/m@v2", 10)]
    assert [row.name for row in sum_entries(spells, "project", {})] == ["bank/fraud"]
    assert [spell.charged for spell in spells] == [True, True, False]


def test_what_was_lost_adds_up_where_some_jobs_have_gpus_and_some_none() -> None:
    hour = 3_600_000
    spells = [ended("failed", {"gpu_s": hour, "cpu_s": hour}, 3600), ended("failed", {"cpu_s": 5 * hour}, 3600)]
    (row,) = sum_entries(spells, "queue", {})
    assert sum(row.lost_to.values()) == row.lost_gpu_hours == 1


def test_entries_of_attempts_that_end_together_lie_in_one_record_for_each_that_may_see_them(tmp_path: Path) -> None:
    store = SqliteLedgerStore(f"sqlite:{tmp_path}/ledger.db")
    ledger, ctx = Ledger(store), system_context("jobs")
    spells = [ended("succeeded", {"cpu_s": 5}, 10.0, id=f"j{number}") for number in range(MAX_ENTRIES_PER_RECORD + 2)]
    jobs = [
        LedgerRecord(RecordKey("bank", "job", "fraud", one.id), 1, {}, Label(), "home", "a", False, 0.0)
        for one in spells
    ]
    jobs[1] = replace(jobs[1], label=Label(classification=3))
    with ledger.write(ctx) as tx:
        write_entries(tx, [(job, f"{one.id}-1", one) for job, one in zip(jobs, spells, strict=True)])
        tx.emit("test", Ref("note", "p", "n", "r1"))
    with ledger.read(ctx) as tx:
        records = tx.find("usage", tenant="bank").records
        found = list(read(tx, "bank", 1000.0, 1010.0, None))
    store.close()
    assert sorted(len(record.body["spells"]) for record in records) == [1, 1, MAX_ENTRIES_PER_RECORD]
    assert [record.label for record in records if record.key.name == "j1-1"] == [jobs[1].label]
    assert sorted(found, key=lambda one: one.id) == sorted(spells, key=lambda one: one.id)
