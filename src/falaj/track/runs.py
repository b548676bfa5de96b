"""Runs: start, log, end; show, list, compare them and read their curves."""

import math
import re
import uuid
from collections.abc import Mapping
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.store.codec import to_plain
from falaj.store.ledger import LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.track.comparison import compare_runs
from falaj.track.metric_points import MAX_STEP, CurveSpan, MetricPoint
from falaj.track.metric_store import to_metrics
from falaj.track.record_views import build_run_terms, to_run
from falaj.track.records import (
    FINISHED_STATUSES,
    RUN_STATUSES,
    Curve,
    Metric,
    Run,
    RunComparison,
    RunCurve,
    RunPage,
    RunTable,
    TableWindow,
    UsedData,
)
from falaj.track.tracking_base import MAX_PARAMS, MAX_TAGS, TrackingBase, check_key, check_texts, check_title

MAX_POINTS, MAX_INPUTS, MAX_COMPARED_RUNS, MAX_CURVES = 10_000, 1_000, 100, 500
MAX_RECENT_RUNS, RECENT_RUNS_SCANNED = 100, 500
"""Newest runs at once; and so many are looked through for one's own."""
MAX_PAGE, MAX_CURVE_POINTS, MAX_BINS, MAX_TABLE_CELLS = 50_000, 25_000, 10_000, 100_000
_RUN_ID_PATTERN = re.compile(r"[0-9a-f]{32}")


