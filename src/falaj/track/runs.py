"""Runs: start, log, end; show, list, compare them and read their curves."""

import math
import re
import uuid
from collections.abc import Mapping
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.store.codec import to_plain
from falaj.store.ledger import Writer
from falaj.store.records import Record
from falaj.track.comparison import compared
from falaj.track.measures import as_metrics
from falaj.track.notebook import MOST_PARAMS, MOST_TAGS, Notebook, check_key, check_texts, check_title
from falaj.track.points import MOST_STEP, Point, Span
from falaj.track.reading import as_run, terms_of
from falaj.track.records import (
    OVER,
    STATUSES,
    Comparison,
    Curve,
    Drawn,
    Metric,
    Run,
    RunPage,
    RunTable,
    UsedData,
    Window,
)

MOST_POINTS, MOST_INPUTS, MOST_COMPARED, MOST_CURVES = 10_000, 1_000, 100, 500
MOST_RECENT, LOOKED_AT = 100, 500
"""Newest runs at once; and so many are looked through for one's own."""
MOST_PAGE, MOST_CURVE, MOST_BINS, MOST_CELLS = 50_000, 25_000, 10_000, 100_000
_ID = re.compile(r"[0-9a-f]{32}")


class Runs(Notebook):
    """What runs say, and what is asked of them."""

    @verb(writes=("experiment",), reads=("inputs",))
    def start(
        self,
        ctx: Context,
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
        if run and not _ID.fullmatch(run):
            raise Invalid(f"{run[:80]!r} is no id of a run", "32 hexadecimal digits, in small letters")
        pins = inputs or {}
        with self._ledger.write(ctx) as tx:
            place = self._experiment(tx, experiment)
            known = tx.find("run", terms={"id": run}, limit=1).records if run else ()
            if known:
                return self._as_run(_same_place(known[0], place))
            if run and ctx.actor.kind == "workload" and ctx.label is not None and not ctx.label.is_open:
                # Lists show the id, and the code that would choose it reads labelled data.
                raise Denied("a job that reads labelled data may not choose the id of a run", "leave the id out")
            if place.body["state"] != "active":
                raise Invalid(f"{experiment.bare} is deleted", f"falaj track restore {experiment.bare}", experiment)
            name = run or uuid.uuid4().hex
            used = [UsedData(role, source_type="falaj", source=str(ref), ref=ref) for role, ref in pins.items()]
            body: dict[str, Any] = {
                "id": name, "experiment": str(experiment.bare), "experiment_id": place.body["id"],
                "title": check_title(title) or f"run-{name[:8]}", "status": "running", "state": "active",
                "started": started or ctx.now(), "ended": 0.0, "params": _bounded("param", params, MOST_PARAMS),
                "tags": _bounded("tag", tags, MOST_TAGS), "inputs": to_plain(used),
            }  # fmt: skip
            record = tx.put(Ref("run", experiment.project, name), body, terms=terms_of(body))
            self._follow(tx, record)
            tx.emit("track.start", record.ref, tuple(pins.values()), experiment=str(experiment.bare))
        return as_run(record, {})

    @verb(writes=("run",))
    def log(
        self,
        ctx: Context,
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
        points = _points(metrics, ctx.now())
        with self._ledger.write(ctx) as tx:
            record = self._live_run(tx, run)
            if params and (marker := ctx.withheld(record)):
                # A parameter is written once, so whether one can be written tells what it is.
                raise Denied(marker, "log metrics or tags, or start another run", run)
            if params or tags or drop:
                record = self._describe(tx, record, params or {}, tags or {}, drop)
            if points:
                self.measures.stage(tx, ctx, record, points)
            tx.emit(
                "track.log", record.ref, metrics=len(points), params=len(params or ()), tags=len(tags or ()) + len(drop)
            )
        return len(points) + len(params or ()) + len(tags or ()) + len(drop)

    @verb(writes=("run",))
    def end(
        self,
        ctx: Context,
        run: Annotated[Ref, "which run"],
        status: Annotated[str, "finished, failed, killed, running or scheduled; kept when empty"] = "finished",
        ended: Annotated[float, "when, in seconds since the epoch; now when left out"] = 0.0,
        title: Annotated[str, "a new title; kept when left out"] = "",
    ) -> Run:
        """End a run, or say that it goes on after all.

        Example:
            falaj track end run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --status failed
        """
        with self._ledger.write(ctx) as tx:
            old = self._live_run(tx, run)
            chosen = status or old.body["status"]
            if chosen not in STATUSES:
                raise Invalid(f"{status[:40]!r} is no status", f"one of {', '.join(STATUSES)}", run)
            over = chosen in OVER
            when = ended or (old.body["ended"] if not status else 0.0) or ctx.now()
            changes = {
                "status": chosen, "ended": when if over else ended, "title": check_title(title) or old.body["title"]
            }  # fmt: skip
            record = self._save_run(tx, old, changes)
            self._say_ended(tx, record)
        return self._as_run(record)

    def finish(self, ctx: Context, run: Ref, status: str) -> None:
        """The same for a desk that ends its own runs and reads nothing of them back."""
        with self._ledger.write(ctx) as tx:
            # Also one that somebody deleted: what it stands for is over all the same.
            self._say_ended(tx, self._save_run(tx, self._run(tx, run), {"status": status, "ended": ctx.now()}))

    @verb(writes=("run",), reads=("inputs",))
    def use(
        self,
        ctx: Context,
        run: Annotated[Ref, "which run"],
        data: Annotated[tuple[UsedData, ...], "what it used; a `ref` in one of them must be among the inputs"] = (),
        inputs: Annotated[tuple[Ref, ...], "those of them that are ours; the run carries their labels"] = (),
    ) -> Run:
        """Say what data a run used. What is ours becomes part of its lineage and of its label.

        Example:
            falaj track use run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --inputs dataset:fraud/tx@v3
        """
        named = {ref.bare: ref for ref in inputs}
        loose = [used.ref for used in data if used.ref is not None and used.ref.bare not in named]
        if loose:
            raise Invalid(f"{loose[0]} is not among the inputs", "name it there, so that the guard can ask", loose[0])
        said = {used.ref.bare for used in data if used.ref is not None}
        more = [ref for ref in inputs if ref.bare not in said]
        data += tuple(UsedData(ref.name, source_type="falaj", source=str(ref), ref=ref) for ref in more)
        fresh = [{**to_plain(used), **_pin(used, named)} for used in data]
        with self._ledger.write(ctx) as tx:
            old = self._live_run(tx, run)
            # The guard asked about the caller's zone; the run, and all that it leaves behind, lie in their own.
            ctx.permit("write", str(run.bare), old.zone or ctx.zone)
            kept = [*old.body["inputs"], *(used for used in fresh if used not in old.body["inputs"])]
            if len(kept) > MOST_INPUTS:
                raise Invalid(f"{len(kept)} inputs of one run", f"at most {MOST_INPUTS}", run)
            record = self._save_run(tx, old, {"inputs": kept})
            tx.emit("track.use", record.ref, inputs)
            if inputs:
                self._burden(tx, record, inputs)
        return self._as_run(record)

    @verb(reads=("run",))
    def show(self, ctx: Context, run: Annotated[Ref, "which run"]) -> Run:
        """Show a run: parameters, tags, inputs, and the newest of each metric.

        Example:
            falaj track show run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        with self._ledger.read(ctx) as tx:
            record = self._run(tx, run)
        return self._as_run(record)

    @verb(reads=("experiments",))
    def list(
        self,
        ctx: Context,
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
        if not 0 < limit <= MOST_PAGE:
            raise Invalid(f"a page of {limit} runs", f"ask for 1 to {MOST_PAGE} and follow `next`")
        return self.board.search(ctx, experiments, (project, where, order, state), after, limit)

    @verb()
    def recent(
        self,
        ctx: Context,
        mine: Annotated[bool, "only those that you began"] = True,
        limit: Annotated[int, "how many at most"] = 10,
    ) -> RunPage:
        """Show the newest runs. Only these are read, however many there are: for a look at what goes on.

        Example:
            falaj track recent --limit 5
        """
        if not 0 < limit <= MOST_RECENT:
            raise Invalid(f"the {limit} newest runs", f"ask for 1 to {MOST_RECENT}; falaj track list shows all")
        records: list[Record] = []
        with self._ledger.read(ctx) as tx:
            page = tx.find("run", cells=ctx.cells("run"), newest=True, limit=LOOKED_AT)
        for record in page.records:
            own = record.body["tags"].get("mlflow.user", record.author) == ctx.actor.id or record.author == ctx.actor.id
            if record.body["state"] == "active" and (own or not mine) and len(records) < limit:
                records.append(record)
        heads = self.measures.heads_of(ctx.tenant, [record.key.name for record in records])
        return RunPage(tuple([as_run(record, as_metrics(heads.get(record.key.name, {}))) for record in records]))

    @verb(reads=("experiments",))
    def table(
        self,
        ctx: Context,
        experiments: Annotated[tuple[Ref, ...], "of these experiments; of all when left out"] = (),
        project: Annotated[str, "of one project only"] = "",
        where: Annotated[str, "which runs, as in: metrics.acc > 0.9"] = "",
        order: Annotated[tuple[str, ...], "by what, as in: metrics.acc DESC; newest first when left out"] = (),
        state: Annotated[str, "active, deleted or all"] = "active",
        columns: Annotated[str, "which columns, as in: status, params.lr, metrics.acc; all when left out"] = "",
        window: Annotated[Window, "which rows and which of the columns"] = Window(),  # noqa: B008 - frozen
    ) -> RunTable:
        """Read a part of the table of runs: some rows, some columns, and how many of both there are.

        Thousands of runs with thousands of metrics are read a screenful at a time.

        Example:
            falaj track table --order "metrics.auc DESC" --columns "params.lr, metrics.auc" --window '{"rows": 20}'
        """
        if min(window.first, window.left, window.rows, window.width) < 0 or window.rows * window.width > MOST_CELLS:
            raise Invalid(
                f"a window of {window.rows} rows and {window.width} columns", f"at most {MOST_CELLS} cells at once"
            )
        return self.board.table(ctx, experiments, (project, where, order, state), columns, window)

    @verb(reads=("run",))
    def history(
        self,
        ctx: Context,
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
        if not 0 < limit <= MOST_CURVE or not 0 <= bins <= MOST_BINS:
            raise Invalid(f"{limit} points in {bins} bins", f"1 to {MOST_CURVE} points, at most {MOST_BINS} bins")
        with self._ledger.read(ctx) as tx:
            record = self._run(tx, run)
        check_key("metric", metric)
        if span and not bins:
            raise Invalid("a span of a curve in pages", "ask for it with bins, or follow `after`")
        where = (record.key.tenant, record.key.name)
        return self.measures.curve(where, metric, after, limit, bins, _span(span, by))

    @verb(reads=("runs",))
    def curves(
        self,
        ctx: Context,
        runs: Annotated[tuple[Ref, ...], "of which runs"],
        metrics: Annotated[tuple[str, ...], "which metrics; a run that has none of one gives an empty curve"],
        bins: Annotated[int, "in so many bins: lowest, highest and last point of each"] = 200,
        span: Annotated[tuple[float, ...], "only from here to there; both ends"] = (),
        by: Annotated[str, "step or time: what the span counts"] = "step",
    ) -> tuple[Drawn, ...]:
        """Read many curves at once, down-sampled: for every run each of the metrics.

        Example:
            falaj track curves run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --metrics loss,accuracy
        """
        if not 0 < bins <= MOST_BINS or len(runs) * len(metrics) > MOST_CURVES:
            raise Invalid(
                f"{len(runs) * len(metrics)} curves in {bins} bins",
                f"at most {MOST_CURVES} curves in 1 to {MOST_BINS} bins",
            )
        cut = _span(span, by)
        for metric in metrics:
            check_key("metric", metric)
        with self._ledger.read(ctx) as tx:
            records = [self._run(tx, run) for run in runs]
        return tuple(
            Drawn(record.ref.bare, curve)
            for record in records
            for curve in self.measures.curves((record.key.tenant, record.key.name), metrics, bins, cut)
        )

    @verb(reads=("runs",))
    def compare(self, ctx: Context, runs: Annotated[tuple[Ref, ...], "which runs"]) -> Comparison:
        """Compare runs: the parameters and metrics in which they differ.

        Example:
            falaj track compare run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 run:fraud/1a3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        if not 1 < len(runs) <= MOST_COMPARED:
            raise Invalid(f"{len(runs)} runs to compare", f"2 to {MOST_COMPARED}")
        with self._ledger.read(ctx) as tx:
            records = [self._run(tx, run) for run in runs]
        return compared(tuple(self._as_run(record) for record in records))

    def _say_ended(self, tx: Writer, record: Record) -> None:
        tx.emit("track.end", record.ref, status=record.body["status"])
        if record.body["status"] in OVER:
            tx.after(lambda durable: self.measures.settle_soon(record.key.tenant, record.key.name))

    def _describe(
        self, tx: Writer, old: Record, params: Mapping[str, str], tags: Mapping[str, str], drop: tuple[str, ...]
    ) -> Record:
        known: dict[str, str] = old.body["params"]
        check_texts("param", params)
        for key, value in params.items():
            if known.get(key, value) != value:
                raise Invalid(
                    f"the param {key[:80]!r} is {known[key][:80]!r} and cannot become {value[:80]!r}",
                    "a parameter is written once; start another run",
                    old.ref.bare,
                )
        kept = {**old.body["tags"], **check_texts("tag", tags)}
        changes = {
            "params": _bounded("param", {**known, **params}, MOST_PARAMS, checked=True),
            "tags": _bounded("tag", {k: v for k, v in kept.items() if k not in drop}, MOST_TAGS, checked=True),
        }
        return self._save_run(tx, old, changes)


def _points(metrics: tuple[Metric, ...], now: float) -> list[Point]:
    if len(metrics) > MOST_POINTS:
        raise Invalid(f"{len(metrics)} points in one call", f"at most {MOST_POINTS}")
    for key in {metric.key for metric in metrics}:
        check_key("metric", key)
    points = [(m.key, m.step, m.at if m.at >= 0 else now, m.number if m.odd else float(m.value)) for m in metrics]
    if any(not -MOST_STEP <= step <= MOST_STEP for _, step, _, _ in points):
        raise Invalid("a step is out of range", "steps are 64-bit integers")
    return points


def _span(span: tuple[float, ...], by: str) -> Span | None:
    if by not in ("step", "time") or len(span) not in (0, 2) or not all(map(math.isfinite, span)):
        raise Invalid(f"a span of {len(span)} numbers by {by[:40]!r}", "two numbers, by step or by time")
    return (by == "time", span[0], span[1]) if span else None


def _bounded(what: str, texts: Mapping[str, str] | None, most: int, *, checked: bool = False) -> dict[str, str]:
    kept = dict(texts or {}) if checked else check_texts(what, texts)
    if len(kept) > most:
        raise Invalid(f"{len(kept)} {what}s in one run", f"at most {most}")
    return kept


def _pin(used: UsedData, named: Mapping[Ref, Ref]) -> dict[str, str]:
    return {"ref": str(named[used.ref.bare])} if used.ref is not None else {}


def _same_place(known: Record, place: Record) -> Record:
    if known.body["experiment"] != str(place.ref.bare):
        raise Conflict("a run with this id is in another experiment", "leave the id out, or name its experiment")
    if known.body["state"] != "active":
        raise NotFound("the run with this id is deleted", f"falaj track restore {known.ref.bare}")
    return known
