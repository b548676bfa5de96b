"""What a job that waits is told, with names that people know and commands that can be typed."""

from pathlib import Path

from falaj.core.errors import Invalid
from falaj.fleet.elastic_capacity import WAITS_KEY
from falaj.fleet.fleet_use import make_system_context
from tests.jobs.lab import Lab, until
from tests.town import refusal


def test_each_is_told_what_to_type(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here, here.working():
        lab.one_node()
        until(here.clusters.nodes, lambda nodes: len(nodes) == 1 and nodes[0].cpu == "1")
        here.queues.change("root/default", {"top_band": "normal"})
        first = lab.submit("import time; time.sleep(600)", "first", cpus=1)
        lab.until(first, lambda job: job.state == "running")
        second = lab.submit("print(1)", "second", cpus=0.1)
        why = here.jobs.why(second.ref)
        assert why.commands == (f"falaj jobs cancel {first.ref}",), why
        assert str(first.ref) in why.fix
        third = lab.submit("print(1)", "third", after=(second.ref,))
        assert here.jobs.why(third.ref).text == f"waits for {second.ref} (waiting)"
        assert lab.show(third).note == f"waits for {second.ref}"
        here.clusters.drain("local/node-1")
        here.jobs.cancel(first.ref)
        lab.done(first)
        assert here.jobs.why(second.ref).commands == ("falaj clusters open local/node-1",)
        here.clusters.open("local/node-1")
        assert lab.done(second, third).state == "succeeded"


def test_where_nobody_looked_yet_nothing_is_impossible(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here:
        with here.working():
            until(here.clusters.nodes, lambda nodes: len(nodes) == 1)
        here.zones.add("hall", "AE-DU", "AE", store=f"dir:{tmp_path}/hall")
        here.clusters.add("new", "agent:hall", "hall")
        for more in ({"zone": "hall"}, {"cluster": "new"}):
            why = here.jobs.why(lab.submit("print(1)", next(iter(more)), cpus=64, **more).ref)
            assert why.text == "new has told of no nodes yet"
        assert isinstance(refusal(lambda: lab.submit("print(1)", cpus=6400, cluster="local")), Invalid)


def test_one_that_rests_is_told_what_happened_to_it(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here, here.working():
        job = lab.submit("raise SystemExit(75)", "again")
        lab.until(job, lambda job: job.state == "waiting" and len(job.attempts) == 2)
        why = here.jobs.why(job.ref)
    assert (why.reason, why.starts_at > 0) == ("backing-off", True), why
    assert why.text.startswith("asked to be tried again, and queued again: rank 0"), why.text


def test_one_that_a_pool_at_zero_could_hold_is_not_called_impossible(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here:
        with here.working():
            here.clusters.add("pool", "process:?nodes=0&most=2&cpus=1000&memory=1024")
            until(here.clusters.scaling, len)
        roles = [{"name": "worker", "count": 2, "cpus": 1}]
        job = here.jobs.add("job:default/a", {"command": ["true"], "cluster": "pool", "roles": roles})
        why = here.jobs.why(job.ref)
    assert (why.reason, why.text) == (
        "capacity",
        "no node is there that could hold it; pool can make some, if it pays",
    )


def test_kinds_of_nodes_elsewhere_are_no_reason(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here:
        with here.working():
            until(here.clusters.nodes, len)
        here.clusters.add("rays", "ray:http://127.0.0.1:1?insecure=loopback")
        job = lab.submit("print(1)", cluster="rays")
        ctx, ledger = here.house.context(here.actor), here.house.ledger
        with ledger.project(make_system_context(ctx)) as tx:
            last, found = tx.key(WAITS_KEY), tx.need(job.ref).body["id"]
            told = {"kind": "", "jobs": {found: "no kind of node would start it"}}
            tx.put(WAITS_KEY, told, rev=last.rev if last else None)
        why = here.jobs.why(job.ref)
    assert (why.reason, why.text) == ("place", "rays has told of no nodes yet"), why


def test_demands_are_taken_back_and_other_roles_changed(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here:
        roles = [{"name": "chief", "cpus": 1}, {"name": "worker", "count": 4, "gpus": 2, "gpu_models": ["H100"]}]
        job = here.jobs.add("job:default/a", {"command": ["true"], "roles": roles, "topology": "rack:required"})
        assert job.width == 5, "slots of all roles"
        wanted = {"role": "worker", "gpus": "1", "workers": "2", "gpu_model": "any", "topology": "any"}
        spec = here.jobs.loosen(job.ref, wanted).spec
        assert (spec.topology, spec.roles[1].count, spec.roles[1].gpus, spec.roles[1].gpu_models) == ("", 2, 1.0, ())
        assert spec.roles[0] == job.spec.roles[0]
        for wrong in ({"role": "nobody"}, {"colour": "red"}, {"gpus": "many"}):
            assert isinstance(refusal(lambda wrong=wrong: here.jobs.loosen(job.ref, wrong)), Invalid)


def test_one_that_a_node_is_too_dear_for_is_told_what_an_hour_must_cost(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here, here.working():
        here.clusters.add("pool", "process:?nodes=0&most=3&cpus=1000&memory=1024&labels=price:2000000")
        here.clusters.tune(hourly=1.0, wait="0s", gap="0s")
        gang = lab.submit("print(1)", "gang", cpus=1, workers=2, cluster="pool")
        until(lambda: here.jobs.why(gang.ref), lambda why: why.commands == ("falaj clusters tune --hourly 4",))
        one = lab.submit("print(1)", "one", cpus=1, cluster="pool")
        why = until(lambda: here.jobs.why(one.ref), lambda why: "money for an hour" in why.text)
        assert why.commands == ("falaj clusters tune --hourly 2",), why
        here.clusters.tune(hourly=2.0)
        assert lab.done(one).state == "succeeded"
