"""The board: runs at a glance. A table in memory of the runs that somebody searched, caught up before every answer.

Runs of an experiment are read when they are first asked for. From then on the board follows: what this process writes
is handed to it once it is durable; what others write it hears of in the log; new points are told by the series. So it
reads what is committed now, and not what the caller's group sees: that may be older than the log. The least used
experiments leave when there are too many rows.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from falaj.core.cell import labelled_cells
from falaj.core.context import Context
from falaj.core.errors import Invalid
from falaj.core.ports import Block, Key
from falaj.core.ref import Ref
from falaj.store.envelope import cell_text
from falaj.store.ledger import Ledger
from falaj.store.records import Record
from falaj.track.measures import Measures, as_metrics
from falaj.track.points import Head, newer
from falaj.track.reading import as_run, find_all, house
from falaj.track.records import Run, RunPage, RunTable, Window
from falaj.track.where import RUNS, Column, arrange, read_columns, read_order, read_where, select
from falaj.track.window import keys_of, window_of

MOST_ROWS = 200_000
WITHHELD = "withheld: needs read on this run"
_STATES = ("active", "deleted", "all")
_PAGE = 1000
_WAITING = 20_000
_RESULTS = 16
T = TypeVar("T")
Asked = tuple[str, str, tuple[str, ...], str]
"""project, where, order, state."""


class Row:
    """One run as filters see it; the record of it that readers get is made when it is first wanted."""

    __slots__ = ("_blank", "_run", "attributes", "cell", "datasets", "heads", "metrics", "params", "record", "tags")

    def __init__(self, record: Record, heads: dict[str, Head]) -> None:
        self.heads = heads
        self.metrics = {metric: head[3] for metric, head in heads.items()}
        self.rewrite(record)

    def rewrite(self, record: Record) -> None:
        """Take another revision of its record in."""
        body, key = record.body, record.key
        self.record = record
        self.cell = cell_text(key.kind, key.project, record.zone, record.label, record.restricted)
        self.params: dict[str, str] = body["params"]
        self.tags: dict[str, str] = body["tags"]
        self.datasets = [_dataset(used) for used in body["inputs"]]
        self.attributes: dict[str, Any] = {
            "run_id": body["id"], "run_name": body["title"], "status": body["status"].upper(),
            "user_id": self.tags.get("mlflow.user", record.author), "experiment_id": body["experiment_id"],
            "artifact_uri": f"mlflow-artifacts:/{body['experiment_id']}/{body['id']}/artifacts",
            "start_time": round(body["started"] * 1000), "end_time": round(body["ended"] * 1000) or None,
        }  # fmt: skip
        self._run: Run | None = None
        self._blank: Row | None = None

    @property
    def blank(self) -> "Row":
        """The run as filters and readers see it who may not read its values: no names, texts or numbers of it."""
        if self._blank is None:
            body = {**self.record.body, "title": WITHHELD, "params": {}, "tags": {}, "inputs": [], "outputs": []}
            self._blank = Row(replace(self.record, body=body), {})
        return self._blank

    @property
    def stand(self) -> tuple[Any, ...]:
        """What decides in which lists it stands, and where."""
        return self.cell, self.record.body["state"], self.attributes["start_time"]

    @property
    def run(self) -> Run:
        """The run as readers see it: the same object until something of it changes."""
        if self._run is None:
            self._run = as_run(self.record, as_metrics(self.heads))
        return self._run

    def measure(self, heads: Mapping[str, Head]) -> bool:
        """Take newer points in; True when any was newer."""
        known, self.heads = self.heads, newer(self.heads, heads)
        changed = known != self.heads
        if changed:
            self.metrics = {metric: head[3] for metric, head in self.heads.items()}
            self._run = None
        return changed


class _Table:
    """The rows of one tenant."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: dict[str, Row] = {}
        self.experiments: OrderedDict[str, dict[str, Row]] = OrderedDict()
        self.elsewhere: set[str] = set()
        self.log: str | None = None
        self.tail = ""
        self.group: object = None
        """The group of calls for which somebody has looked last."""
        self.came: deque[Record] = deque()
        self.doubted: deque[Key] = deque()
        self.lists: OrderedDict[tuple[Any, ...], list[Row]] = OrderedDict()
        self.results: OrderedDict[tuple[Any, ...], list[Row]] = OrderedDict()
        self.keys: OrderedDict[tuple[Any, ...], tuple[Column, ...]] = OrderedDict()

    def put(self, record: Record, heads: dict[str, Head]) -> None:
        name = record.key.name
        members = self.experiments.get(record.body["experiment_id"])
        if members is None:
            if len(self.elsewhere) >= MOST_ROWS:
                self.elsewhere.clear()
            self.elsewhere.add(name)
            return
        self.said()
        row = self.rows.get(name)
        if row is None:
            members[name] = self.rows[name] = Row(record, heads)
            self.lists.clear()
            return
        before = row.stand
        row.rewrite(record)
        if row.stand != before:
            self.lists.clear()

    def drop(self, experiment: str) -> None:
        for name in self.experiments.pop(experiment, {}):
            del self.rows[name]
        self.changed()

    def keep(self, kept: OrderedDict[tuple[Any, ...], T], question: tuple[Any, ...], answer: Callable[[], T]) -> T:
        """The answer to a question, made anew when something changed since."""
        found = kept.get(question)
        if found is None:
            found = kept[question] = answer()
            if len(kept) > _RESULTS:
                kept.popitem(last=False)
        return found

    def changed(self) -> None:
        """Runs came or went."""
        self.lists.clear()
        self.said()

    def said(self) -> None:
        """Runs were told or measured something."""
        self.results.clear()
        self.keys.clear()


