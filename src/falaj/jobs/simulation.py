"""Try a change of queues on what happened: the same jobs, the same nodes, the same scheduler, another tree."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Annotated

from falaj.core.client_command import Client, client_command
from falaj.core.errors import Invalid
from falaj.fleet.client_commands import read_queue_file
from falaj.fleet.clusters import is_open_to
from falaj.fleet.queues import find_queue, parse_tree, to_scheduler_queues
from falaj.fleet.records import Cluster, NodeView, QueueRule
from falaj.jobs.job_history import JobHistory, PastJob
from falaj.jobs.report import TableRow, TerminalReport, draw_curves, format_table
from falaj.jobs.scheduler_facts import parse_node_labels
from falaj.jobs.spec import to_job_shape
from falaj.schedule.model import Job, Node
from falaj.simulator.baseline_policies import POLICIES, replan_trace
from falaj.simulator.outcome import SimulationOutcome
from falaj.simulator.replay_engine import ReplayEngine
from falaj.simulator.trace import Trace, TraceJob, build_trace

FAIR_POLICY = "fair"
NO_QUEUE = "nowhere"
_UNKNOWN_S = 3600


@client_command
def simulate(
    client: Client,
    change: Annotated[str, "a TOML file with the queues to try, as for falaj queues apply; none: as things are"] = "",
    since: Annotated[str, "replay the jobs of so long: 24h, 7d, 90d"] = "7d",
    policy: Annotated[
        str, "what to compare: fair (the scheduler that runs), fifo, las, srtf, srsf; with commas"
    ] = FAIR_POLICY,
) -> TerminalReport:
    """Play the jobs of the last days again, under the queues of today and under those of a file: who gains, who loses.

    The scheduler is the one that runs; nodes are those of now. A file says the whole tree, as for `falaj queues apply`:
    a queue that it does not name is gone. The other policies know no queues; srtf and srsf know how long jobs will run.

    Example:
        falaj jobs simulate --change quota.toml --since 7d
        falaj jobs simulate --policy fair,fifo,srtf
    """
    policies = list(dict.fromkeys(word.strip() for word in policy.split(",")))
    if unknown := [name for name in policies if name not in (FAIR_POLICY, *POLICIES)]:
        raise Invalid(f"there is no policy {unknown[0][:40]!r}", f"there is {', '.join((FAIR_POLICY, *POLICIES))}")
    history: JobHistory = client.jobs.history(since)
    clusters = {entry.name: entry for entry in client.clusters.list()}
    closed_clusters = {name for name, entry in clusters.items() if entry.state != "open"}
    views = [view for view in client.clusters.nodes() if view.state == "open"]
    nodes = [node for view in views if (node := _to_node(view)).cluster not in closed_clusters]
    if not history.jobs or not nodes:
        raise Invalid(f"no job ran in the last {since} that could be played again", "a longer --since, or wait a while")
    trees = {"now": history.rules}
    if change:
        trees["changed"] = tuple(parse_tree(read_queue_file(change)).values())
    outcomes, queue_paths = {}, _list_queue_paths(history.jobs, trees)
    with client.progress.task("simulate", len(trees) * len(policies), "policies") as task:
        for name in policies:
            # Queues are nothing to the other policies: a change of them changes nothing.
            for tree, rules in trees.items() if name == FAIR_POLICY else [("now", history.rules)]:
                outcomes[tree if name == FAIR_POLICY else name] = simulate_jobs(
                    history.jobs, rules, nodes, clusters, name, queue_paths
                )
                task.advance(1)
    lines = [
        *_build_summary_table(outcomes),
        "",
        *_build_queue_table(outcomes),
        *_list_unsimulated_changes(trees),
        "",
        *_plot_completion(outcomes),
    ]
    return TerminalReport("simulate", since, tuple(lines), {name: asdict(entry) for name, entry in outcomes.items()})


def simulate_jobs(
    jobs: tuple[PastJob, ...],
    rules: tuple[QueueRule, ...],
    nodes: list[Node],
    clusters: Mapping[str, Cluster] | None = None,
    policy: str = FAIR_POLICY,
    queue_paths: Sequence[str] = (),
) -> SimulationOutcome:
    """What would have come of these jobs, counted for whom each is. Budgets begin unspent and never end: only shares
    are played."""
    rules_without_budgets = tuple(replace(rule, budgets=()) for rule in rules)
    start = int(min(job.submitted for job in jobs))
    queue_names = [_find_queue(job, rules_without_budgets) for job in jobs]
    runtimes, queue_paths = _guess_runtimes(jobs), queue_paths or [queue_name or NO_QUEUE for queue_name in queue_names]
    loads = [
        replace(
            _to_trace_job(
                f"job-{job_number:06}",
                job,
                queue_name,
                start,
                runtimes[job_number],
                _list_allowed_clusters(job, clusters or {}),
            ),
            whose=queue_paths[job_number],
        )
        for job_number, (job, queue_name) in enumerate(zip(jobs, queue_names, strict=True))
        if queue_name
    ]
    trace = build_trace(nodes, to_scheduler_queues(rules_without_budgets, {}, {}, 0.0), loads)
    outcome = _run_policy(trace, policy)
    lost_counts = Counter(name for name, queue_name in zip(queue_paths, queue_names, strict=True) if not queue_name)
    return replace(outcome, never=dict(sorted((lost_counts + Counter(outcome.never)).items())))


def _list_queue_paths(jobs: Iterable[PastJob], trees: Mapping[str, tuple[QueueRule, ...]]) -> list[str]:
    """By their queues in every tree: those who go from one to another are compared with themselves, and with nobody
    who was there before."""
    queue_paths = [[_find_queue(job, rules) or NO_QUEUE for rules in trees.values()] for job in jobs]
    return [" -> ".join(dict.fromkeys(queue_path)) for queue_path in queue_paths]


def _run_policy(trace: Trace, policy: str) -> SimulationOutcome:
    return ReplayEngine(trace).run(policy) if policy == FAIR_POLICY else replan_trace(trace, policy)


def _find_queue(past_job: PastJob, rules: tuple[QueueRule, ...]) -> str:
    """Its queue, or where its project goes when that is gone; empty when nothing takes it."""
    leaves = {rule.name for rule in rules} - {rule.name.rpartition("/")[0] for rule in rules}
    if past_job.queue in leaves:
        return past_job.queue
    tenant, _, project = past_job.home.partition("/")
    try:
        return find_queue(rules, tenant, project).name
    except Invalid:
        return ""


def _list_allowed_clusters(past_job: PastJob, clusters: Mapping[str, Cluster]) -> tuple[str, ...]:
    """The clusters it may run on; none is any."""
    tenant, cluster_name = past_job.home.partition("/")[0], past_job.spec.cluster
    names = [name for name, cluster in clusters.items() if is_open_to(cluster, tenant) and cluster_name in ("", name)]
    if not clusters:
        return (cluster_name,) if cluster_name else ()
    return () if len(names) == len(clusters) else tuple(names) or ("-",)


def _guess_runtimes(jobs: tuple[PastJob, ...]) -> list[float]:
    """How long each runs; of those that have not run, as long as others of their kind, or as they may."""
    runtimes_by_template: dict[str, list[int]] = {}
    for job in jobs:
        if job.ran_s:
            runtimes_by_template.setdefault(job.template, []).append(job.ran_s)
    usual = {template: median(times) for template, times in runtimes_by_template.items()}
    typical = median(usual.values()) if usual else _UNKNOWN_S
    return [float(job.ran_s or usual.get(job.template) or job.spec.limit_s or typical) for job in jobs]


def _to_trace_job(
    name: str, past_job: PastJob, queue: str, start: int, work_s: float, clusters: tuple[str, ...]
) -> TraceJob:
    spec = past_job.spec
    job = Job(
        name,
        queue,
        to_job_shape(spec, past_job.band, past_job.zones, clusters),
        int(past_job.submitted) - start,
        past_job.template,
        limit_s=spec.limit_s,
        steps=spec.steps,
        resumes=spec.resumes,
        save_s=spec.save_s,
        restart_s=spec.restart_s,
    )
    return TraceJob(job, work_s, loses=not spec.resumes)


def _to_node(view: NodeView) -> Node:
    cluster = view.node.partition("/")[0]
    return Node(
        view.node, cluster, view.zone, view.amounts, view.devices, view.labels, **parse_node_labels(view.labels)
    )


def _build_summary_table(outcomes: Mapping[str, SimulationOutcome]) -> list[str]:
    rows: list[TableRow] = [
        (
            name,
            outcome.jobs,
            sum(outcome.never.values()) or "",
            _format_duration(outcome.jct_mean),
            _format_duration(outcome.jct_p50),
            _format_duration(outcome.jct_p99),
            _format_duration(outcome.wait_mean),
            _format_duration(outcome.makespan),
            f"{outcome.used:.0%}",
            outcome.evictions,
            f"{outcome.fairness:.2f}",
        )
        for name, outcome in outcomes.items()
    ]
    return format_table(
        (
            "queues or policy",
            "jobs",
            "never start",
            "mean time",
            "median",
            "p99",
            "mean wait",
            "makespan",
            "GPUs used",
            "evictions",
            "fairness",
        ),
        rows,
    )


def _build_queue_table(outcomes: Mapping[str, SimulationOutcome]) -> list[str]:
    if "now" not in outcomes:
        return []
    current, other = outcomes["now"], outcomes.get("changed", outcomes["now"])
    names = {*current.queues, *other.queues, *current.never, *other.never}
    rows: list[TableRow] = []
    for name in sorted(
        names,
        key=lambda queue_name: (
            other.queues.get(queue_name, 0) / max(current.queues.get(queue_name, 0), 1),
            queue_name,
        ),
    ):
        before, after = current.queues.get(name), other.queues.get(name)
        verdict = (
            _describe_change(name, current, other)
            if "changed" in outcomes
            else _describe_unstarted(current.never.get(name, 0))
        )
        rows.append((name, _format_duration(before), _format_duration(after) if "changed" in outcomes else "", verdict))
    return format_table(("queue", "mean time now", "changed", "verdict"), rows)


def _describe_change(name: str, current: SimulationOutcome, other: SimulationOutcome) -> str:
    more_unstarted = other.never.get(name, 0) - current.never.get(name, 0)
    if more_unstarted:
        return (
            f"loses: {_describe_unstarted(more_unstarted)}"
            if more_unstarted > 0
            else f"gains: {-more_unstarted} {'job starts' if more_unstarted == -1 else 'jobs start'}"
        )
    before, after = current.queues.get(name), other.queues.get(name)
    if not before or not after:
        return _describe_unstarted(other.never.get(name, 0))
    change_share = after / before - 1
    return (
        "the same"
        if abs(change_share) < 0.005
        else f"{'gains' if change_share < 0 else 'loses'} {abs(change_share):.0%}"
    )


def _describe_unstarted(count: int) -> str:
    return f"{count} {'job never starts' if count == 1 else 'jobs never start'}" if count else ""


def _list_unsimulated_changes(trees: Mapping[str, Iterable[QueueRule]]) -> list[str]:
    """What the file changes and this does not show."""
    current, other = ({rule.name: rule.budgets for rule in trees[name]} for name in ("now", list(trees)[-1]))
    names = sorted(name for name in {*current, *other} if current.get(name, ()) != other.get(name, ()))
    return ["", f"budgets are not played: those of {', '.join(names)} change, too"] if names else []


def _plot_completion(outcomes: Mapping[str, SimulationOutcome]) -> list[str]:
    longest = max(outcome.spread[-1] for outcome in outcomes.values())
    unit, scale = next(
        (pair for pair in (("days", 86_400), ("hours", 3600), ("minutes", 60)) if longest > 2 * pair[1]), ("s", 1)
    )
    curves = [
        (name, [(5.0 * twentieth, completion_s / scale) for twentieth, completion_s in enumerate(outcome.spread)])
        for name, outcome in outcomes.items()
    ]
    return [f"completion time in {unit}, by percent of the jobs that ended", *draw_curves(curves).split("\n")]


def _format_duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
