"""Where a revision's baseline comes from: tried in order, in the name of the watch's owner, and not for ever.

1. A version of `dataset:PROJECT/MODEL.baseline` that was made from this model (`falaj monitor baseline`, or 3).
2. `falaj.profile.json` in the model's own folder, written when it was trained.
3. A job over the training data that the model's lineage names.
4. The first traffic in the journal: without labels, and as good or bad as that traffic was.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from falaj.catalog.records import CatalogVersion
from falaj.catalog.version_reader import open_version
from falaj.core.client_command import Client
from falaj.core.errors import Conflict, FalajError, Invalid, NotFound, StaleRevision, Unavailable
from falaj.core.ref import Ref
from falaj.drift.profile_making import make_profile, to_columns
from falaj.drift.profiles import encode_profile
from falaj.drift.records import PROFILE_FILE
from falaj.jobs import records as jobs
from falaj.jobs.records import JobSpec, JobView, RoleSpec
from falaj.monitor.baselines import StoredBaseline, make_baseline
from falaj.monitor.records import WatchPlan
from falaj.serve.journal_tensors import TensorsByName, read_inputs, read_outputs
from falaj.serve.request_journal import JournalRow, RequestJournal
from falaj.serve.serving_checks import OWN_CODE_FORMATS
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord

BASELINE_COMMAND = ("python", "-m", "falaj.infer.profiling")
MAX_PROFILE_BYTES = 16 << 20
MIN_TRAFFIC_ROWS, MAX_TRAFFIC_ROWS = 1_000, 20_000
"""So many rows of the journal make a baseline, and no more are read for it."""
TRAFFIC_SOURCE = "traffic"
ANSWER_PREFIX = "\0"
"""Before the names of answers, while they stand beside those of inputs."""
Body = dict[str, Any]


class ModelLineage(NamedTuple):
    """What the ledger says of a revision's model, read before anything is tried."""

    made: Ref | None
    """The newest baseline that was made from it."""
    data: Ref | None
    job: LedgerRecord | None


class SearchResult(NamedTuple):
    """What came of a look: a baseline, or none, and what the watch remembers of it."""

    based: StoredBaseline | None
    entry: Body


def make_dataset_ref(model: Ref) -> Ref:
    """The dataset whose versions are baselines of a model's."""
    return Ref("dataset", model.project, f"{model.name[:110]}.baseline")


def find_model_baseline(tx: LedgerReader, model: Ref) -> LedgerRecord | None:
    """The newest baseline that was made from exactly this version of a model."""
    versions = tx.find("dataset", project=model.project, name=make_dataset_ref(model).name, limit=1000).records
    matching = [
        version
        for version in versions
        if version.key.version and version.body.get("inputs", {}).get("model") == str(model)
    ]
    live_versions = [version for version in matching if version.body.get("state") == "live"]
    return max(live_versions, key=lambda version: int(version.key.version[1:]), default=None)


def find_training_data(tx: LedgerReader, model: Ref) -> Ref | None:
    """The training data that a model's lineage names: its input `data`, or its only dataset."""
    record = tx.get(model)
    inputs = record.body.get("inputs", {}) if record is not None else {}
    dataset_refs = {role: ref for role, ref in inputs.items() if ref.startswith("dataset:")}
    if "data" not in dataset_refs and len(dataset_refs) != 1:
        return None
    return Ref.parse(dataset_refs.get("data") or next(iter(dataset_refs.values())))


def submit_baseline_job(client: Client, model: Ref, data: Ref, parameters: dict[str, str], job_name: str) -> JobView:
    """A job that runs the model over its data and leaves a baseline. The same name again is the same job."""
    version: CatalogVersion = client.catalog.show(model)
    needs_code = version.card is not None and version.card.format in OWN_CODE_FORMATS and "code" in version.inputs
    code_inputs = {"code": version.inputs["code"]} if needs_code else {}
    env = {f"FALAJ_PARAM_{key.upper()}": value for key, value in {**parameters, "source": str(data)}.items() if value}
    spec = JobSpec(BASELINE_COMMAND, (RoleSpec("worker", 1, 1.0, "1GiB"),), retries=1, env=env, experiment="baseline")
    job = Ref("job", model.project, job_name)
    try:
        job_view: JobView = client.jobs.add(
            job,
            spec,
            inputs={"model": model, "data": data, **code_inputs},
            outputs={"profile": make_dataset_ref(model)},
        )
    except StaleRevision:
        raise
    except Conflict:
        job_view = client.jobs.show(job)
    return job_view