class Board:
    """Searches over runs. One instance a house; threads share it."""

    def __init__(self, ledger: Ledger, measures: Measures) -> None:
        self._ledger = ledger
        self._measures = measures
        self._tables: OrderedDict[str, _Table] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, record: Record) -> None:
        """A run was written here, durably."""
        table = self._tables.get(record.key.tenant)
        if table is not None:
            table.came.append(record)
            if len(table.came) > _WAITING:
                self._forget(record.key.tenant)  # nobody asks any more

    def doubt(self, key: Key) -> None:
        """A write of a run was undone: whoever saw it meanwhile must look again."""
        table = self._tables.get(key.tenant)
        if table is not None:
            table.doubted.append(key)

    def search(self, ctx: Context, experiments: Sequence[Ref], asked: Asked, after: str, limit: int) -> RunPage:
        """A page of the runs that the caller may see and that fit, in order."""
        with self._asked(ctx, experiments, asked) as (found, _):
            start = _start(found, after)
            page = found[start : start + limit]
            runs = tuple([row.run for row in page])
            more = start + limit < len(found)
        return RunPage(runs, f"{start + limit}.{runs[-1].id}" if more else "")

    def table(self, ctx: Context, experiments: Sequence[Ref], asked: Asked, columns: str, window: Window) -> RunTable:
        """Some rows and columns of the same list, read from what is held here: nothing is made for the others."""
        chosen = read_columns(columns)
        with self._asked(ctx, experiments, asked) as (found, keys):
            return window_of(found, chosen or keys(), window)

    @contextmanager
    def _asked(
        self, ctx: Context, experiments: Sequence[Ref], asked: Asked
    ) -> Iterator[tuple[list[Row], Callable[[], tuple[Column, ...]]]]:
        """The runs that fit, in order, and how to learn what all of them were told and measured; held still."""
        project, where, order, state = asked
        picks, ways = read_where(where, RUNS), read_order(order, RUNS)
        if state not in _STATES:
            raise Invalid(f"{state[:40]!r} is no state", f"one of {', '.join(_STATES)}")
        cells, wanted = ctx.cells("run"), self._wanted(ctx, experiments, project)
        table = self._table(ctx.tenant)
        # All calls of a group were asked before it began: what the first of them looks up is new enough for the others.
        group = self._ledger.together
        looked = group is not None and table.group is group
        # Asking the log may wait for a writer, so it happens before the lock is taken.
        heard = None if looked else self._heard(ctx.tenant, table)
        with table.lock:
            self._catch_up(ctx.tenant, table, heard)
            table.group = group
            self._load(ctx.tenant, table, wanted)
            question = (wanted, state, cells, _hidden(ctx, table, wanted, cells))
            rows = table.keep(table.lists, question, lambda: _listed(table, question))
            found = rows
            if picks or ways:
                found = table.keep(table.results, (*question, where, order), lambda: arrange(select(rows, picks), ways))
            # Of all runs, also of those that do not fit: a filter leaves columns where they stand.
            yield found, lambda: table.keep(table.keys, question, lambda: keys_of(rows))

    def _wanted(self, ctx: Context, experiments: Sequence[Ref], project: str) -> tuple[str, ...]:
        """The numbers of the experiments that are searched, in order."""
        with self._ledger.read(ctx) as tx:
            if experiments:
                records: Iterable[Record] = [tx.need(ref.bare) for ref in experiments]
            else:
                records = find_all(tx, "experiment", project=project)
            return tuple(sorted({one.body["id"] for one in records if project in ("", one.key.project)}))

    def _table(self, tenant: str) -> _Table:
        with self._lock:
            table = self._tables.setdefault(tenant, _Table())
            self._tables.move_to_end(tenant)
            return table

    def _forget(self, tenant: str) -> None:
        with self._lock:
            self._tables.pop(tenant, None)

    def _heard(self, tenant: str, table: _Table) -> tuple[dict[str, int], str]:
        """Runs that the log says were written since, with the revision it names, and where it ends."""
        changed: dict[str, int] = {}
        at = table.log
        if at is None:
            return changed, self._log_start(tenant)
        # Looked up first: most of the log is not about runs, and is not to be read through again next time.
        end = self._ledger.store.end()
        while at < end:
            events = self._ledger.store.events(at, tenant=tenant, kind="run", limit=_PAGE)
            for event in events:
                changed[event.subject.name] = int(event.subject.version[1:])
                at = event.pos
            if len(events) < _PAGE:
                break
        return changed, max(at, end)

    def _catch_up(self, tenant: str, table: _Table, heard: tuple[dict[str, int], str] | None) -> None:
        """Take in what happened since the last look. All of it may be taken in twice and changes nothing then."""
        changed, told = dict[str, int](), list[Block]()
        if heard is not None:
            changed, at = heard
            table.log = max(table.log or "", at)
            # Points first: whoever logged some has started the run before, so that what comes next knows it.
            told, table.tail = self._measures.told(tenant, table.tail)
        while table.came:
            record = table.came.popleft()
            known = table.rows.get(record.key.name)
            if known is None or known.record.rev < record.rev:
                table.put(record, {})
        while table.doubted:
            changed[table.doubted.popleft().name] = 1 << 62
        self._read_again(tenant, table, changed)
        for block in told:
            row = table.rows.get(block.series)
            if row is not None and row.measure(self._measures.heads_in(block)):
                table.said()

    def _read_again(self, tenant: str, table: _Table, changed: Mapping[str, int]) -> None:
        late = [name for name, rev in changed.items() if self._is_late(table, name, rev)]
        if not late:
            return
        with self._ledger.look(house(tenant)) as tx:
            for name in late:
                found = tx.find("run", terms={"id": name}, limit=1).records
                known = table.rows.get(name)
                if found:
                    table.put(found[0], {} if known else self._heads(tenant, table, found[0]))
                elif known is not None:
                    table.experiments[known.record.body["experiment_id"]].pop(name)
                    del table.rows[name]
                    table.changed()

    def _heads(self, tenant: str, table: _Table, record: Record) -> dict[str, Head]:
        """Of a run that is new to the board: its points may have been told before it was there to be told about."""
        if record.body["experiment_id"] not in table.experiments:
            return {}
        return self._measures.heads_of(tenant, (record.key.name,)).get(record.key.name, {})

    def _is_late(self, table: _Table, name: str, rev: int) -> bool:
        known = table.rows.get(name)
        return known.record.rev < rev if known is not None else name not in table.elsewhere

    def _load(self, tenant: str, table: _Table, wanted: tuple[str, ...]) -> None:
        missing = [name for name in wanted if name not in table.experiments]
        for name in wanted:
            if name in table.experiments:
                table.experiments.move_to_end(name)
        for name in missing:
            with self._ledger.look(house(tenant)) as tx:
                records = list(find_all(tx, "run", terms={"experiment": name}))
            heads = self._measures.heads_of(tenant, [record.key.name for record in records])
            table.experiments[name] = {}
            table.elsewhere.clear()
            for record in records:
                table.put(record, heads.get(record.key.name, {}))
        if missing:
            self._make_room(tenant, table, frozenset(wanted))

    def _make_room(self, tenant: str, table: _Table, wanted: frozenset[str]) -> None:
        """Let the least used go: whole tenants first, then experiments of this one."""
        with self._lock:
            others = [name for name in self._tables if name != tenant]
            total = sum(len(each.rows) for each in self._tables.values())
            for name in others:
                if total <= MOST_ROWS:
                    return
                total -= len(self._tables.pop(name).rows)
        for name in [name for name in table.experiments if name not in wanted]:
            if len(table.rows) <= MOST_ROWS:
                return
            table.drop(name)
        if len(table.rows) > MOST_ROWS:
            self._forget(tenant)
            raise Invalid(f"a search over {len(table.rows)} runs", f"at most {MOST_ROWS}: name fewer experiments")

    def _log_start(self, tenant: str) -> str:
        """Some place in the log, the later the better, before which nothing can be new: where a recent run began."""
        with self._ledger.look(house(tenant)) as tx:
            recent = tx.find("run", newest=True, limit=8).records
        for record in recent:
            where = {"kind": "run", "project": record.key.project, "name": record.key.name}
            marks = [
                event.pos
                for verb in ("track.start", "track.end")
                for event in self._ledger.store.events("", tenant=tenant, verb=verb, limit=1, **where)
            ]
            if marks:
                return max(marks)
        return ""


