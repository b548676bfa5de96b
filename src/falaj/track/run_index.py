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

from falaj.core.context import CallContext
from falaj.core.errors import Invalid
from falaj.core.policy_scope import filter_limited_scopes
from falaj.core.ports import RecordKey, SeriesBlock
from falaj.core.ref import Ref
from falaj.store.envelope import encode_scope
from falaj.store.ledger import Ledger
from falaj.store.records import LedgerRecord
from falaj.track.metric_points import LatestPoint, merge_latest
from falaj.track.metric_store import MetricStore, to_metrics
from falaj.track.record_views import find_all_records, tenant_system_context, to_run
from falaj.track.records import Run, RunPage, RunTable, TableWindow
from falaj.track.search_language import (
    RUN_VOCABULARY,
    TableColumn,
    apply_filters,
    parse_columns,
    parse_filter,
    parse_order,
    sort_items,
)
from falaj.track.table_window import list_table_columns, read_window

MAX_INDEX_ROWS = 200_000
WITHHELD_TITLE = "withheld: needs read on this run"
_RUN_STATES = ("active", "deleted", "all")
_EVENT_PAGE = 1000
_MAX_PENDING_RECORDS = 20_000
_MAX_CACHED_RESULTS = 16
ResultT = TypeVar("ResultT")
RunQuery = tuple[str, str, tuple[str, ...], str]
"""project, where, order, state."""


class RunRow:
    """One run as filters see it; the record of it that readers get is made when it is first wanted."""

    __slots__ = (
        "_cached_run",
        "_withheld_row",
        "attributes",
        "cell",
        "datasets",
        "heads",
        "metrics",
        "params",
        "record",
        "tags",
    )

    def __init__(self, record: LedgerRecord, heads: dict[str, LatestPoint]) -> None:
        self.heads = heads
        self.metrics = {metric: head[3] for metric, head in heads.items()}
        self.rewrite(record)

    def rewrite(self, record: LedgerRecord) -> None:
        """Take another revision of its record in."""
        body, key = record.body, record.key
        self.record = record
        self.cell = encode_scope(key.kind, key.project, record.zone, record.label, record.restricted)
        self.params: dict[str, str] = body["params"]
        self.tags: dict[str, str] = body["tags"]
        self.datasets = [_describe_dataset(used_data) for used_data in body["inputs"]]
        self.attributes: dict[str, Any] = {
            "run_id": body["id"], "run_name": body["title"], "status": body["status"].upper(),
            "user_id": self.tags.get("mlflow.user", record.author), "experiment_id": body["experiment_id"],
            "artifact_uri": f"mlflow-artifacts:/{body['experiment_id']}/{body['id']}/artifacts",
            "start_time": round(body["started"] * 1000), "end_time": round(body["ended"] * 1000) or None,
        }  # fmt: skip
        self._cached_run: Run | None = None
        self._withheld_row: RunRow | None = None

    @property
    def blank(self) -> "RunRow":
        """The run as filters and readers see it who may not read its values: no names, texts or numbers of it."""
        if self._withheld_row is None:
            body = {**self.record.body, "title": WITHHELD_TITLE, "params": {}, "tags": {}, "inputs": [], "outputs": []}
            self._withheld_row = RunRow(replace(self.record, body=body), {})
        return self._withheld_row

    @property
    def stand(self) -> tuple[Any, ...]:
        """What decides in which lists it stands, and where."""
        return self.cell, self.record.body["state"], self.attributes["start_time"]

    @property
    def run(self) -> Run:
        """The run as readers see it: the same object until something of it changes."""
        if self._cached_run is None:
            self._cached_run = to_run(self.record, to_metrics(self.heads))
        return self._cached_run

    def measure(self, heads: Mapping[str, LatestPoint]) -> bool:
        """Take newer points in; True when any was newer."""
        known_heads, self.heads = self.heads, merge_latest(self.heads, heads)
        has_changed = known_heads != self.heads
        if has_changed:
            self.metrics = {metric: head[3] for metric, head in self.heads.items()}
            self._cached_run = None
        return has_changed


