"""What people type wrong gets one clear answer, before anything is kept: spec files, trees of queues, flags."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.cli import main
from falaj.core.errors import Invalid, NotFound
from falaj.jobs.spec import is_spec_file, parse_spec
from tests.jobs.lab import Lab, until
from tests.town import refusal

SAID = {
    "roles: 5": "roles is 5",
    "command: 5": "command is 5",
    "command: 'echo \"'": "quotation",
    "env: [a, b]": "env is ['a', 'b']",
    "checkpoint: 5": "checkpoint is 5",
    "inputs: foo": "inputs is 'foo'",
    "after: nobody": "'nobody' is not a reference",
    "more: {gpus: 1}": "no node has any gpus",
    "retries: three": "at `$.retries`",
    "retry_on: 3": "at `$.retry_on`",
    "inputs: {data: 5}": "'5' is not a reference",
    "code: 5": "'5' is not a reference",
    "after: 5": "'5' is not a reference",
    "5: 6": "a job has no 5",
    "gpu_models: 5": "asks for none",
    "command: ''": "no command",
}


@pytest.mark.parametrize("text", SAID)
def test_a_file_that_holds_something_else_is_told_so(tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text if text.startswith("command") else f"{text}\ncommand: echo hello\n")
    with falaj.connect(str(tmp_path / "house")) as here:
        wrong = refusal(lambda: here.jobs.submit(str(file)))
        assert isinstance(wrong, Invalid)
        assert SAID[text] in wrong.message
        assert wrong.hint
        assert here.jobs.list().jobs == ()


def test_one_reference_need_not_stand_in_a_list(tmp_path: Path) -> None:
    with falaj.connect(str(tmp_path / "house")) as here:
        first = here.jobs.submit("true", name="first", cpus=0.1)
        file = tmp_path / "job.yaml"
        file.write_text("command: 'true'\ncpus: 0.1\nafter: job:default/first\n")
        assert here.jobs.submit(str(file)).after == (first.ref,)


def test_a_file_that_is_not_there_and_a_folder_are_no_programs(tmp_path: Path) -> None:
    with falaj.connect(str(tmp_path / "house")) as here:
        assert "cannot be read" in str(refusal(lambda: here.jobs.submit(str(tmp_path / "x.yaml"))))
        assert "is a folder" in str(refusal(lambda: here.jobs.submit(str(tmp_path))))
        assert "there is no command" in str(refusal(lambda: here.jobs.submit("")))
    (tmp_path / "my job.toml").write_text("")
    assert is_spec_file(str(tmp_path / "my job.toml"))
    assert not is_spec_file("python train.py --config a.yaml")


def test_a_command_of_numbers_is_its_words() -> None:
    assert parse_spec({"command": ["sleep", 3]}).command == ("sleep", "3")


def test_an_output_names_no_version(tmp_path: Path) -> None:
    with falaj.connect(str(tmp_path / "house")) as here:
        wrong = refusal(lambda: here.jobs.submit("true", outputs={"x": "dataset:p/n@v1"}))
        assert (type(wrong), wrong.message) == (Invalid, "dataset:p/n@v1 names a version")
        assert "write dataset:p/n" in wrong.hint
        assert here.jobs.list().jobs == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"retries": 2, "retry_on": [0]}, "retry_on is 0"),
        ({"retries": 2, "retry_on": [3, -1]}, "retry_on is 3, -1"),
        ({"retry_on": [3]}, "retries is 0"),
        ({"retries": -1}, "retries is -1"),
        ({"limit": 0}, "limit is 0, which is no time at all"),
        ({"limit": "0.5s"}, "limit is 0.5s"),
        ({"limit": "99999999d"}, "limit_s is"),
        ({"checkpoint": "every=0s"}, "every is 0s"),
        ({"checkpoint": {"save": "99999999d"}}, "save_s is"),
        ({"grace": "2d"}, "grace_s is 172800"),
        ({"steps": -1}, "steps is -1"),
        ({"deadline": float("nan")}, "deadline is nan"),
        ({"memory": "0GiB"}, "needs no memory"),
        ({"gpu_memory": "40GB"}, "asks for none"),
    ],
)
def test_a_number_that_cannot_be_meant_is_told_so(words: dict[str, Any], said: str) -> None:
    error = refusal(lambda: parse_spec({"command": "true", **words}))
    assert isinstance(error, Invalid)
    assert said in error.message
    assert error.hint


def test_numbers_are_checked_for_programs_too(tmp_path: Path) -> None:
    with falaj.connect(str(tmp_path / "house")) as here:
        wrong = refusal(lambda: here.jobs.add("job:a/b", {"command": ["true"], "retries": 1, "retry_on": [0]}))
        assert "retry_on is 0" in wrong.message
        assert "has passed" in refusal(lambda: here.jobs.submit("true", deadline="1000000001")).message
        assert here.jobs.submit("true", cpus=0.1, deadline="6h").spec.deadline > 0


def test_a_deadline_may_be_a_day_or_a_moment_of_it(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("command: [sleep, '0']\ncpus: 0.1\ndeadline: 2999-01-31\n")
    with falaj.connect(str(tmp_path / "house")) as here:
        end = datetime(2999, 2, 1, tzinfo=UTC).timestamp()
        assert here.jobs.submit(str(file)).spec.deadline == end
        moments = ("2999-01-31", "2999-02-01T00:00", "2999-02-01T04:00+04:00")
        assert [here.jobs.submit("true", cpus=0.1, deadline=one).spec.deadline for one in moments] == [end] * 3
        assert "has passed" in refusal(lambda: here.jobs.submit("true", deadline="2020-01-31")).message


def test_clusters_that_are_not_open_to_a_tenant_are_not_told_of(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here:
        here.people.add_tenant("bank", "fatima")
        here.clusters.add("theirs", "process:?nodes=1", more={"tenants": "bank"})
        assert "theirs" not in refusal(lambda: lab.submit("", cluster="nowhere")).hint


def test_a_zone_without_clusters_is_named_with_those_that_have_some(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here:
        here.clusters.add("trial", "process:?nodes=1", more={"tenants": "*"})
        wrong = refusal(lambda: lab.submit("", zone="nowhere"))
        assert (type(wrong), wrong.message) == (Invalid, "no cluster stands in 'nowhere'")
        assert "trial (in home)" in wrong.hint
        wrong = refusal(lambda: lab.submit("", zone="eu", cluster="trial"))
        assert wrong.message == "the cluster trial stands in home, not in 'eu'"


def test_memory_of_gpus_that_nobody_declares_is_told_so(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here:
        here.clusters.change("local", {"address": "process:?nodes=1&cpus=1000&memory=1024&gpus=2&model=A100"})
        with here.working():
            until(here.clusters.nodes, lambda nodes: len(nodes) == 1)
        wrong = refusal(lambda: lab.submit("", gpus=1, gpu_memory="40GB"))
        assert (type(wrong), "declares the memory of its GPUs" in wrong.message) == (Invalid, True)
        assert "--gpu-model A100" in wrong.hint
        address = "process:?nodes=1&cpus=1000&memory=1024&gpus=2&model=A100&gpu_memory=40000"
        here.clusters.change("local", {"address": address})
        with here.working():
            until(here.clusters.nodes, lambda nodes: nodes[0].devices[0].memory_mib == 40000)
        assert "set of nodes" in refusal(lambda: lab.submit("", gpus=1, gpu_memory="80GB")).message
        assert lab.submit("", gpus=1, gpu_memory="40GB").state == "waiting"


CHIEF = {"name": "chief", "cpus": 1}


def test_the_first_role_says_how_it_may_shrink_and_grow() -> None:
    worker = {"name": "worker", "count": 4, "min_workers": 2, "max_workers": 8}
    spec = parse_spec({"command": "true", "roles": [worker, CHIEF]})
    assert (spec.min_workers, spec.max_workers, spec.roles[0].count) == (2, 8, 4)
    beside = parse_spec({"command": "true", "min_workers": 2, "roles": [{"name": "worker", "count": 4}, CHIEF]})
    assert (beside.min_workers, beside.max_workers) == (2, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"roles": [CHIEF, {"name": "worker", "count": 4, "min_workers": 2}]}, "only the first can say it"),
        ({"roles": [{**CHIEF, "max_workers": 2}], "max_workers": 3}, "beside the roles"),
        ({"roles": [CHIEF, {"name": "worker", "count": 4}], "min_workers": 1}, "chief has 1 either way"),
    ],
)
def test_a_width_that_nobody_would_heed_is_told_so(words: dict[str, Any], said: str) -> None:
    error = refusal(lambda: parse_spec({"command": "true", **words}))
    assert isinstance(error, Invalid)
    assert said in error.message
    assert "rank 0" in error.hint


def test_a_job_with_nothing_left_to_shrink_can_be_changed(tmp_path: Path) -> None:
    with falaj.connect(str(tmp_path / "house")) as here:
        roles = [{"name": "worker", "count": 4, "cpus": 0.1}, CHIEF]
        job = here.jobs.add("job:default/a", {"command": ["true"], "roles": roles, "min_workers": 2})
        assert here.jobs.change(job.ref, workers=3).spec.min_workers == 2
        assert here.jobs.change(job.ref, workers=2).spec.min_workers == 0


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"root/a": {"guarantee": 4}}, "the guarantee of root/a is 4"),
        ({"root/a": 5}, "root/a is 5"),
        ({"root/a": {"limit": 3, "limit.gpu": 2}}, "limit is 3"),
        ({"root/a": {"projects": 7}}, "7 is no list of words"),
        ({"root/a": {"budget": [7]}}, "[7] is no list of words"),
        ({"root/a": {"limit": {"gpus": 8}}}, "no node has any gpus"),
    ],
)
def test_a_tree_that_is_none_is_told_so(tmp_path: Path, tree: dict[str, Any], said: str) -> None:
    with falaj.connect(str(tmp_path / "house")) as here:
        wrong = refusal(lambda: here.queues.replace(tree))
        assert isinstance(wrong, Invalid)
        assert said in wrong.message
        assert wrong.hint


def test_questions_about_what_cannot_be(tmp_path: Path) -> None:
    with falaj.connect(str(tmp_path / "house")) as here:
        job = here.jobs.submit("true", name="one", cpus=0.1)
        assert "weird" in str(refusal(lambda: here.jobs.list(state="weird")))
        assert "'foo'" in str(refusal(lambda: here.jobs.list(more={"foo": "bar"})))
        assert isinstance(refusal(lambda: here.jobs.logs(job.ref, attempt=77)), NotFound)
        assert isinstance(refusal(lambda: here.jobs.wait((job.ref,), timeout_s=-1)), Invalid)
        assert isinstance(refusal(lambda: here.jobs.report("usage", most=-2)), Invalid)


@pytest.mark.parametrize("rule", ["", ":required", ":preferred"])
def test_what_no_node_is_in_keeps_no_slots_together(tmp_path: Path, rule: str) -> None:
    lab = Lab(tmp_path)
    file = tmp_path / "job.toml"
    file.write_text(f'command = "true"\ntopology = "moon{rule}"\n')
    with lab.here as here:
        for wrong in (lambda: here.jobs.submit(str(file)), lambda: lab.submit("", topology=f"moon{rule}")):
            assert "in any moon" in refusal(wrong).message, "before any node was seen, too"
        here.jobs.cancel(lab.submit("", "early", topology=f"rack{rule}").ref)
        here.clusters.change("local", {"address": "process:?nodes=2&cpus=1000&memory=1024&labels=row:7"})
        bought = "process:?nodes=0&most=2&cpus=1000&memory=1024&labels=aisle:3"
        here.clusters.add("pool", bought, more={"tenants": "*"})
        with here.working():
            until(here.clusters.nodes, lambda nodes: len(nodes) == 2)
            until(here.clusters.scaling, lambda kinds: len(kinds) == 1)
        for level in ("moon", "rack"):
            error = refusal(lambda level=level: lab.submit("", topology=f"{level}{rule}"))
            assert (type(error), f"in any {level}" in error.message) == (Invalid, True)
            assert "node, island, cluster, zone, aisle" in error.hint
            assert "row" in error.hint
        for level in ("node", "island", "cluster", "zone", "row", "aisle"):
            lab.submit("", level, topology=f"{level}{rule}")
        error = refusal(lambda: lab.submit("", topology=f"aisle{rule}", cluster="local"))
        assert "in any aisle" in error.message, "which only nodes of another cluster are in"
        assert isinstance(refusal(lambda: here.jobs.loosen("job:default/row", {"topology": "moon"})), Invalid)
        assert here.jobs.loosen("job:default/row", {"topology": "any"}).spec.topology == ""


def test_the_exit_code_says_how_those_ended_that_were_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab(tmp_path)
    with lab.here:
        for name in ("good", "bad"):
            lab.submit(f"import sys; sys.exit({int(name == 'bad')})", name)
    at = ["--at", str(tmp_path / "house")]
    assert main([*at, "jobs", "wait", "job:default/good"]) == 0
    assert main([*at, "jobs", "wait", "job:default/good", "job:default/bad"]) == 1
    assert "failed" in capsys.readouterr().out
    with falaj.connect(at[1]) as here:
        here.jobs.submit("sleep 600", name="long", cpus=0.1)
    assert main([*at, "jobs", "wait", "job:default/long", "--timeout-s", "0.3"]) == 1


def test_a_value_with_a_dash_is_shown_how_to_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--at", str(tmp_path / "house"), "jobs", "submit", "true", "--limit", "-2h"]) == 2
    assert "--limit=-" in capsys.readouterr().err