def read_profile_file(client: Client, version: Ref) -> bytes | None:
    """The profile in a version of a model or a baseline; None when there is none."""
    _, snapshot = open_version(client, version)
    try:
        entry = snapshot.entry(PROFILE_FILE.encode())
    except NotFound:
        return None
    if entry.kind != "file" or entry.size > MAX_PROFILE_BYTES:
        raise Invalid(
            f"{PROFILE_FILE} of {version} is no file of at most {MAX_PROFILE_BYTES >> 20} MiB", "make another", version
        )
    return b"".join(snapshot.read(entry))


def read_lineage(tx: LedgerReader, model: Ref, entry: Body) -> ModelLineage:
    """All that decides what is tried next."""
    newest_baseline = find_model_baseline(tx, model)
    return ModelLineage(
        newest_baseline.ref if newest_baseline else None,
        find_training_data(tx, model),
        tx.get(Ref.parse(entry["job"])) if entry["job"] else None,
    )


class BaselineSearch:
    """Looks for the baseline of one revision, in the name of the watch's owner."""

    def __init__(self, client: Client, journal: RequestJournal, plan: WatchPlan, now: float) -> None:
        self._client, self._journal, self._plan, self._now = client, journal, plan, now

    def look(self, tenant: str, endpoint: Ref, revision: Body, entry: Body, lineage: ModelLineage) -> SearchResult:
        """One look, in order; `entry` is what the watch remembers of this revision."""
        model, number = Ref.parse(revision["model"]), int(revision["number"])
        baseline, entry = self._try_versions(model, number, entry, lineage)
        if baseline is not None:
            return SearchResult(baseline, {**entry, "trouble": "", "note": ""})
        if lineage.job is None and lineage.data is not None and not entry["tried"]:
            return SearchResult(None, self._submit_job(model, lineage.data, entry))
        state = lineage.job.body["state"] if lineage.job is not None else ""
        if lineage.job is not None and state not in jobs.ENDED_STATES:
            return SearchResult(None, entry)
        if lineage.job is not None and state != jobs.SUCCEEDED:
            entry = {**entry, "trouble": f"{entry['job']} {state}: {lineage.job.body['note']}"[:400]}
        return self._try_traffic(tenant, endpoint, revision, entry)

    def _try_versions(
        self, model: Ref, number: int, entry: Body, lineage: ModelLineage
    ) -> tuple[StoredBaseline | None, Body]:
        for version in (lineage.made, None if entry["bare"] else model):
            if version is None or str(version) == entry["bad"]:
                continue
            try:
                data = read_profile_file(self._client, version)
                if data is not None:
                    return make_baseline(data, number, str(version), self._now), entry
            except (StaleRevision, Unavailable):
                raise
            except FalajError as error:
                entry = {**entry, "trouble": f"the baseline in {version} cannot be used: {error}"[:500]}
            entry = {**entry, "bare": True} if version is model else {**entry, "bad": str(version)}
        return None, entry

    def _submit_job(self, model: Ref, data: Ref, entry: Body) -> Body:
        job_name = f"baseline-{model.name[:60]}-{model.version}"
        try:
            job = submit_baseline_job(
                self._client, model, data, {"target": self._plan.target, "segment": self._plan.segment}, job_name
            )
        except (StaleRevision, Unavailable):
            raise
        except FalajError as error:
            return {**entry, "tried": True, "trouble": f"no baseline could be made from {data}: {error}"[:500]}
        return {**entry, "job": str(job.ref.bare), "tried": True, "note": f"{job.ref.bare} makes it from {data}"}

    def _try_traffic(self, tenant: str, endpoint: Ref, revision: Body, entry: Body) -> SearchResult:
        """Of the first requests of a revision that were kept. What cannot be read now will not be later."""
        number, rows = int(revision["number"]), list[JournalRow]()
        for row in self._journal.read(tenant, endpoint, float(revision["made_at"])) if not entry["unfit"] else ():
            if row.revision == number and row.status < 400:
                rows.append(row)
            if len(rows) >= MAX_TRAFFIC_ROWS:
                break
        notes = [entry["trouble"]] if entry["trouble"] else []
        if len(rows) >= MIN_TRAFFIC_ROWS:
            try:
                baseline = make_baseline(profile_requests(rows, self._plan.segment), number, TRAFFIC_SOURCE, self._now)
                return SearchResult(baseline, {**entry, "note": ""})
            except (Invalid, ArithmeticError, LookupError, TypeError, ValueError) as error:  # callers wrote all of it
                entry = {**entry, "unfit": f"the first traffic makes no baseline: {error}"[:300]}
        notes.append(entry["unfit"] or f"waits for {MIN_TRAFFIC_ROWS:,} requests in the journal")
        return SearchResult(None, {**entry, "note": "; ".join(notes)})


