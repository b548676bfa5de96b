"""Where a revision's baseline comes from: tried in order, in the name of the watch's owner, and not for ever.

1. A version of `dataset:PROJECT/MODEL.baseline` that was made from this model (`falaj monitor baseline`, or 3).
2. `falaj.profile.json` in the model's own folder, written when it was trained.
3. A job over the training data that the model's lineage names.
4. The first traffic in the journal: without labels, and as good or bad as that traffic was.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from falaj.catalog.reading import open_version
from falaj.catalog.records import Version
from falaj.core.errand import Here
from falaj.core.errors import Conflict, FalajError, Invalid, NotFound, Stale, Unavailable
from falaj.core.ref import Ref
from falaj.drift.making import columns_of, made
from falaj.drift.profile import to_json
from falaj.drift.records import FILE
from falaj.jobs import records as jobs
from falaj.jobs.records import JobSpec, JobView, RoleSpec
from falaj.monitor.baselines import Based, based_on
from falaj.monitor.records import WatchPlan
from falaj.serve.bodies import Tensors, inputs_of, outputs_of
from falaj.serve.fitness import OWN_CODE
from falaj.serve.journal import Journal, Logged
from falaj.store.ledger import Reader
from falaj.store.records import Record

COMMAND = ("python", "-m", "falaj.infer.profiling")
MOST_BYTES = 16 << 20
LEAST_TRAFFIC, MOST_TRAFFIC = 1_000, 20_000
"""So many rows of the journal make a baseline, and no more are read for it."""
TRAFFIC = "traffic"
OUT = "\0"
"""Before the names of answers, while they stand beside those of inputs."""
Body = dict[str, Any]


class Known(NamedTuple):
    """What the ledger says of a revision's model, read before anything is tried."""

    made: Ref | None
    """The newest baseline that was made from it."""
    data: Ref | None
    job: Record | None


class Found(NamedTuple):
    """What came of a look: a baseline, or none, and what the watch remembers of it."""

    based: Based | None
    entry: Body


def dataset_of(model: Ref) -> Ref:
    """The dataset whose versions are baselines of a model's."""
    return Ref("dataset", model.project, f"{model.name[:110]}.baseline")


def made_for(tx: Reader, model: Ref) -> Record | None:
    """The newest baseline that was made from exactly this version of a model."""
    found = tx.find("dataset", project=model.project, name=dataset_of(model).name, limit=1000).records
    fits = [one for one in found if one.key.version and one.body.get("inputs", {}).get("model") == str(model)]
    live = [one for one in fits if one.body.get("state") == "live"]
    return max(live, key=lambda one: int(one.key.version[1:]), default=None)


def data_of(tx: Reader, model: Ref) -> Ref | None:
    """The training data that a model's lineage names: its input `data`, or its only dataset."""
    record = tx.get(model)
    inputs = record.body.get("inputs", {}) if record is not None else {}
    sets = {role: ref for role, ref in inputs.items() if ref.startswith("dataset:")}
    if "data" not in sets and len(sets) != 1:
        return None
    return Ref.parse(sets.get("data") or next(iter(sets.values())))


def ask(here: Here, model: Ref, data: Ref, words: dict[str, str], name: str) -> JobView:
    """A job that runs the model over its data and leaves a baseline. The same name again is the same job."""
    version: Version = here.catalog.show(model)
    needed = version.card is not None and version.card.format in OWN_CODE and "code" in version.inputs
    own = {"code": version.inputs["code"]} if needed else {}
    env = {f"FALAJ_PARAM_{key.upper()}": value for key, value in {**words, "source": str(data)}.items() if value}
    spec = JobSpec(COMMAND, (RoleSpec("worker", 1, 1.0, "1GiB"),), retries=1, env=env, experiment="baseline")
    job = Ref("job", model.project, name)
    try:
        asked: JobView = here.jobs.add(
            job, spec, inputs={"model": model, "data": data, **own}, outputs={"profile": dataset_of(model)}
        )
    except Stale:
        raise
    except Conflict:
        asked = here.jobs.show(job)
    return asked


def read_from(here: Here, version: Ref) -> bytes | None:
    """The profile in a version of a model or a baseline; None when there is none."""
    _, files = open_version(here, version)
    try:
        entry = files.entry(FILE.encode())
    except NotFound:
        return None
    if entry.kind != "file" or entry.size > MOST_BYTES:
        raise Invalid(f"{FILE} of {version} is no file of at most {MOST_BYTES >> 20} MiB", "make another", version)
    return b"".join(files.read(entry))


def known(tx: Reader, model: Ref, entry: Body) -> Known:
    """All that decides what is tried next."""
    newest = made_for(tx, model)
    return Known(
        newest.ref if newest else None, data_of(tx, model), tx.get(Ref.parse(entry["job"])) if entry["job"] else None
    )