def _hidden(ctx: Context, table: _Table, wanted: tuple[str, ...], cells: frozenset[str]) -> frozenset[str]:
    """The runs whose values the caller may not read: no filter compares those, and no column shows them."""
    labelled = labelled_cells(cells)
    if not labelled:
        return labelled
    rows = [row for name in wanted for row in table.experiments[name].values() if row.cell in labelled]
    return frozenset(row.record.key.name for row in rows if ctx.withheld(row.record))


def _listed(table: _Table, question: tuple[tuple[str, ...], str, frozenset[str], frozenset[str]]) -> list[Row]:
    """The runs of some experiments that may be seen, newest first."""
    wanted, state, cells, hidden = question
    rows = [row for name in wanted for row in table.experiments[name].values() if row.cell in cells]
    if state != "all":
        rows = [row for row in rows if row.record.body["state"] == state]
    if hidden:
        rows = [row.blank if row.record.key.name in hidden else row for row in rows]
    rows.sort(key=lambda row: (-row.attributes["start_time"], row.record.key.name))
    return rows


def _start(found: list[Row], after: str) -> int:
    """Where the next page begins: behind the run that ended the one before, wherever it stands by now."""
    if not after:
        return 0
    offset, _, last = after.partition(".")
    if not offset.isdigit() or not last:
        raise Invalid(f"{after[:80]!r} is no cursor of this list", "use the `next` of the page before")
    spot = min(int(offset), len(found))
    if spot and found[spot - 1].record.key.name == last:
        return spot
    return next((n for n, row in enumerate(found, 1) if row.record.key.name == last), spot)


def _dataset(used: Mapping[str, Any]) -> dict[str, str]:
    context = used.get("tags", {}).get("mlflow.data.context")
    return {"name": used["name"], "digest": used["digest"], **({"context": context} if context else {})}
