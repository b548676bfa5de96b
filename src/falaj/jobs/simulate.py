"""Try a change of queues on what happened: the same jobs, the same nodes, the same scheduler, another tree."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Annotated

from falaj.core.errand import Here, errand
from falaj.core.errors import Invalid
from falaj.fleet.clusters import open_to
from falaj.fleet.errands import read_tree
from falaj.fleet.queues import as_queues, queue_for, tree_of
from falaj.fleet.records import Cluster, NodeView, QueueRule
from falaj.jobs.facts import marks_of
from falaj.jobs.replay import Chronicle, PastJob
from falaj.jobs.report import Report, Row, drawn, tabled
from falaj.jobs.spec import shape_of
from falaj.schedule.model import Job, Node
from falaj.simulator.engine import Engine
from falaj.simulator.outcome import Outcome
from falaj.simulator.replan import POLICIES, replan
from falaj.simulator.trace import Load, Trace, replayed

FAIR = "fair"
NOWHERE = "nowhere"
_UNKNOWN_S = 3600


@errand
def simulate(
    here: Here,
    change: Annotated[str, "a TOML file with the queues to try, as for falaj queues apply; none: as things are"] = "",
    since: Annotated[str, "replay the jobs of so long: 24h, 7d, 90d"] = "7d",
    policy: Annotated[
        str, "what to compare: fair (the scheduler that runs), fifo, las, srtf, srsf; with commas"
    ] = FAIR,
) -> Report:
    """Play the jobs of the last days again, under the queues of today and under those of a file: who gains, who loses.

    The scheduler is the one that runs; nodes are those of now. A file says the whole tree, as for `falaj queues apply`:
    a queue that it does not name is gone. The other policies know no queues; srtf and srsf know how long jobs will run.

    Example:
        falaj jobs simulate --change quota.toml --since 7d
        falaj jobs simulate --policy fair,fifo,srtf
    """
    wanted = list(dict.fromkeys(word.strip() for word in policy.split(",")))
    if strange := [name for name in wanted if name not in (FAIR, *POLICIES)]:
        raise Invalid(f"there is no policy {strange[0][:40]!r}", f"there is {', '.join((FAIR, *POLICIES))}")
    past: Chronicle = here.jobs.history(since)
    clusters = {one.name: one for one in here.clusters.list()}
    shut = {name for name, one in clusters.items() if one.state != "open"}
    views = [view for view in here.clusters.nodes() if view.state == "open"]
    nodes = [node for view in views if (node := _node(view)).cluster not in shut]
    if not past.jobs or not nodes:
        raise Invalid(f"no job ran in the last {since} that could be played again", "a longer --since, or wait a while")
    trees = {"now": past.rules}
    if change:
        trees["changed"] = tuple(tree_of(read_tree(change)).values())
    outcomes, whose = {}, _whose(past.jobs, trees)
    with here.progress.task("simulate", len(trees) * len(wanted), "policies") as task:
        for name in wanted:
            # Queues are nothing to the other policies: a change of them changes nothing.
            for tree, rules in trees.items() if name == FAIR else [("now", past.rules)]:
                outcomes[tree if name == FAIR else name] = played(past.jobs, rules, nodes, clusters, name, whose)
                task.advance(1)
    lines = [*_summary(outcomes), "", *_queues(outcomes), *_unplayed(trees), "", *_plot(outcomes)]
    return Report("simulate", since, tuple(lines), {name: asdict(one) for name, one in outcomes.items()})


def played(
    jobs: tuple[PastJob, ...],
    rules: tuple[QueueRule, ...],
    nodes: list[Node],
    clusters: Mapping[str, Cluster] | None = None,
    policy: str = FAIR,
    whose: Sequence[str] = (),
) -> Outcome:
    """What would have come of these jobs, counted for whom each is. Budgets begin unspent and never end: only shares
    are played."""
    bare = tuple(replace(rule, budgets=()) for rule in rules)
    start = int(min(job.submitted for job in jobs))
    homes = [_home(job, bare) for job in jobs]
    takes, whose = _guessed(jobs), whose or [home or NOWHERE for home in homes]
    loads = [
        replace(_load(f"job-{n:06}", job, home, start, takes[n], _where(job, clusters or {})), whose=whose[n])
        for n, (job, home) in enumerate(zip(jobs, homes, strict=True))
        if home
    ]
    trace = replayed(nodes, as_queues(bare, {}, {}, 0.0), loads)
    outcome = _run(trace, policy)
    lost = Counter(name for name, home in zip(whose, homes, strict=True) if not home)
    return replace(outcome, never=dict(sorted((lost + Counter(outcome.never)).items())))


def _whose(jobs: Iterable[PastJob], trees: Mapping[str, tuple[QueueRule, ...]]) -> list[str]:
    """By their queues in every tree: those who go from one to another are compared with themselves, and with nobody
    who was there before."""
    ways = [[_home(job, rules) or NOWHERE for rules in trees.values()] for job in jobs]
    return [" -> ".join(dict.fromkeys(way)) for way in ways]


def _run(trace: Trace, policy: str) -> Outcome:
    return Engine(trace).run(policy) if policy == FAIR else replan(trace, policy)


def _home(past: PastJob, rules: tuple[QueueRule, ...]) -> str:
    """Its queue, or where its project goes when that is gone; empty when nothing takes it."""
    leaves = {rule.name for rule in rules} - {rule.name.rpartition("/")[0] for rule in rules}
    if past.queue in leaves:
        return past.queue
    tenant, _, project = past.home.partition("/")
    try:
        return queue_for(rules, tenant, project).name
    except Invalid:
        return ""


def _where(past: PastJob, clusters: Mapping[str, Cluster]) -> tuple[str, ...]:
    """The clusters it may run on; none is any."""
    tenant, wanted = past.home.partition("/")[0], past.spec.cluster
    names = [name for name, one in clusters.items() if open_to(one, tenant) and wanted in ("", name)]
    if not clusters:
        return (wanted,) if wanted else ()
    return () if len(names) == len(clusters) else tuple(names) or ("-",)


def _guessed(jobs: tuple[PastJob, ...]) -> list[float]:
    """How long each runs; of those that have not run, as long as others of their kind, or as they may."""
    kinds: dict[str, list[int]] = {}
    for job in jobs:
        if job.ran_s:
            kinds.setdefault(job.template, []).append(job.ran_s)
    usual = {template: median(times) for template, times in kinds.items()}
    middle = median(usual.values()) if usual else _UNKNOWN_S
    return [float(job.ran_s or usual.get(job.template) or job.spec.limit_s or middle) for job in jobs]


def _load(name: str, past: PastJob, queue: str, start: int, takes: float, clusters: tuple[str, ...]) -> Load:
    spec = past.spec
    job = Job(
        name, queue, shape_of(spec, past.band, past.zones, clusters), int(past.submitted) - start, past.template,
        limit_s=spec.limit_s, steps=spec.steps, resumes=spec.resumes, save_s=spec.save_s, restart_s=spec.restart_s,
    )  # fmt: skip
    return Load(job, takes, loses=not spec.resumes)


def _node(view: NodeView) -> Node:
    cluster = view.node.partition("/")[0]
    return Node(view.node, cluster, view.zone, view.amounts, view.devices, view.labels, **marks_of(view.labels))


def _summary(outcomes: Mapping[str, Outcome]) -> list[str]:
    rows: list[Row] = [
        (
            name, one.jobs, sum(one.never.values()) or "", _time(one.jct_mean), _time(one.jct_p50), _time(one.jct_p99),
            _time(one.wait_mean), _time(one.makespan), f"{one.used:.0%}", one.evictions, f"{one.fairness:.2f}",
        )
        for name, one in outcomes.items()
    ]  # fmt: skip
    return tabled(
        ("queues or policy", "jobs", "never start", "mean time", "median", "p99", "mean wait", "makespan", "GPUs used",
         "evictions", "fairness"), rows,
    )  # fmt: skip


def _queues(outcomes: Mapping[str, Outcome]) -> list[str]:
    if "now" not in outcomes:
        return []
    now, other = outcomes["now"], outcomes.get("changed", outcomes["now"])
    names = {*now.queues, *other.queues, *now.never, *other.never}
    rows: list[Row] = []
    for name in sorted(names, key=lambda one: (other.queues.get(one, 0) / max(now.queues.get(one, 0), 1), one)):
        before, after = now.queues.get(name), other.queues.get(name)
        verdict = _verdict(name, now, other) if "changed" in outcomes else _stuck(now.never.get(name, 0))
        rows.append((name, _time(before), _time(after) if "changed" in outcomes else "", verdict))
    return tabled(("queue", "mean time now", "changed", "verdict"), rows)


def _verdict(name: str, now: Outcome, other: Outcome) -> str:
    more = other.never.get(name, 0) - now.never.get(name, 0)
    if more:
        return (
            f"loses: {_stuck(more)}" if more > 0 else f"gains: {-more} {'job starts' if more == -1 else 'jobs start'}"
        )
    before, after = now.queues.get(name), other.queues.get(name)
    if not before or not after:
        return _stuck(other.never.get(name, 0))
    part = after / before - 1
    return "the same" if abs(part) < 0.005 else f"{'gains' if part < 0 else 'loses'} {abs(part):.0%}"


def _stuck(count: int) -> str:
    return f"{count} {'job never starts' if count == 1 else 'jobs never start'}" if count else ""


def _unplayed(trees: Mapping[str, Iterable[QueueRule]]) -> list[str]:
    """What the file changes and this does not show."""
    now, other = ({rule.name: rule.budgets for rule in trees[name]} for name in ("now", list(trees)[-1]))
    names = sorted(name for name in {*now, *other} if now.get(name, ()) != other.get(name, ()))
    return ["", f"budgets are not played: those of {', '.join(names)} change, too"] if names else []


def _plot(outcomes: Mapping[str, Outcome]) -> list[str]:
    longest = max(one.spread[-1] for one in outcomes.values())
    unit, scale = next(
        (pair for pair in (("days", 86_400), ("hours", 3600), ("minutes", 60)) if longest > 2 * pair[1]), ("s", 1)
    )
    curves = [
        (name, [(5.0 * part, took / scale) for part, took in enumerate(one.spread)]) for name, one in outcomes.items()
    ]
    return [f"completion time in {unit}, by percent of the jobs that ended", *drawn(curves).split("\n")]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
