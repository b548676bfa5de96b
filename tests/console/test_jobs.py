"""Pages of jobs, queues and clusters: what they say is what the verbs say, and their forms do it."""

import json
from dataclasses import replace

import pytest

from falaj.console.pages.clusters.cluster_overview import forecast_pool
from falaj.console.pages.clusters.gpu_map import make_cells
from falaj.console.pages.jobs.job_figures import group_figures, list_step_times
from falaj.console.pages.jobs.job_form import build_job_arguments
from falaj.console.pages.jobs.job_logs import _split_matches
from falaj.console.pages.jobs.usage_report import choose_measure
from falaj.console.pages.queues.fair_shares import ResourceShares, compute_fair_amounts, compute_shares
from falaj.core.errors import Invalid
from falaj.core.executor import Device
from falaj.fleet.records import NodeView, QueueView
from falaj.fleet.telemetry_operations import Figure, PoolLoad
from falaj.fleet.usage import UsageRow
from tests.console.ground import Ground, Visitor

ONE = "/console/jobs/job:fraud/train"


def test_the_list_says_why_each_waits_and_is_filtered_by_its_address(platform: Ground, amal: Visitor) -> None:
    why = platform.as_("amal").jobs.why("job:fraud/train-5")
    found = amal.get("/console/jobs?state=waiting&by=amal&name=train")
    rows = {row["id"]: row.text for row in found.main.all("tbody tr")}
    assert set(rows) == {"row-job-fraud-train-3", "row-job-fraud-train-5"}
    assert why.text in rows["row-job-fraud-train-5"]
    names = [row["id"] for row in amal.get("/console/jobs?name=train-1").main.all("tbody tr")]
    assert names == ["row-job-fraud-train-1"]
    assert "No job fits these filters" in amal.get("/console/jobs?project=nowhere").text
    assert "falaj jobs list --state waiting" in found.main.one("#drawer").text


def test_a_job_shows_its_fix_only_to_those_who_may_press_it(platform: Ground, amal: Visitor) -> None:
    fix = amal.get(f"{ONE}-5").main.one("#fix-jobs")
    assert json.loads(fix.one("input[name=_given]")["value"]) == {"job": "job:fraud/train-5", "gpus": 4.0}
    told = platform.visitor("omar").get(f"{ONE}-5").main.one("#why")
    assert told.one("button").attributes.keys() >= {"disabled"}
    assert "You cannot do this" in told.text
    again = amal.get(f"{ONE}-3").main.one("#why a")["href"]
    assert again == "/console/jobs/new?from=job%3Afraud%2Ftrain-3&models=any"


def test_a_waiting_job_is_changed_by_its_form(platform: Ground, amal: Visitor) -> None:
    wanted = {"given": 'train-5"}', "gpus": "3", "memory": "48MiB", "band": "low"}
    assert amal.press(f"{ONE}-5", "jobs", "change", **wanted).status == 303
    made = platform.as_("amal").jobs.show("job:fraud/train-5")
    assert (made.spec.roles[0].memory, made.spec.roles[0].gpus, made.band) == ("48MiB", 3.0, "low")
    assert not amal.get(f"{ONE}-1").main.all("#change")


def test_what_a_job_was_is_told_in_full(amal: Visitor) -> None:
    done = amal.get(f"{ONE}-1").main
    links = {link["href"] for link in done.all("a")}
    assert {"/console/catalog/dataset:fraud/transactions@v1", "/console/queues?at=root%2Fbank"} <= links
    assert [row["id"] for row in done.one("#attempts").all("tbody tr")] == ["attempt-1"]
    titles = [span.one("title").text for span in done.one("#timeline").all("svg .span")]
    assert [title.partition(" ")[0] for title in titles] == ["waiting", "starting", "local/vm"]
    assert not done.all("#cancel")
    failed = amal.get(f"{ONE}-2").main
    assert failed.all("#retry")
    assert "exit code 3" in failed.text
    assert [figure["data-key"] for figure in amal.get(f"{ONE}-4?tab=figures").main.all("figure")][:1] == [
        "line GPU in use (%)"
    ]
    assert "Nothing was used" in amal.get(f"{ONE}-5?tab=cost").text
    assert amal.get("/console/jobs/job:fraud/nobody").status == 404