def profile_requests(rows: Iterable[JournalRow], segment: str = "") -> bytes:
    """A profile of requests that were kept; Invalid when nothing can be made of them."""
    request_tensors = [(read_inputs(row), read_outputs(row)) for row in rows]
    stacked_tensors = stack_tensors(
        {**inputs_part, **{f"{ANSWER_PREFIX}{name}": tensor for name, tensor in outputs_part.items()}}
        for inputs_part, outputs_part in request_tensors
    )
    tensors = {
        name: to_columns(name, array) for name, array in stacked_tensors.items() if not name.startswith(ANSWER_PREFIX)
    }
    answers = {
        name.removeprefix(ANSWER_PREFIX): array
        for name, array in stacked_tensors.items()
        if name.startswith(ANSWER_PREFIX)
    }
    inputs = {column: values for column_arrays in tensors.values() for column, values in column_arrays.items()}
    if not inputs or not answers:
        raise Invalid("requests and answers cannot be read as columns", "make one: falaj monitor baseline")
    names = {name: tuple(column_arrays) for name, column_arrays in tensors.items()}
    return encode_profile(
        make_profile(
            inputs, answers, segment=segment if segment in inputs else "", source=TRAFFIC_SOURCE, tensors=names
        )
    )


def stack_tensors(request_tensors: Iterable[TensorsByName]) -> dict[str, "np.ndarray[Any, Any]"]:
    """Tensors of many requests, one upon the other, a line for each row.

    Requests that are shaped otherwise than most are left out: callers send what they like.
    """
    requests_by_shape: dict[tuple[tuple[str, int], ...], list[dict[str, list[list[Any]]]]] = {}
    for tensors in request_tensors:
        tensor_lines = {name: _split_rows(shape, values) for name, (shape, values) in sorted(tensors.items())}
        if (
            tensor_lines
            and all(tensor_lines.values())
            and len({len(tensor_rows) for tensor_rows in tensor_lines.values()}) == 1
        ):
            requests_by_shape.setdefault(
                tuple((name, len(tensor_rows[0])) for name, tensor_rows in tensor_lines.items()), []
            ).append(tensor_lines)
    common_requests = max(requests_by_shape.values(), key=len, default=[])
    names = common_requests[0] if common_requests else {}
    return {
        name: _to_array([line for tensor_lines in common_requests for line in tensor_lines[name]]) for name in names
    }


def _split_rows(shape: tuple[int, ...], values: list[Any]) -> list[list[Any]]:
    rows = shape[0] if shape else 1
    row_width = len(values) // rows if rows else 0
    return (
        [values[row_number * row_width : (row_number + 1) * row_width] for row_number in range(rows)]
        if row_width
        else []
    )


def _to_array(rows: list[list[Any]]) -> "np.ndarray[Any, Any]":
    if all(isinstance(cell, (bool, int, float)) for row in rows for cell in row):
        return np.asarray(rows)
    return np.asarray([[str(cell) for cell in row] for row in rows], object)
