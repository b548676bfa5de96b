"""Queues: declared, changed, applied whole; what cannot be is refused before anything is written."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.fleet.amounts import parse_amount, parse_mebibytes, parse_seconds
from falaj.fleet.budgets import find_window_end, format_window_start, read_budget
from falaj.fleet.queues import find_queue, read_rules
from tests.jobs.lab import Lab, until
from tests.town import refusal


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Any]:
    with falaj.connect(str(tmp_path / "house")) as made:
        for tenant in ("bank", "clinic"):
            made.people.add_tenant(tenant, "admin")
        yield made


def test_a_queue_is_added_changed_and_removed(here: Any) -> None:
    made = here.queues.add(
        "root/bank/fraud", guarantee={"gpu": "4"}, limit={"gpu": "8", "memory": "1TiB"}, weight=2,
        projects=("bank/fraud",), budget=("gpu-hours=500/month:stop", "money=10/30d"),
    )  # fmt: skip
    assert (made.guarantee, made.limit, made.weight) == ({"gpu": "4"}, {"gpu": "8", "memory": "1024GiB"}, 2)
    assert made.budget[0].startswith("gpu-hours=500/month:stop (0 spent")
    assert [one.name for one in here.queues.list()] == ["root", "root/bank", "root/bank/fraud", "root/default"]
    changed = here.queues.change("root/bank/fraud", {"limit.gpu": "12", "limit.memory": "none", "lend.gpu": "1"})
    assert (changed.limit, changed.lend, changed.guarantee) == ({"gpu": "12"}, {"gpu": "1"}, {"gpu": "4"})
    more = here.queues.change("root/bank/fraud", {"budget.gpu-hours": "+0.5", "budget.money": "12"})
    assert [one.partition(" (")[0] for one in more.budget] == ["gpu-hours=500.5/month:stop", "money=12/30d:best-effort"]
    assert isinstance(refusal(lambda: here.queues.change("root/bank", {"budget.money": "+1"})), Invalid)
    assert isinstance(refusal(lambda: here.queues.remove("root/bank")), Invalid)
    assert here.queues.remove("root/bank/fraud") == "root/bank/fraud"
    assert isinstance(refusal(lambda: here.queues.show("root/bank/fraud")), NotFound)


def test_nobody_raises_a_job_above_normal_unless_a_queue_grants_it(here: Any) -> None:
    job = {"cpus": 0.1, "memory": "32MiB"}
    error = refusal(lambda: here.jobs.submit("echo high", name="above", band="high", **job))
    assert isinstance(error, Invalid)
    assert "expected band normal or lower, got high" in str(error)
    assert "falaj queues change root/default --more top_band=high" in error.hint
    assert here.queues.show("root/default").top_band == "normal"
    here.queues.change("root", {"top_band": "high"})
    assert here.queues.show("root/default").top_band == "high"
    here.jobs.submit("echo high", name="granted", band="high", **job)
    here.queues.change("root/default", {"top_band": "critical"})
    assert here.queues.show("root/default").top_band == "high", "a queue above caps it"
    here.queues.change("root", {"top_band": "none"})
    assert here.queues.show("root/default").top_band == "critical"


def test_a_file_is_planned_then_applied(here: Any, tmp_path: Path) -> None:
    file = tmp_path / "queues.toml"
    file.write_text('["root/a"]\nweight = 3\nprojects = ["house/*"]\n["root/default"]\nprojects = ["*"]\n')
    plan = here.queues.apply(str(file))
    assert [(one.name, one.change) for one in plan] == [("root/a", "new")]
    assert "root/a" not in [one.name for one in here.queues.list()]
    assert here.queues.apply(str(file), yes=True) == plan
    assert here.queues.apply(str(file)) == ()
    assert here.queues.show("root/a").weight == 3
    file.write_text("weight = 3\n")
    assert isinstance(refusal(lambda: here.queues.apply(str(file))), Invalid)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bank", {}),
        ("root/Bank", {}),
        ("root/a", {"guarantee": {"gpu": "4"}, "limit": {"gpu": "2"}}),
        ("root/a", {"weight": 0}),
        ("root/a", {"projects": ("bank",)}),
        ("root/a", {"budget": ("gpu-hours=5",)}),
        ("root/a", {"limit": {"GPU": "1"}}),
        ("root/a", {"limit": {"gpu": "0.0001"}}),
        ("root/a", {"more": {"colour": "red"}}),
        ("root/default/a", {"projects": ("bank/x",)}),
    ],
)
def test_what_cannot_be_is_refused(here: Any, name: str, words: dict[str, Any]) -> None:
    assert isinstance(refusal(lambda: here.queues.add(name, **words)), Invalid)
    assert [one.name for one in here.queues.list()] == ["root", "root/default"]


def test_children_are_not_promised_more_than_their_parent(here: Any) -> None:
    here.queues.add("root/bank", guarantee={"gpu": "4"})
    here.queues.add("root/bank/a", guarantee={"gpu": "3"})
    assert isinstance(refusal(lambda: here.queues.add("root/bank/b", guarantee={"gpu": "2"})), Invalid)
    here.queues.add("root/clinic", limit={"cpu": "2"})
    error = refusal(lambda: here.queues.add("root/clinic/a/b", guarantee={"cpu": "3"}))
    assert "more cpu than the limit of root/clinic" in error.message


def test_jobs_of_nobody_are_not_taken(here: Any) -> None:
    here.queues.add("root/a", projects=("bank/x",))
    for act in (
        lambda: here.queues.add("root/b", projects=("bnak/x",)),
        lambda: here.queues.change("root/a", {"projects": "bank/x,bnak/*"}),
        lambda: here.queues.replace({"root/a": {"projects": ["bnak/x"]}}, dry=True),
        lambda: here.queues.replace({"root/a": {"projects": ["bnak/x"]}}),
    ):
        error = refusal(act)
        assert (type(error), "no tenant 'bnak'" in error.message) == (NotFound, True)
    here.queues.change("root/a", {"projects": "bank/*,house/y,*"})


def test_amounts_beside_those_of_flags_are_added_to_them(here: Any) -> None:
    made = here.queues.add("root/a", guarantee={"cpu": "4"}, more={"guarantee.gpu": "2", "lend.gpu": "1"})
    assert (made.guarantee, made.lend) == ({"cpu": "4", "gpu": "2"}, {"gpu": "1"})


def test_a_queue_with_jobs_stays(here: Any) -> None:
    here.queues.add("root/lab", projects=("house/lab",))
    here.jobs.submit("true", project="lab")
    assert isinstance(refusal(lambda: here.queues.remove("root/lab")), Conflict)
    assert here.queues.show("root/lab").waiting == 1


def test_the_closest_name_wins(here: Any) -> None:
    here.queues.add("root/one", projects=("bank/fraud",))
    here.queues.add("root/many", projects=("bank/*", "clinic/*"))
    with here.house.ledger.read(here.house.system()) as tx:
        rules = read_rules(tx)
    found = [find_queue(rules, *place).name for place in (("bank", "fraud"), ("bank", "x"), ("other", "x"))]
    assert found == ["root/one", "root/many", "root/default"]
    assert find_queue(rules, "bank", "fraud", "root/many").name == "root/many"
    assert isinstance(refusal(lambda: find_queue(rules, "other", "x", "root/one")), Invalid)


def test_amounts_as_people_write_them() -> None:
    assert (parse_amount("cpu", "1.5"), parse_amount("gpu:H100", 2), parse_amount("tpu", 8)) == (1500, 2000, 8)
    assert [parse_mebibytes(text) for text in ("64GiB", "512M", "1GB", 100, "1KiB")] == [65536, 512, 954, 100, 1]
    assert [parse_seconds(text) for text in ("90", "15m", "1.5h", "7d")] == [90, 900, 5400, 604_800]


def test_windows_begin_where_people_expect() -> None:
    now = 1_794_738_000.0  # 2026-11-15, a Sunday
    assert [format_window_start(one, now) for one in ("day", "week", "month")] == [
        "2026-11-15",
        "2026-11-09",
        "2026-11-01",
    ]
    assert format_window_start("30d", now) == format_window_start(
        "30d", now + 86_400 * (29 - (int(now) // 86_400) % 30)
    )
    ends = [datetime.fromtimestamp(find_window_end(one, now), UTC) for one in ("day", "week", "month")]
    assert [day.strftime("%Y-%m-%d %H") for day in ends] == ["2026-11-16 00", "2026-11-16 00", "2026-12-01 00"]
    assert (
        format_window_start("30d", find_window_end("30d", now) - 1)
        == format_window_start("30d", now)
        != format_window_start("30d", find_window_end("30d", now))
    )
    rule = read_budget("money=2.5/week")
    assert (rule.amount, rule.stops, rule.brief) == (2_500_000, False, "money=2.5/week:best-effort")


def test_what_a_child_is_promised_is_its_parents_and_brings_cores(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here, here.working():
        lab.one_node(cpus=8000, gpus=4)
        until(here.clusters.nodes, lambda nodes: len(nodes) == 1 and nodes[0].gpus == 4)
        here.queues.add("root/bank/fraud", guarantee={"gpu": "2"}, projects=("house/lab",))
        job = lab.submit("import time; time.sleep(600)", project="lab", gpus=2, cpus=5)
        lab.until(job, lambda one: one.state == "running")
        shown = {one.name: one.borrowed for one in here.queues.list()}
        assert shown["root/bank"] == shown["root/bank/fraud"] == {"cpu": "1"}, "half the GPUs bring half the cores"
        here.jobs.cancel(job.ref)
        lab.done(job)