class RunOperations(TrackingBase):
    """What runs say, and what is asked of them."""

    @operation(writes=("experiment",), reads=("inputs",))
    def start(
        self,
        ctx: CallContext,
        experiment: Annotated[Ref, "of which experiment"],
        title: Annotated[str, "what people read"] = "",
        tags: Annotated[dict[str, str] | None, "tags, by name"] = None,
        params: Annotated[dict[str, str] | None, "parameters, by name; written once"] = None,
        started: Annotated[float, "when it began, in seconds since the epoch; now when left out"] = 0.0,
        run: Annotated[str, "the id to keep, 32 hexadecimal digits, of a run that was recorded elsewhere"] = "",
        inputs: Annotated[dict[str, Ref] | None, "what it uses, by role; it carries their labels"] = None,
    ) -> Run:
        """Start a run. The same id again gives the same run.

        Example:
            falaj track start experiment:fraud/scoring --params lr=0.1 --inputs data=dataset:fraud/tx
        """
        if run and not _RUN_ID_PATTERN.fullmatch(run):
            raise Invalid(f"{run[:80]!r} is no id of a run", "32 hexadecimal digits, in small letters")
        input_refs = inputs or {}
        with self._ledger.write(ctx) as writer:
            experiment_record = self._require_experiment(writer, experiment)
            existing = writer.find("run", terms={"id": run}, limit=1).records if run else ()
            if existing:
                return self._to_run(_require_same_experiment(existing[0], experiment_record))
            if run and ctx.actor.kind == "workload" and ctx.label is not None and not ctx.label.is_open:
                # Lists show the id, and the code that would choose it reads labelled data.
                raise Denied("a job that reads labelled data may not choose the id of a run", "leave the id out")
            if experiment_record.body["state"] != "active":
                raise Invalid(f"{experiment.bare} is deleted", f"falaj track restore {experiment.bare}", experiment)
            name = run or uuid.uuid4().hex
            used_data = [
                UsedData(role, source_type="falaj", source=str(ref), ref=ref) for role, ref in input_refs.items()
            ]
            body: dict[str, Any] = {
                "id": name,
                "experiment": str(experiment.bare),
                "experiment_id": experiment_record.body["id"],
                "title": check_title(title) or f"run-{name[:8]}",
                "status": "running",
                "state": "active",
                "started": started or ctx.now(),
                "ended": 0.0,
                "params": _check_count("param", params, MAX_PARAMS),
                "tags": _check_count("tag", tags, MAX_TAGS),
                "inputs": to_plain(used_data),
            }
            record = writer.put(Ref("run", experiment.project, name), body, terms=build_run_terms(body))
            self._update_index_after(writer, record)
            writer.emit("track.start", record.ref, tuple(input_refs.values()), experiment=str(experiment.bare))
        return to_run(record, {})

    @operation(writes=("run",))
    def log(
        self,
        ctx: CallContext,
        run: Annotated[Ref, "which run"],
        metrics: Annotated[tuple[Metric, ...], "points"] = (),
        params: Annotated[dict[str, str] | None, "parameters; one that is set keeps its value"] = None,
        tags: Annotated[dict[str, str] | None, "tags to set"] = None,
        drop: Annotated[tuple[str, ...], "tags to take off"] = (),
    ) -> int:
        """Log points, parameters and tags of a run; gives how many.

        The same point again is kept once, so what may not have arrived can be sent again.

        Example:
            falaj track log run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --params lr=0.1
            falaj track log run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --metrics '{"key": "loss", "value": 0.4}'
        """
        points = _to_points(metrics, ctx.now())
        with self._ledger.write(ctx) as writer:
            record = self._require_active_run(writer, run)
            if params and (withheld_marker := ctx.withheld(record)):
                # A parameter is written once, so whether one can be written tells what it is.
                raise Denied(withheld_marker, "log metrics or tags, or start another run", run)
            if params or tags or drop:
                record = self._update_texts(writer, record, params or {}, tags or {}, drop)
            if points:
                self.measures.stage(writer, ctx, record, points)
            writer.emit(
                "track.log", record.ref, metrics=len(points), params=len(params or ()), tags=len(tags or ()) + len(drop)
            )
        return len(points) + len(params or ()) + len(tags or ()) + len(drop)

    @operation(writes=("run",))
    def end(
        self,
        ctx: CallContext,
        run: Annotated[Ref, "which run"],
        status: Annotated[str, "finished, failed, killed, running or scheduled; kept when empty"] = "finished",
        ended: Annotated[float, "when, in seconds since the epoch; now when left out"] = 0.0,
        title: Annotated[str, "a new title; kept when left out"] = "",
    ) -> Run:
        """End a run, or say that it goes on after all.

        Example:
            falaj track end run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --status failed
        """
        with self._ledger.write(ctx) as writer:
            old_run = self._require_active_run(writer, run)
            new_status = status or old_run.body["status"]
            if new_status not in RUN_STATUSES:
                raise Invalid(f"{status[:40]!r} is no status", f"one of {', '.join(RUN_STATUSES)}", run)
            has_ended = new_status in FINISHED_STATUSES
            ended_at = ended or (old_run.body["ended"] if not status else 0.0) or ctx.now()
            changes = {
                "status": new_status,
                "ended": ended_at if has_ended else ended,
                "title": check_title(title) or old_run.body["title"],
            }
            record = self._save_run(writer, old_run, changes)
            self._emit_ended(writer, record)
        return self._to_run(record)

    def finish(self, ctx: CallContext, run: Ref, status: str) -> None:
        """The same for a desk that ends its own runs and reads nothing of them back."""
        with self._ledger.write(ctx) as writer:
            # Also one that somebody deleted: what it stands for is over all the same.
            self._emit_ended(
                writer, self._save_run(writer, self._require_run(writer, run), {"status": status, "ended": ctx.now()})
            )

    @operation(writes=("run",), reads=("inputs",))
    def use(
        self,
        ctx: CallContext,
        run: Annotated[Ref, "which run"],
        data: Annotated[tuple[UsedData, ...], "what it used; a `ref` in one of them must be among the inputs"] = (),
        inputs: Annotated[tuple[Ref, ...], "those of them that are ours; the run carries their labels"] = (),
    ) -> Run:
        """Say what data a run used. What is ours becomes part of its lineage and of its label.

        Example:
            falaj track use run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --inputs dataset:fraud/tx@v3
        """
        refs_by_name = {ref.bare: ref for ref in inputs}
        unnamed_refs = [
            used_data.ref for used_data in data if used_data.ref is not None and used_data.ref.bare not in refs_by_name
        ]
        if unnamed_refs:
            raise Invalid(
                f"{unnamed_refs[0]} is not among the inputs",
                "name it there, so that the guard can ask",
                unnamed_refs[0],
            )
        mentioned_refs = {used_data.ref.bare for used_data in data if used_data.ref is not None}
        further_refs = [ref for ref in inputs if ref.bare not in mentioned_refs]
        data += tuple(UsedData(ref.name, source_type="falaj", source=str(ref), ref=ref) for ref in further_refs)
        new_inputs = [{**to_plain(used_data), **_pin_reference(used_data, refs_by_name)} for used_data in data]
        with self._ledger.write(ctx) as writer:
            old_run = self._require_active_run(writer, run)
            # The guard asked about the caller's zone; the run, and all that it leaves behind, lie in their own.
            ctx.permit("write", str(run.bare), old_run.zone or ctx.zone)
            merged_inputs = [
                *old_run.body["inputs"],
                *(used_data for used_data in new_inputs if used_data not in old_run.body["inputs"]),
            ]
            if len(merged_inputs) > MAX_INPUTS:
                raise Invalid(f"{len(merged_inputs)} inputs of one run", f"at most {MAX_INPUTS}", run)
            record = self._save_run(writer, old_run, {"inputs": merged_inputs})
            writer.emit("track.use", record.ref, inputs)
            if inputs:
                self._join_output_labels(writer, record, inputs)
        return self._to_run(record)

    @operation(reads=("run",))
    def show(self, ctx: CallContext, run: Annotated[Ref, "which run"]) -> Run:
        """Show a run: parameters, tags, inputs, and the newest of each metric.

        Example:
            falaj track show run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        with self._ledger.read(ctx) as reader:
            record = self._require_run(reader, run)
        return self._to_run(record)

    @operation(reads=("experiments",))
    def list(
        self,
        ctx: CallContext,
        experiments: Annotated[tuple[Ref, ...], "of these experiments; of all when left out"] = (),
        project: Annotated[str, "of one project only"] = "",
        where: Annotated[str, "which, as in: metrics.acc > 0.9 and params.model = 'tree'"] = "",
        order: Annotated[tuple[str, ...], "by what, as in: metrics.acc DESC; newest first when left out"] = (),
        state: Annotated[str, "active, deleted or all"] = "active",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> RunPage:
        """List the runs you may see, by what they were told and what they measured.

        Example:
            falaj track list --where "metrics.auc >= 0.9 and params.model = 'tree'" --order "metrics.auc DESC"
        """
        if not 0 < limit <= MAX_PAGE:
            raise Invalid(f"a page of {limit} runs", f"ask for 1 to {MAX_PAGE} and follow `next`")
        return self.board.search(ctx, experiments, (project, where, order, state), after, limit)

    @operation()
    def recent(
        self,
        ctx: CallContext,
        mine: Annotated[bool, "only those that you began"] = True,
        limit: Annotated[int, "how many at most"] = 10,
    ) -> RunPage:
        """Show the newest runs. Only these are read, however many there are: for a look at what goes on.

        Example:
            falaj track recent --limit 5
        """
        if not 0 < limit <= MAX_RECENT_RUNS:
            raise Invalid(f"the {limit} newest runs", f"ask for 1 to {MAX_RECENT_RUNS}; falaj track list shows all")
        records: list[LedgerRecord] = []
        with self._ledger.read(ctx) as reader:
            page = reader.find("run", scopes=ctx.cells("run"), newest_first=True, limit=RECENT_RUNS_SCANNED)
        for record in page.records:
            is_own = (
                record.body["tags"].get("mlflow.user", record.author) == ctx.actor.id or record.author == ctx.actor.id
            )
            if record.body["state"] == "active" and (is_own or not mine) and len(records) < limit:
                records.append(record)
        heads = self.measures.heads_of(ctx.tenant, [record.key.name for record in records])
        return RunPage(tuple([to_run(record, to_metrics(heads.get(record.key.name, {}))) for record in records]))

    @operation(reads=("experiments",))
    def table(
        self,
        ctx: CallContext,
        experiments: Annotated[tuple[Ref, ...], "of these experiments; of all when left out"] = (),
        project: Annotated[str, "of one project only"] = "",
        where: Annotated[str, "which runs, as in: metrics.acc > 0.9"] = "",
        order: Annotated[tuple[str, ...], "by what, as in: metrics.acc DESC; newest first when left out"] = (),
        state: Annotated[str, "active, deleted or all"] = "active",
        columns: Annotated[str, "which columns, as in: status, params.lr, metrics.acc; all when left out"] = "",
        window: Annotated[TableWindow, "which rows and which of the columns"] = TableWindow(),  # noqa: B008 - frozen
    ) -> RunTable:
        """Read a part of the table of runs: some rows, some columns, and how many of both there are.

        Thousands of runs with thousands of metrics are read a screenful at a time.

        Example:
            falaj track table --order "metrics.auc DESC" --columns "params.lr, metrics.auc" --window '{"rows": 20}'
        """
        if (
            min(window.first, window.left, window.rows, window.width) < 0
            or window.rows * window.width > MAX_TABLE_CELLS
        ):
            raise Invalid(
                f"a window of {window.rows} rows and {window.width} columns", f"at most {MAX_TABLE_CELLS} cells at once"
            )
        return self.board.table(ctx, experiments, (project, where, order, state), columns, window)

    @operation(reads=("run",))
    def history(
        self,
        ctx: CallContext,
        run: Annotated[Ref, "which run"],
        metric: Annotated[str, "which metric"],
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many points at most"] = 10_000,
        bins: Annotated[int, "draw the curve in so many bins: lowest, highest and last point of each"] = 0,
        span: Annotated[tuple[float, ...], "only from here to there; both ends, with bins"] = (),
        by: Annotated[str, "step or time: what the span counts"] = "step",
    ) -> Curve:
        """Read the curve of one metric, by step and time; whole in pages, or down-sampled.

        Example:
            falaj track history run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 loss --bins 200
        """
        if not 0 < limit <= MAX_CURVE_POINTS or not 0 <= bins <= MAX_BINS:
            raise Invalid(f"{limit} points in {bins} bins", f"1 to {MAX_CURVE_POINTS} points, at most {MAX_BINS} bins")
        with self._ledger.read(ctx) as reader:
            record = self._require_run(reader, run)
        check_key("metric", metric)
        if span and not bins:
            raise Invalid("a span of a curve in pages", "ask for it with bins, or follow `after`")
        tenant_and_run = (record.key.tenant, record.key.name)
        return self.measures.curve(tenant_and_run, metric, after, limit, bins, _parse_span(span, by))

    @operation(reads=("runs",))
    def curves(
        self,
        ctx: CallContext,
        runs: Annotated[tuple[Ref, ...], "of which runs"],
        metrics: Annotated[tuple[str, ...], "which metrics; a run that has none of one gives an empty curve"],
        bins: Annotated[int, "in so many bins: lowest, highest and last point of each"] = 200,
        span: Annotated[tuple[float, ...], "only from here to there; both ends"] = (),
        by: Annotated[str, "step or time: what the span counts"] = "step",
    ) -> tuple[RunCurve, ...]:
        """Read many curves at once, down-sampled: for every run each of the metrics.

        Example:
            falaj track curves run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --metrics loss,accuracy
        """
        if not 0 < bins <= MAX_BINS or len(runs) * len(metrics) > MAX_CURVES:
            raise Invalid(
                f"{len(runs) * len(metrics)} curves in {bins} bins",
                f"at most {MAX_CURVES} curves in 1 to {MAX_BINS} bins",
            )
        curve_span = _parse_span(span, by)
        for metric in metrics:
            check_key("metric", metric)
        with self._ledger.read(ctx) as reader:
            records = [self._require_run(reader, run) for run in runs]
        return tuple(
            RunCurve(record.ref.bare, curve)
            for record in records
            for curve in self.measures.curves((record.key.tenant, record.key.name), metrics, bins, curve_span)
        )

    @operation(reads=("runs",))
    def compare(self, ctx: CallContext, runs: Annotated[tuple[Ref, ...], "which runs"]) -> RunComparison:
        """Compare runs: the parameters and metrics in which they differ.

        Example:
            falaj track compare run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 run:fraud/1a3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        if not 1 < len(runs) <= MAX_COMPARED_RUNS:
            raise Invalid(f"{len(runs)} runs to compare", f"2 to {MAX_COMPARED_RUNS}")
        with self._ledger.read(ctx) as reader:
            records = [self._require_run(reader, run) for run in runs]
        return compare_runs(tuple(self._to_run(record) for record in records))

    def _emit_ended(self, writer: LedgerWriter, record: LedgerRecord) -> None:
        writer.emit("track.end", record.ref, status=record.body["status"])
        if record.body["status"] in FINISHED_STATUSES:
            writer.after(lambda is_durable: self.measures.settle_soon(record.key.tenant, record.key.name))

    def _update_texts(
        self,
        writer: LedgerWriter,
        old_run: LedgerRecord,
        params: Mapping[str, str],
        tags: Mapping[str, str],
        drop: tuple[str, ...],
    ) -> LedgerRecord:
        known_params: dict[str, str] = old_run.body["params"]
        check_texts("param", params)
        for key, value in params.items():
            if known_params.get(key, value) != value:
                raise Invalid(
                    f"the param {key[:80]!r} is {known_params[key][:80]!r} and cannot become {value[:80]!r}",
                    "a parameter is written once; start another run",
                    old_run.ref.bare,
                )
        merged_tags = {**old_run.body["tags"], **check_texts("tag", tags)}
        changes = {
            "params": _check_count("param", {**known_params, **params}, MAX_PARAMS, is_checked=True),
            "tags": _check_count(
                "tag",
                {tag_name: tag_value for tag_name, tag_value in merged_tags.items() if tag_name not in drop},
                MAX_TAGS,
                is_checked=True,
            ),
        }
        return self._save_run(writer, old_run, changes)


