"""The notebook: what the parts of the desk of experiments share. How records are found, read, checked and written."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from falaj.catalog.service import CatalogService
from falaj.core.errors import Invalid
from falaj.core.ports import SeriesStore
from falaj.core.ref import Ref
from falaj.store.blob_store import BlobStore
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.track.metric_store import MetricStore
from falaj.track.record_views import (
    build_run_terms,
    compute_title_digest,
    find_all_records,
    require_record,
    tenant_system_context,
    to_run,
)
from falaj.track.records import DEFAULT_EXPERIMENT, Run
from falaj.track.run_index import RunIndex

MAX_PARAMS, MAX_TAGS = 10_000, 10_000
MAX_KEY_CHARS, MAX_VALUE_CHARS, MAX_TITLE_CHARS = 250, 8_000, 500
"""How long the key of a parameter, a tag or a metric may be, how long a value, how long a title."""
_MAX_CACHED_REFS = 100_000


class TrackingBase:
    """The furniture every part of the desk stands on."""

    def __init__(self, ledger: Ledger, blobs: BlobStore, series: SeriesStore, catalog: CatalogService) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._catalog = catalog
        self.destruction = catalog.destruction
        self.measures = MetricStore(series, ledger)
        self.board = RunIndex(ledger, self.measures)
        self._ref_cache: OrderedDict[tuple[str, str, str], Ref] = OrderedDict()
        self._encoded_runs: OrderedDict[int, tuple[Run, bytes]] = OrderedDict()

    def close(self) -> None:
        """End the background work."""
        self.measures.close()

    def run_ref(self, tenant: str, id_: str) -> Ref | None:
        """The run of that id. Knowing where it stands is no permission: the guard asks on."""
        return self.placed(tenant, "run", id_)

    def experiment_ref(self, tenant: str, id_: str) -> Ref | None:
        """The experiment of that number. The default one has its name before it is made."""
        return DEFAULT_EXPERIMENT if id_ == "0" else self.placed(tenant, "experiment", id_)

    def find_titled(self, tenant: str, title: str) -> tuple[Ref, ...]:
        """The experiments of that title in every project, in any state."""
        with self._ledger.read(tenant_system_context(tenant)) as reader:
            page = reader.find("experiment", terms={"title": compute_title_digest(title)}, limit=1000)
        return tuple(record.ref.bare for record in page.records)

    def encoded(self, run: Run, encode_run: Callable[[Run], bytes]) -> bytes:
        """What `encode_run` gave for this very run, kept as long as the board gives out the same one."""
        cached = self._encoded_runs.get(id(run))
        if cached is not None and cached[0] is run:
            return cached[1]
        encoded = encode_run(run)
        self._encoded_runs[id(run)] = (run, encoded)
        if len(self._encoded_runs) > _MAX_CACHED_REFS // 4:
            self._encoded_runs.popitem(last=False)
        return encoded

    def made(self, reader: LedgerReader, run: Ref) -> tuple[tuple[str, int], ...]:
        """(id, step) of each model that a run logged."""
        return tuple((name, step) for name, step in self._require_run(reader, run).body.get("outputs", ()))

    def placed(self, tenant: str, kind: str, id_: str) -> Ref | None:
        """Runs, experiments and what runs made never move, so where one stands is looked up once."""
        name = (tenant, kind, id_)
        ref = self._ref_cache.get(name)
        if ref is None:
            with self._ledger.read(tenant_system_context(tenant)) as reader:
                records = reader.find(kind, terms={"id": id_}, limit=1).records
            if not records:
                return None
            ref = records[0].ref.bare
            if self._ledger.busy:
                return ref  # it may yet be undone
            self._ref_cache[name] = ref
            if len(self._ref_cache) > _MAX_CACHED_REFS:
                self._ref_cache.popitem(last=False)
        return ref

    def add_made(self, writer: LedgerWriter, run: Ref, models: Mapping[str, int]) -> LedgerRecord:
        """Note the models that a run made, by id, each with its step; for the desk that keeps those."""
        old_run = self._require_active_run(writer, run)
        logged_models = {**dict(old_run.body.get("outputs", ())), **models}
        return self._save_run(writer, old_run, {"outputs": [[name, step] for name, step in logged_models.items()]})

    def _join_output_labels(self, writer: LedgerWriter, run: LedgerRecord, inputs: tuple[Ref, ...]) -> None:
        """What a run logged before it said what it used comes from that all the same, and carries its label."""
        logged_records = {
            output_record.key: output_record
            for output_record in find_all_records(writer, "output", terms={"run": run.key.name})
        }
        for name, _ in run.body.get("outputs", ()):
            logged_records |= {
                output_record.key: output_record
                for output_record in writer.find("output", terms={"id": name}, limit=1).records
            }
        for old_output in logged_records.values():
            new_output = writer.put(
                old_output.key, old_output.body, rev=old_output.rev, label=old_output.label.join(run.label)
            )
            writer.emit("outputs.change", new_output.ref, (run.ref, *inputs), status=old_output.body["status"])

    def _require_run(self, reader: LedgerReader, run: Ref) -> LedgerRecord:
        return require_record(reader, run, "run")

    def _require_active_run(self, reader: LedgerReader, run: Ref) -> LedgerRecord:
        record = require_record(reader, run, "run")
        if record.body["state"] != "active":
            raise Invalid(f"{run.bare} is deleted", f"falaj track restore {run.bare}", run)
        return record

    def _require_experiment(self, reader: LedgerReader, name: Ref) -> LedgerRecord:
        return require_record(reader, name, "experiment")

    def _save_run(self, writer: LedgerWriter, old_run: LedgerRecord, changes: Mapping[str, Any]) -> LedgerRecord:
        """Write a run over what was read, and have the board follow once that is durable."""
        body = {**old_run.body, **changes}
        record = writer.put(old_run.key, body, rev=old_run, terms=build_run_terms(body))
        self._update_index_after(writer, record)
        return record

    def _update_index_after(self, writer: LedgerWriter, record: LedgerRecord) -> None:
        writer.after(lambda is_durable: self.board.take(record) if is_durable else self.board.doubt(record.key))

    def _to_run(self, record: LedgerRecord) -> Run:
        """A run with the newest of each of its metrics, as they are durable now."""
        return to_run(record, self.measures.heads(record.key.tenant, record.key.name))


def check_texts(text_kind: str, texts: Mapping[str, str] | None, max_chars: int = MAX_VALUE_CHARS) -> dict[str, str]:
    """Parameters or tags with keys and values of a bearable length, or Invalid."""
    for key, value in (texts or {}).items():
        check_key(text_kind, key)
        if len(value) > max_chars or "\0" in value:
            raise Invalid(
                f"the {text_kind} {key[:80]!r} has {len(value)} characters", f"at most {max_chars}, and no NUL"
            )
    return dict(texts or {})


def check_key(text_kind: str, key: str) -> None:
    """Invalid unless this can be the name of a parameter, a tag or a metric."""
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isprintable():
        raise Invalid(f"{key[:80]!r} cannot name a {text_kind}", f"1 to {MAX_KEY_CHARS} printable characters")


def check_title(title: str) -> str:
    """The title, if it can be one."""
    if len(title) > MAX_TITLE_CHARS or not title.isprintable():
        raise Invalid(f"{title[:80]!r} cannot be a title", f"at most {MAX_TITLE_CHARS} printable characters")
    return title