class Basing:
    """Looks for the baseline of one revision, in the name of the watch's owner."""

    def __init__(self, here: Here, journal: Journal, plan: WatchPlan, now: float) -> None:
        self._here, self._journal, self._plan, self._now = here, journal, plan, now

    def look(self, tenant: str, endpoint: Ref, revision: Body, entry: Body, seen: Known) -> Found:
        """One look, in order; `entry` is what the watch remembers of this revision."""
        model, number = Ref.parse(revision["model"]), int(revision["number"])
        based, entry = self._versions(model, number, entry, seen)
        if based is not None:
            return Found(based, {**entry, "trouble": "", "note": ""})
        if seen.job is None and seen.data is not None and not entry["tried"]:
            return Found(None, self._asked(model, seen.data, entry))
        state = seen.job.body["state"] if seen.job is not None else ""
        if seen.job is not None and state not in jobs.OVER:
            return Found(None, entry)
        if seen.job is not None and state != jobs.SUCCEEDED:
            entry = {**entry, "trouble": f"{entry['job']} {state}: {seen.job.body['note']}"[:400]}
        return self._traffic(tenant, endpoint, revision, entry)

    def _versions(self, model: Ref, number: int, entry: Body, seen: Known) -> tuple[Based | None, Body]:
        for version in (seen.made, None if entry["bare"] else model):
            if version is None or str(version) == entry["bad"]:
                continue
            try:
                data = read_from(self._here, version)
                if data is not None:
                    return based_on(data, number, str(version), self._now), entry
            except (Stale, Unavailable):
                raise
            except FalajError as error:
                entry = {**entry, "trouble": f"the baseline in {version} cannot be used: {error}"[:500]}
            entry = {**entry, "bare": True} if version is model else {**entry, "bad": str(version)}
        return None, entry

    def _asked(self, model: Ref, data: Ref, entry: Body) -> Body:
        name = f"baseline-{model.name[:60]}-{model.version}"
        try:
            job = ask(self._here, model, data, {"target": self._plan.target, "segment": self._plan.segment}, name)
        except (Stale, Unavailable):
            raise
        except FalajError as error:
            return {**entry, "tried": True, "trouble": f"no baseline could be made from {data}: {error}"[:500]}
        return {**entry, "job": str(job.ref.bare), "tried": True, "note": f"{job.ref.bare} makes it from {data}"}

    def _traffic(self, tenant: str, endpoint: Ref, revision: Body, entry: Body) -> Found:
        """Of the first requests of a revision that were kept. What cannot be read now will not be later."""
        number, rows = int(revision["number"]), list[Logged]()
        for row in self._journal.read(tenant, endpoint, float(revision["made_at"])) if not entry["unfit"] else ():
            if row.revision == number and row.status < 400:
                rows.append(row)
            if len(rows) >= MOST_TRAFFIC:
                break
        told = [entry["trouble"]] if entry["trouble"] else []
        if len(rows) >= LEAST_TRAFFIC:
            try:
                based = based_on(profiled(rows, self._plan.segment), number, TRAFFIC, self._now)
                return Found(based, {**entry, "note": ""})
            except (Invalid, ArithmeticError, LookupError, TypeError, ValueError) as error:  # callers wrote all of it
                entry = {**entry, "unfit": f"the first traffic makes no baseline: {error}"[:300]}
        told.append(entry["unfit"] or f"waits for {LEAST_TRAFFIC:,} requests in the journal")
        return Found(None, {**entry, "note": "; ".join(told)})


def profiled(rows: Iterable[Logged], segment: str = "") -> bytes:
    """A profile of requests that were kept; Invalid when nothing can be made of them."""
    read = [(inputs_of(row), outputs_of(row)) for row in rows]
    both = stacked({**one, **{f"{OUT}{name}": tensor for name, tensor in out.items()}} for one, out in read)
    tensors = {name: columns_of(name, array) for name, array in both.items() if not name.startswith(OUT)}
    answers = {name.removeprefix(OUT): array for name, array in both.items() if name.startswith(OUT)}
    inputs = {column: values for found in tensors.values() for column, values in found.items()}
    if not inputs or not answers:
        raise Invalid("requests and answers cannot be read as columns", "make one: falaj monitor baseline")
    names = {name: tuple(found) for name, found in tensors.items()}
    return to_json(made(inputs, answers, segment=segment if segment in inputs else "", source=TRAFFIC, tensors=names))


def stacked(read: Iterable[Tensors]) -> dict[str, "np.ndarray[Any, Any]"]:
    """Tensors of many requests, one upon the other, a line for each row.

    Requests that are shaped otherwise than most are left out: callers send what they like.
    """
    alike: dict[tuple[tuple[str, int], ...], list[dict[str, list[list[Any]]]]] = {}
    for tensors in read:
        lines = {name: _lines(shape, values) for name, (shape, values) in sorted(tensors.items())}
        if lines and all(lines.values()) and len({len(one) for one in lines.values()}) == 1:
            alike.setdefault(tuple((name, len(one[0])) for name, one in lines.items()), []).append(lines)
    usual = max(alike.values(), key=len, default=[])
    names = usual[0] if usual else {}
    return {name: _array([line for lines in usual for line in lines[name]]) for name in names}


def _lines(shape: tuple[int, ...], values: list[Any]) -> list[list[Any]]:
    rows = shape[0] if shape else 1
    wide = len(values) // rows if rows else 0
    return [values[at * wide : (at + 1) * wide] for at in range(rows)] if wide else []


def _array(rows: list[list[Any]]) -> "np.ndarray[Any, Any]":
    if all(isinstance(one, (bool, int, float)) for row in rows for one in row):
        return np.asarray(rows)
    return np.asarray([[str(one) for one in row] for row in rows], object)