def test_logs_are_read_on_searched_and_saved(amal: Visitor) -> None:
    page = amal.get(f"{ONE}-2?tab=logs").main
    assert "3 amounts are no numbers" in page.one(".log").text
    tail = amal.get(page.one(".log")["data-tail"]).json
    assert tail["lines"][0] == "read 600 rows of transactions"
    later = amal.get(f"{page.one('.log')['data-tail']}&after={tail['next']}").json
    assert (later["lines"], later["over"]) == ([], True)
    found = amal.get(f"{ONE}-2?tab=logs&find=VALUEerror").main
    assert [mark.text for mark in found.all("mark")] == ["ValueError"]
    assert "0 lines found" in amal.get(f"{ONE}-2?tab=logs&find=gold").text
    assert amal.get(f"{ONE}-2/log?attempt=1").html.splitlines()[0] == "read 600 rows of transactions"
    assert "no attempt 7" in amal.get(f"{ONE}-2?tab=logs&attempt=7").text
    assert "has not begun" in amal.get(f"{ONE}-5?tab=logs").text


def test_what_a_job_says_is_text(amal: Visitor) -> None:
    page = amal.get("/console/jobs/job:hostile/noisy?tab=logs")
    assert "hostile9" in page.main.one(".log").text
    assert not page.main.one(".log").all("script")


