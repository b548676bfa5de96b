"""Try a change of queues on what happened: the same jobs, the same nodes, the same scheduler, another tree."""

from dataclasses import asdict, replace
from typing import Annotated

from falaj.core.errand import Here, errand
from falaj.core.errors import Invalid
from falaj.fleet.errands import read_tree
from falaj.fleet.queues import ROOT, as_queues, described, queue_for
from falaj.fleet.records import NodeView, QueueRule
from falaj.jobs.facts import marks_of
from falaj.jobs.replay import Chronicle, PastJob
from falaj.jobs.report import Report, Row, tabled
from falaj.jobs.spec import shape_of
from falaj.schedule.model import Job, Node
from falaj.simulator.engine import Engine
from falaj.simulator.outcome import Outcome
from falaj.simulator.trace import Load, replayed


@errand
def simulate(
    here: Here,
    change: Annotated[str, "a TOML file with the queues to try, as for falaj queues apply; none: as things are"] = "",
    since: Annotated[str, "replay the jobs of so long: 24h, 7d, 90d"] = "7d",
) -> Report:
    """Play the jobs of the last days again, under the queues of today and under those of a file: who gains, who loses.

    The scheduler is the one that runs; nodes are those of now. A queue that the file does not name stays as it is.

    Example:
        falaj jobs simulate --change quota.toml --since 7d
    """
    past: Chronicle = here.jobs.history(since)
    nodes = [_node(view) for view in here.clusters.nodes() if view.state == "open"]
    if not past.jobs or not nodes:
        raise Invalid(f"no job ran in the last {since} that could be played again", "a longer --since, or wait a while")
    trees = {"now": past.rules}
    if change:
        trees["changed"] = changed(past.rules, read_tree(change))
    outcomes = {}
    with here.progress.task("simulate", len(trees), "trees") as task:
        for name, rules in trees.items():
            outcomes[name] = played(past.jobs, rules, nodes)
            task.advance(1)
    lines = [*_summary(outcomes), "", *_queues(outcomes)]
    return Report("simulate", since, tuple(lines), {name: asdict(one) for name, one in outcomes.items()})


def changed(rules: tuple[QueueRule, ...], words: dict[str, dict[str, object]]) -> tuple[QueueRule, ...]:
    """The tree with the queues of a file in the place of those of the same name, and the new ones."""
    tree = {rule.name: rule for rule in rules}
    for name in sorted(words):
        tree[name] = described(tree.get(name, QueueRule(name)), words[name])
    hanging = [name for name in tree if name != ROOT and name.rpartition("/")[0] not in tree]
    if hanging:
        raise Invalid(f"{hanging[0]} would hang in the air", "name the queue above it, too")
    return tuple(tree[name] for name in sorted(tree))


def played(jobs: tuple[PastJob, ...], rules: tuple[QueueRule, ...], nodes: list[Node]) -> Outcome:
    """What would have come of these jobs. Budgets begin unspent and never end: only shares are played."""
    bare = tuple(replace(rule, budgets=()) for rule in rules)
    start = int(min(job.submitted for job in jobs))
    loads = [_load(f"job-{n:06}", job, bare, start) for n, job in enumerate(jobs)]
    return Engine(replayed(nodes, as_queues(bare, {}, {}, 0.0), loads)).run()


def _load(name: str, past: PastJob, rules: tuple[QueueRule, ...], start: int) -> Load:
    leaves = {rule.name for rule in rules} - {rule.name.rpartition("/")[0] for rule in rules}
    tenant, _, project = past.home.partition("/")
    queue = past.queue if past.queue in leaves else queue_for(rules, tenant, project).name
    spec = past.spec
    job = Job(
        name, queue, shape_of(spec, past.band, past.zones), int(past.submitted) - start, past.template,
        limit_s=spec.limit_s, steps=spec.steps, resumes=spec.resumes, save_s=spec.save_s, restart_s=spec.restart_s,
    )  # fmt: skip
    return Load(job, past.ran_s, loses=not spec.resumes)


def _node(view: NodeView) -> Node:
    cluster = view.node.partition("/")[0]
    return Node(view.node, cluster, view.zone, view.amounts, view.devices, view.labels, **marks_of(view.labels))


def _summary(outcomes: dict[str, Outcome]) -> list[str]:
    rows: list[Row] = [
        (
            name, one.jobs, _time(one.jct_mean), _time(one.jct_p99), _time(one.wait_mean), f"{one.used:.0%}",
            one.evictions, f"{one.fairness:.2f}",
        )
        for name, one in outcomes.items()
    ]  # fmt: skip
    return tabled(("queues", "jobs", "mean time", "p99", "mean wait", "GPUs used", "evictions", "fairness"), rows)


def _queues(outcomes: dict[str, Outcome]) -> list[str]:
    now, other = outcomes["now"].queues, outcomes.get("changed", outcomes["now"]).queues
    rows: list[Row] = []
    for name in sorted({*now, *other}, key=lambda one: other.get(one, 0) / max(now.get(one, 0), 1)):
        before, after = now.get(name), other.get(name)
        verdict = ""
        if "changed" in outcomes and before and after:
            part = after / before - 1
            verdict = "the same" if abs(part) < 0.005 else f"{'gains' if part < 0 else 'loses'} {abs(part):.0%}"
        rows.append((name, _time(before), _time(after) if "changed" in outcomes else "", verdict))
    return tabled(("queue", "mean time now", "changed", "verdict"), rows)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