def _to_points(metrics: tuple[Metric, ...], now: float) -> list[MetricPoint]:
    if len(metrics) > MAX_POINTS:
        raise Invalid(f"{len(metrics)} points in one call", f"at most {MAX_POINTS}")
    for key in {metric.key for metric in metrics}:
        check_key("metric", key)
    points = [
        (
            metric_point.key,
            metric_point.step,
            metric_point.at if metric_point.at >= 0 else now,
            metric_point.number if metric_point.odd else float(metric_point.value),
        )
        for metric_point in metrics
    ]
    if any(not -MAX_STEP <= step <= MAX_STEP for _, step, _, _ in points):
        raise Invalid("a step is out of range", "steps are 64-bit integers")
    return points


def _parse_span(span: tuple[float, ...], counted_by: str) -> CurveSpan | None:
    if counted_by not in ("step", "time") or len(span) not in (0, 2) or not all(map(math.isfinite, span)):
        raise Invalid(f"a span of {len(span)} numbers by {counted_by[:40]!r}", "two numbers, by step or by time")
    return (counted_by == "time", span[0], span[1]) if span else None


def _check_count(
    text_kind: str, texts: Mapping[str, str] | None, max_count: int, *, is_checked: bool = False
) -> dict[str, str]:
    checked_texts = dict(texts or {}) if is_checked else check_texts(text_kind, texts)
    if len(checked_texts) > max_count:
        raise Invalid(f"{len(checked_texts)} {text_kind}s in one run", f"at most {max_count}")
    return checked_texts


def _pin_reference(used_data: UsedData, refs_by_name: Mapping[Ref, Ref]) -> dict[str, str]:
    return {"ref": str(refs_by_name[used_data.ref.bare])} if used_data.ref is not None else {}


def _require_same_experiment(existing_run: LedgerRecord, experiment_record: LedgerRecord) -> LedgerRecord:
    if existing_run.body["experiment"] != str(experiment_record.ref.bare):
        raise Conflict("a run with this id is in another experiment", "leave the id out, or name its experiment")
    if existing_run.body["state"] != "active":
        raise NotFound("the run with this id is deleted", f"falaj track restore {existing_run.ref.bare}")
    return existing_run
