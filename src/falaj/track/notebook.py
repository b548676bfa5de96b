"""The notebook: what the parts of the desk of experiments share. How records are found, read, checked and written."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from falaj.catalog.service import Catalog
from falaj.core.errors import Invalid
from falaj.core.ports import Series
from falaj.core.ref import Ref
from falaj.store.blobs import BlobStore
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record
from falaj.track.board import Board
from falaj.track.measures import Measures
from falaj.track.reading import as_run, digest_of, find_all, house, need, terms_of
from falaj.track.records import DEFAULT, Run

MOST_PARAMS, MOST_TAGS = 10_000, 10_000
KEY, VALUE, TITLE = 250, 8_000, 500
"""How long the key of a parameter, a tag or a metric may be, how long a value, how long a title."""
_KNOWN = 100_000


class Notebook:
    """The furniture every part of the desk stands on."""

    def __init__(self, ledger: Ledger, blobs: BlobStore, series: Series, catalog: Catalog) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._catalog = catalog
        self.destruction = catalog.destruction
        self.measures = Measures(series, ledger)
        self.board = Board(ledger, self.measures)
        self._places: OrderedDict[tuple[str, str, str], Ref] = OrderedDict()
        self._encoded: OrderedDict[int, tuple[Run, bytes]] = OrderedDict()

    def close(self) -> None:
        """End the background work."""
        self.measures.close()

    def run_ref(self, tenant: str, id_: str) -> Ref | None:
        """The run of that id. Knowing where it stands is no permission: the guard asks on."""
        return self.placed(tenant, "run", id_)

    def experiment_ref(self, tenant: str, id_: str) -> Ref | None:
        """The experiment of that number. The default one has its name before it is made."""
        return DEFAULT if id_ == "0" else self.placed(tenant, "experiment", id_)

    def find_titled(self, tenant: str, title: str) -> tuple[Ref, ...]:
        """The experiments of that title in every project, in any state."""
        with self._ledger.read(house(tenant)) as tx:
            page = tx.find("experiment", terms={"title": digest_of(title)}, limit=1000)
        return tuple(record.ref.bare for record in page.records)

    def encoded(self, run: Run, encode: Callable[[Run], bytes]) -> bytes:
        """What `encode` gave for this very run, kept as long as the board gives out the same one."""
        known = self._encoded.get(id(run))
        if known is not None and known[0] is run:
            return known[1]
        made = encode(run)
        self._encoded[id(run)] = (run, made)
        if len(self._encoded) > _KNOWN // 4:
            self._encoded.popitem(last=False)
        return made

    def made(self, tx: Reader, run: Ref) -> tuple[tuple[str, int], ...]:
        """(id, step) of each model that a run logged."""
        return tuple((name, step) for name, step in self._run(tx, run).body.get("outputs", ()))

    def placed(self, tenant: str, kind: str, id_: str) -> Ref | None:
        """Runs, experiments and what runs made never move, so where one stands is looked up once."""
        name = (tenant, kind, id_)
        ref = self._places.get(name)
        if ref is None:
            with self._ledger.read(house(tenant)) as tx:
                found = tx.find(kind, terms={"id": id_}, limit=1).records
            if not found:
                return None
            ref = found[0].ref.bare
            if self._ledger.busy:
                return ref  # it may yet be undone
            self._places[name] = ref
            if len(self._places) > _KNOWN:
                self._places.popitem(last=False)
        return ref

    def add_made(self, tx: Writer, run: Ref, models: Mapping[str, int]) -> Record:
        """Note the models that a run made, by id, each with its step; for the desk that keeps those."""
        old = self._live_run(tx, run)
        made = {**dict(old.body.get("outputs", ())), **models}
        return self._save_run(tx, old, {"outputs": [[name, step] for name, step in made.items()]})

    def _burden(self, tx: Writer, run: Record, inputs: tuple[Ref, ...]) -> None:
        """What a run logged before it said what it used comes from that all the same, and carries its label."""
        logged = {one.key: one for one in find_all(tx, "output", terms={"run": run.key.name})}
        for name, _ in run.body.get("outputs", ()):
            logged |= {one.key: one for one in tx.find("output", terms={"id": name}, limit=1).records}
        for old in logged.values():
            made = tx.put(old.key, old.body, rev=old.rev, label=old.label.join(run.label))
            tx.emit("outputs.change", made.ref, (run.ref, *inputs), status=old.body["status"])

    def _run(self, tx: Reader, run: Ref) -> Record:
        return need(tx, run, "run")

    def _live_run(self, tx: Reader, run: Ref) -> Record:
        record = need(tx, run, "run")
        if record.body["state"] != "active":
            raise Invalid(f"{run.bare} is deleted", f"falaj track restore {run.bare}", run)
        return record

    def _experiment(self, tx: Reader, name: Ref) -> Record:
        return need(tx, name, "experiment")

    def _save_run(self, tx: Writer, old: Record, changes: Mapping[str, Any]) -> Record:
        """Write a run over what was read, and have the board follow once that is durable."""
        body = {**old.body, **changes}
        record = tx.put(old.key, body, rev=old, terms=terms_of(body))
        self._follow(tx, record)
        return record

    def _follow(self, tx: Writer, record: Record) -> None:
        tx.after(lambda durable: self.board.take(record) if durable else self.board.doubt(record.key))

    def _as_run(self, record: Record) -> Run:
        """A run with the newest of each of its metrics, as they are durable now."""
        return as_run(record, self.measures.heads(record.key.tenant, record.key.name))


def check_texts(what: str, texts: Mapping[str, str] | None, longest: int = VALUE) -> dict[str, str]:
    """Parameters or tags with keys and values of a bearable length, or Invalid."""
    for key, value in (texts or {}).items():
        check_key(what, key)
        if len(value) > longest or "\0" in value:
            raise Invalid(f"the {what} {key[:80]!r} has {len(value)} characters", f"at most {longest}, and no NUL")
    return dict(texts or {})


def check_key(what: str, key: str) -> None:
    """Invalid unless this can be the name of a parameter, a tag or a metric."""
    if not 0 < len(key) <= KEY or not key.isprintable():
        raise Invalid(f"{key[:80]!r} cannot name a {what}", f"1 to {KEY} printable characters")


def check_title(title: str) -> str:
    """The title, if it can be one."""
    if len(title) > TITLE or not title.isprintable():
        raise Invalid(f"{title[:80]!r} cannot be a title", f"at most {TITLE} printable characters")
    return title