class _TenantIndex:
    """The rows of one tenant."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: dict[str, RunRow] = {}
        self.experiments: OrderedDict[str, dict[str, RunRow]] = OrderedDict()
        self.elsewhere: set[str] = set()
        self.log: str | None = None
        self.tail = ""
        self.group: object = None
        """The group of calls for which somebody has looked last."""
        self.came: deque[LedgerRecord] = deque()
        self.doubted: deque[RecordKey] = deque()
        self.lists: OrderedDict[tuple[Any, ...], list[RunRow]] = OrderedDict()
        self.results: OrderedDict[tuple[Any, ...], list[RunRow]] = OrderedDict()
        self.keys: OrderedDict[tuple[Any, ...], tuple[TableColumn, ...]] = OrderedDict()

    def put(self, record: LedgerRecord, heads: dict[str, LatestPoint]) -> None:
        name = record.key.name
        members = self.experiments.get(record.body["experiment_id"])
        if members is None:
            if len(self.elsewhere) >= MAX_INDEX_ROWS:
                self.elsewhere.clear()
            self.elsewhere.add(name)
            return
        self.said()
        row = self.rows.get(name)
        if row is None:
            members[name] = self.rows[name] = RunRow(record, heads)
            self.lists.clear()
            return
        old_position = row.stand
        row.rewrite(record)
        if row.stand != old_position:
            self.lists.clear()

    def drop(self, experiment: str) -> None:
        for name in self.experiments.pop(experiment, {}):
            del self.rows[name]
        self.changed()

    def keep(
        self,
        cache: OrderedDict[tuple[Any, ...], ResultT],
        cache_key: tuple[Any, ...],
        compute_answer: Callable[[], ResultT],
    ) -> ResultT:
        """The answer to a question, made anew when something changed since."""
        cached = cache.get(cache_key)
        if cached is None:
            cached = cache[cache_key] = compute_answer()
            if len(cache) > _MAX_CACHED_RESULTS:
                cache.popitem(last=False)
        return cached

    def changed(self) -> None:
        """Runs came or went."""
        self.lists.clear()
        self.said()

    def said(self) -> None:
        """Runs were told or measured something."""
        self.results.clear()
        self.keys.clear()


class RunIndex:
    """Searches over runs. One instance a house; threads share it."""

    def __init__(self, ledger: Ledger, metric_store: MetricStore) -> None:
        self._ledger = ledger
        self._metric_store = metric_store
        self._tenant_indexes: OrderedDict[str, _TenantIndex] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, record: LedgerRecord) -> None:
        """A run was written here, durably."""
        tenant_index = self._tenant_indexes.get(record.key.tenant)
        if tenant_index is not None:
            tenant_index.came.append(record)
            if len(tenant_index.came) > _MAX_PENDING_RECORDS:
                self._drop_tenant(record.key.tenant)  # nobody asks any more

    def doubt(self, key: RecordKey) -> None:
        """A write of a run was undone: whoever saw it meanwhile must look again."""
        tenant_index = self._tenant_indexes.get(key.tenant)
        if tenant_index is not None:
            tenant_index.doubted.append(key)

    def search(self, ctx: CallContext, experiments: Sequence[Ref], query: RunQuery, after: str, limit: int) -> RunPage:
        """A page of the runs that the caller may see and that fit, in order."""
        with self._run_query(ctx, experiments, query) as (matching, _):
            start = _page_start(matching, after)
            page = matching[start : start + limit]
            runs = tuple([row.run for row in page])
            has_more = start + limit < len(matching)
        return RunPage(runs, f"{start + limit}.{runs[-1].id}" if has_more else "")

    def table(
        self, ctx: CallContext, experiments: Sequence[Ref], query: RunQuery, columns: str, window: TableWindow
    ) -> RunTable:
        """Some rows and columns of the same list, read from what is held here: nothing is made for the others."""
        chosen_columns = parse_columns(columns)
        with self._run_query(ctx, experiments, query) as (matching, list_columns):
            return read_window(matching, chosen_columns or list_columns(), window)

    @contextmanager
    def _run_query(
        self, ctx: CallContext, experiments: Sequence[Ref], query: RunQuery
    ) -> Iterator[tuple[list[RunRow], Callable[[], tuple[TableColumn, ...]]]]:
        """The runs that fit, in order, and how to learn what all of them were told and measured; held still."""
        project, where, order, state = query
        filters, orders = parse_filter(where, RUN_VOCABULARY), parse_order(order, RUN_VOCABULARY)
        if state not in _RUN_STATES:
            raise Invalid(f"{state[:40]!r} is no state", f"one of {', '.join(_RUN_STATES)}")
        scopes, experiment_ids = ctx.cells("run"), self._find_experiments(ctx, experiments, project)
        tenant_index = self._get_tenant_index(ctx.tenant)
        # All calls of a group were asked before it began: what the first of them looks up is new enough for the others.
        group = self._ledger.together
        is_caught_up = group is not None and tenant_index.group is group
        # Asking the log may wait for a writer, so it happens before the lock is taken.
        log_changes = None if is_caught_up else self._read_log(ctx.tenant, tenant_index)
        with tenant_index.lock:
            self._catch_up(ctx.tenant, tenant_index, log_changes)
            tenant_index.group = group
            self._load_experiments(ctx.tenant, tenant_index, experiment_ids)
            cache_key = (experiment_ids, state, scopes, _find_hidden(ctx, tenant_index, experiment_ids, scopes))
            rows = tenant_index.keep(tenant_index.lists, cache_key, lambda: _list_rows(tenant_index, cache_key))
            matching = rows
            if filters or orders:
                matching = tenant_index.keep(
                    tenant_index.results,
                    (*cache_key, where, order),
                    lambda: sort_items(apply_filters(rows, filters), orders),
                )
            # Of all runs, also of those that do not fit: a filter leaves columns where they stand.
            yield matching, lambda: tenant_index.keep(tenant_index.keys, cache_key, lambda: list_table_columns(rows))

    def _find_experiments(self, ctx: CallContext, experiments: Sequence[Ref], project: str) -> tuple[str, ...]:
        """The numbers of the experiments that are searched, in order."""
        with self._ledger.read(ctx) as reader:
            if experiments:
                records: Iterable[LedgerRecord] = [reader.need(ref.bare) for ref in experiments]
            else:
                records = find_all_records(reader, "experiment", project=project)
            return tuple(sorted({record.body["id"] for record in records if project in ("", record.key.project)}))

    def _get_tenant_index(self, tenant: str) -> _TenantIndex:
        with self._lock:
            tenant_index = self._tenant_indexes.setdefault(tenant, _TenantIndex())
            self._tenant_indexes.move_to_end(tenant)
            return tenant_index

    def _drop_tenant(self, tenant: str) -> None:
        with self._lock:
            self._tenant_indexes.pop(tenant, None)

    def _read_log(self, tenant: str, tenant_index: _TenantIndex) -> tuple[dict[str, int], str]:
        """Runs that the log says were written since, with the revision it names, and where it ends."""
        changed: dict[str, int] = {}
        cursor = tenant_index.log
        if cursor is None:
            return changed, self._find_log_start(tenant)
        # Looked up first: most of the log is not about runs, and is not to be read through again next time.
        log_end = self._ledger.store.end()
        while cursor < log_end:
            events = self._ledger.store.events(cursor, tenant=tenant, kind="run", limit=_EVENT_PAGE)
            for event in events:
                changed[event.subject.name] = int(event.subject.version[1:])
                cursor = event.pos
            if len(events) < _EVENT_PAGE:
                break
        return changed, max(cursor, log_end)

    def _catch_up(
        self, tenant: str, tenant_index: _TenantIndex, log_changes: tuple[dict[str, int], str] | None
    ) -> None:
        """Take in what happened since the last look. All of it may be taken in twice and changes nothing then."""
        changed, arrived_blocks = dict[str, int](), list[SeriesBlock]()
        if log_changes is not None:
            changed, cursor = log_changes
            tenant_index.log = max(tenant_index.log or "", cursor)
            # Points first: whoever logged some has started the run before, so that what comes next knows it.
            arrived_blocks, tenant_index.tail = self._metric_store.told(tenant, tenant_index.tail)
        while tenant_index.came:
            record = tenant_index.came.popleft()
            known_row = tenant_index.rows.get(record.key.name)
            if known_row is None or known_row.record.rev < record.rev:
                tenant_index.put(record, {})
        while tenant_index.doubted:
            changed[tenant_index.doubted.popleft().name] = 1 << 62
        self._reread_runs(tenant, tenant_index, changed)
        for block in arrived_blocks:
            row = tenant_index.rows.get(block.series)
            if row is not None and row.measure(self._metric_store.heads_in(block)):
                tenant_index.said()

    def _reread_runs(self, tenant: str, tenant_index: _TenantIndex, changed: Mapping[str, int]) -> None:
        late_runs = [name for name, rev in changed.items() if self._is_late(tenant_index, name, rev)]
        if not late_runs:
            return
        with self._ledger.look(tenant_system_context(tenant)) as reader:
            for name in late_runs:
                records = reader.find("run", terms={"id": name}, limit=1).records
                known_row = tenant_index.rows.get(name)
                if records:
                    tenant_index.put(
                        records[0], {} if known_row else self._read_heads(tenant, tenant_index, records[0])
                    )
                elif known_row is not None:
                    tenant_index.experiments[known_row.record.body["experiment_id"]].pop(name)
                    del tenant_index.rows[name]
                    tenant_index.changed()

    def _read_heads(self, tenant: str, tenant_index: _TenantIndex, record: LedgerRecord) -> dict[str, LatestPoint]:
        """Of a run that is new to the board: its points may have been told before it was there to be told about."""
        if record.body["experiment_id"] not in tenant_index.experiments:
            return {}
        return self._metric_store.heads_of(tenant, (record.key.name,)).get(record.key.name, {})

    def _is_late(self, tenant_index: _TenantIndex, name: str, rev: int) -> bool:
        known_row = tenant_index.rows.get(name)
        return known_row.record.rev < rev if known_row is not None else name not in tenant_index.elsewhere

    def _load_experiments(self, tenant: str, tenant_index: _TenantIndex, experiment_ids: tuple[str, ...]) -> None:
        missing = [name for name in experiment_ids if name not in tenant_index.experiments]
        for name in experiment_ids:
            if name in tenant_index.experiments:
                tenant_index.experiments.move_to_end(name)
        for name in missing:
            with self._ledger.look(tenant_system_context(tenant)) as reader:
                records = list(find_all_records(reader, "run", terms={"experiment": name}))
            heads = self._metric_store.heads_of(tenant, [record.key.name for record in records])
            tenant_index.experiments[name] = {}
            tenant_index.elsewhere.clear()
            for record in records:
                tenant_index.put(record, heads.get(record.key.name, {}))
        if missing:
            self._make_room(tenant, tenant_index, frozenset(experiment_ids))

    def _make_room(self, tenant: str, tenant_index: _TenantIndex, experiment_ids: frozenset[str]) -> None:
        """Let the least used go: whole tenants first, then experiments of this one."""
        with self._lock:
            other_tenants = [name for name in self._tenant_indexes if name != tenant]
            total_rows = sum(len(other_index.rows) for other_index in self._tenant_indexes.values())
            for name in other_tenants:
                if total_rows <= MAX_INDEX_ROWS:
                    return
                total_rows -= len(self._tenant_indexes.pop(name).rows)
        for name in [name for name in tenant_index.experiments if name not in experiment_ids]:
            if len(tenant_index.rows) <= MAX_INDEX_ROWS:
                return
            tenant_index.drop(name)
        if len(tenant_index.rows) > MAX_INDEX_ROWS:
            self._drop_tenant(tenant)
            raise Invalid(
                f"a search over {len(tenant_index.rows)} runs", f"at most {MAX_INDEX_ROWS}: name fewer experiments"
            )

    def _find_log_start(self, tenant: str) -> str:
        """Some place in the log, the later the better, before which nothing can be new: where a recent run began."""
        with self._ledger.look(tenant_system_context(tenant)) as reader:
            recent = reader.find("run", newest_first=True, limit=8).records
        for record in recent:
            event_filter = {"kind": "run", "project": record.key.project, "name": record.key.name}
            cursors = [
                event.pos
                for operation in ("track.start", "track.end")
                for event in self._ledger.store.events("", tenant=tenant, verb=operation, limit=1, **event_filter)
            ]
            if cursors:
                return max(cursors)
        return ""


def _find_hidden(
    ctx: CallContext, tenant_index: _TenantIndex, experiment_ids: tuple[str, ...], scopes: frozenset[str]
) -> frozenset[str]:
    """The runs whose values the caller may not read: no filter compares those, and no column shows them."""
    limited_scopes = filter_limited_scopes(scopes)
    if not limited_scopes:
        return limited_scopes
    rows = [
        row for name in experiment_ids for row in tenant_index.experiments[name].values() if row.cell in limited_scopes
    ]
    return frozenset(row.record.key.name for row in rows if ctx.withheld(row.record))


def _list_rows(
    tenant_index: _TenantIndex, cache_key: tuple[tuple[str, ...], str, frozenset[str], frozenset[str]]
) -> list[RunRow]:
    """The runs of some experiments that may be seen, newest first."""
    experiment_ids, state, scopes, hidden = cache_key
    rows = [row for name in experiment_ids for row in tenant_index.experiments[name].values() if row.cell in scopes]
    if state != "all":
        rows = [row for row in rows if row.record.body["state"] == state]
    if hidden:
        rows = [row.blank if row.record.key.name in hidden else row for row in rows]
    rows.sort(key=lambda row: (-row.attributes["start_time"], row.record.key.name))
    return rows


def _page_start(matching: list[RunRow], after: str) -> int:
    """Where the next page begins: behind the run that ended the one before, wherever it stands by now."""
    if not after:
        return 0
    offset, _, last_id = after.partition(".")
    if not offset.isdigit() or not last_id:
        raise Invalid(f"{after[:80]!r} is no cursor of this list", "use the `next` of the page before")
    position = min(int(offset), len(matching))
    if position and matching[position - 1].record.key.name == last_id:
        return position
    return next((row_number for row_number, row in enumerate(matching, 1) if row.record.key.name == last_id), position)


def _describe_dataset(used_data: Mapping[str, Any]) -> dict[str, str]:
    context = used_data.get("tags", {}).get("mlflow.data.context")
    return {"name": used_data["name"], "digest": used_data["digest"], **({"context": context} if context else {})}
