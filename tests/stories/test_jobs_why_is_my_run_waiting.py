"""why_is_my_run_waiting: one reason, the smallest change that starts it, and making that change does start it."""

import shlex
from pathlib import Path

from falaj.core.errors import Invalid
from tests.jobs.lab import Lab
from tests.town import refusal


def test_why_is_my_run_waiting(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        lab.one_node(cpus=4000)
        lab.here.queues.add("root/lab", projects=("house/lab",), limit={"cpu": "2"})
        first = lab.submit("import time; time.sleep(600)", "first", project="lab", cpus=1)
        lab.until(first, lambda job: job.state == "running")
        second = lab.submit("print('here')", "second", project="lab", cpus=2)
        why = lab.here.jobs.why(second.ref)
        assert (why.state, why.reason) == ("waiting", "limit")
        assert why.commands, why
        listed = lab.here.jobs.list(state="waiting", more={"why": "yes", "name": "sec", "by": second.author}).jobs
        assert [(one.ref, one.note) for one in listed] == [(second.ref, why.text)]
        assert lab.here.jobs.list(more={"by": "somebody"}).jobs == lab.here.jobs.list(more={"name": "ird"}).jobs == ()
        for command in why.commands:
            _, desk, verb, target, *flags = shlex.split(command)
            words = dict(zip(flags[::2], flags[1::2], strict=True))
            if desk == "queues":
                lab.here.queues.change(target, dict([words["--more"].split("=")]))
            else:
                assert verb == "change"
                kinds = {"workers": int, "gpus": float, "cpus": float}
                given = {name.strip("-"): value for name, value in words.items()}
                lab.here.jobs.change(target, **{name: kinds.get(name, str)(value) for name, value in given.items()})
        assert lab.done(second).state == "succeeded"
        lab.here.jobs.cancel(first.ref)
        lab.done(first)


def test_what_can_never_start_is_refused_with_the_nearest_that_can(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        lab.one_node(gpus=2)
        lab.done(lab.submit("print(1)", "first", cpus=1))
        error = refusal(lambda: lab.submit("print(1)", cpus=1, gpus=4))
        assert isinstance(error, Invalid)
        assert "2" in error.hint
        lab.here.clusters.change("local", {"address": "process:?nodes=1&cpus=1000&memory=1024&labels=spot:1"})
        lab.done(lab.submit("print(1)", "second", cpus=1, spot=True))
        error = refusal(lambda: lab.submit("print(1)", cpus=1))
        assert (error.message, error.hint[:6]) == ("only nodes that can be taken away could hold it", "--spot")
        assert "taken away" not in refusal(lambda: lab.submit("print(1)", cpus=4)).message