def test_a_draft_is_checked_before_it_is_asked_for(platform: Ground, amal: Visitor) -> None:
    where = "/console/jobs/new?project=fraud&name=new-1&command=python3+train.py&cpus=0.5&memory=64MiB&limit=2h"
    checked = amal.get(f"{where}&code=code:fraud/train@v1&inputs=data%3Ddataset:fraud/transactions@v2")
    assert "dataset:fraud/transactions@v2" in checked.main.one("#draft").text
    assert platform.as_("amal").jobs.list(more={"name": "new-1"}).jobs == ()
    too_much = amal.get("/console/jobs/new?project=fraud&name=x&command=train&gpus=9").main
    assert "no set of nodes could hold it" in too_much.text
    assert not too_much.all("#submit")
    done = amal.press(f"{where}&code=code:fraud/train@v1", "jobs", "add")
    assert done.to == "/console/jobs/job:fraud/new-1"
    made = platform.as_("amal").jobs.show("job:fraud/new-1")
    assert (made.spec.limit_s, made.spec.roles[0].cpus, str(made.code)) == (7200, 0.5, "code:fraud/train@v1")
    filled = amal.get("/console/jobs/new?from=job:fraud/new-1").main
    assert [one["value"] for one in filled.all("#form input[name=memory]")] == ["64MiB"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"command": "a 'b"}, "cannot be read"),
        ({"command": "a", "cpus": "many"}, "no number"),
        ({"command": "a", "inputs": "dataset:fraud/x"}, "no name"),
        ({"command": "a", "limit": "soon"}, "span of time"),
    ],
)
def test_a_draft_that_cannot_be(given: dict[str, str], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        build_job_arguments(given)


def test_a_profile_that_a_job_wrote(platform: Ground, amal: Visitor) -> None:
    run = platform.as_("amal").jobs.show("job:fraud/train-1").run
    assert "falaj train profile job:fraud/train-1" in amal.get(f"{ONE}-1?tab=profile").text
    split = {"compute": 0.7, "input": 0.3}
    summary = {"span_s": 1.0, "steps": 3, "split": split, "kernels": [{"name": "<gemm>", "seconds": 0.4}]}
    platform.as_("amal").track.attach(run, "profile/summary.json", json.dumps(summary).encode())
    page = amal.get(f"{ONE}-1?tab=profile").main
    assert "waiting for input" in page.text
    assert "<gemm>" in page.text
    platform.as_("amal").track.attach(
        run, "profile/summary.json", b'{"split": [1], "kernels": [{"seconds": "x"}, 4], "span_s": 1}'
    )
    assert amal.get(f"{ONE}-1?tab=profile").status == 200


def test_queues_are_changed_by_the_house_alone(platform: Ground) -> None:
    admin, ola = platform.visitor("admin"), platform.visitor("ola")
    assert not ola.get("/console/queues?at=root/bank").main.all("#change")
    assert admin.press("/console/queues?at=root/bank", "queues", "change", more="weight=3\nlimit.gpu=6").status == 303
    assert "gpu 6" in ola.get("/console/queues?at=root/bank").main.one("#facts").text
    tree = admin.get("/console/queues").main
    assert [row["id"] for row in tree.all("tbody tr")] == [
        "queue-root", "queue-root-bank", "queue-root-clinic", "queue-root-default"
    ]  # fmt: skip
    assert "clinic" not in ola.get("/console/queues").text
    assert ola.get("/console/queues?at=root/clinic").status == 404


def test_a_cluster_shows_every_gpu_and_drains_a_node(platform: Ground) -> None:
    admin = platform.visitor("admin")
    page = admin.get("/console/clusters/hall").main
    assert len(page.all("table.heat tbody td")) == 8
    assert admin.press("/console/clusters/hall", "clusters", "drain", given="node-2").status == 303
    assert admin.get("/console/clusters/hall").main.one("#node-hall-node-2 .badge")["data-state"] == "drained"
    assert admin.press("/console/clusters/hall", "clusters", "open", given="node-2").status == 303
    assert "Health" in admin.get("/console/clusters/hall/node-1").text
    assert admin.get("/console/clusters/hall/nobody").status == 404
    assert not platform.visitor("ola").get("/console/clusters/hall").main.all("form[action=/console/do/clusters/drain]")


def queue(name: str, weight: int = 1, used: str = "0", guarantee: str = "0") -> QueueView:
    return QueueView(name, weight, {"gpu": guarantee}, {}, {}, "high", (), {"gpu": used}, {}, 0, 0, ())


def node(name: str, gpus: int) -> NodeView:
    devices = tuple(Device(number, "H100", 0) for number in range(gpus))
    return NodeView(name, "open", "2", "4GiB", gpus, "H100", {}, 0, "z", {"cpu": 2000}, devices, {})


def test_what_is_fair() -> None:
    both = (queue("root/a", 3, "2", "4"), queue("root/b"))
    gpu, cpu = compute_shares(both, (node("h/1", 4), node("h/2", 4)), queue("root", used="3"))
    assert (gpu.capacity, gpu.used, gpu.others, gpu.free) == (8, {"root/a": 2.0, "root/b": 0.0}, 1.0, 5.0)
    assert cpu.capacity == 4
    assert compute_fair_amounts(gpu) == {"root/a": 4 + 3.0, "root/b": 1.0}
    assert compute_fair_amounts(ResourceShares("gpu", 4, {"a": 0, "b": 0}, {"a": 6, "b": 2}, {"a": 1, "b": 1})) == {
        "a": 3.0,
        "b": 1.0,
    }


def test_percent_of_every_gpu() -> None:
    told = {"h/1": {"0.busy": 50.0, "1.busy": 104.0, "0.memory": 20.0, "0.memory_total": 80.0}}
    assert make_cells((node("h/1", 2), node("h/2", 1)), told, "busy", 2) == [50.0, 100.0, None, None]
    assert make_cells((node("h/1", 2),), told, "memory", 2) == [25.0, None]


def test_figures_are_drawn_by_what_is_measured() -> None:
    names = ("0.busy", "1.busy", "r0.pace", "load")
    found = group_figures([Figure(name, "", 0.0, 0.0, 0.0, (None,)) for name in names])
    assert {name: [who for who, _ in of] for name, of in found.items()} == {
        "busy": ["#0", "#1"], "pace": ["r0"], "load": [""]
    }  # fmt: skip
    assert list_step_times(3600.0, "1h", 2) == [900.0, 2700.0]


def test_where_a_pool_goes() -> None:
    rising = PoolLoad("cpu", 8.0, 0.0, 0.0, 0.0, 0.0, 0.0, (*(hour / 12 for hour in range(72)), None))
    ahead = forecast_pool(rising)
    assert ahead is not None
    assert 22 <= ahead.full(8.0)[0] <= 26
    assert forecast_pool(replace(rising, hours=rising.hours[:30])) is None


def test_what_a_report_draws() -> None:
    row = UsageRow("a", 1, 0.0, 0.0, 0.0, 2.0, 0.0)
    assert choose_measure([row])[0] == "cpu_hours"
    assert choose_measure([row, UsageRow("b", 1, 1.0, 0.0, 0.0, 0.0, 0.0)])[0] == "gpu_hours"
    assert choose_measure([UsageRow("c", 1, 1.0, 0.0, 0.0, 0.0, 5.0)])[0] == "money"


@pytest.mark.parametrize(
    ("line", "wanted", "pieces"),
    [
        ("a Bee b", "b", [("a ", False), ("B", True), ("ee ", False), ("b", True), ("", False)]),
        ("none", "x", [("none", False)]),
        ("İx", "x", [("İx", False)]),  # a letter that grows when it is small: nothing is marked, and nothing is lost
    ],
)
def test_marks_in_a_line(line: str, wanted: str, pieces: list[tuple[str, bool]]) -> None:
    assert list(_split_matches(line, wanted)) == pieces
