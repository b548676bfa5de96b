"""Definitions: entities, views and services, each version fixed for good; who uses which."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.errors import Invalid, NotFound
from falaj.core.event import new_id
from falaj.core.label import Label, join_all
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.features.decide import Standing, Stood, check, plan, rows_shared, words_only
from falaj.features.records import (
    KINDS,
    Defined,
    DefinedPage,
    Definitions,
    EntityDef,
    Pick,
    Plan,
    ServiceDef,
    ViewDef,
)
from falaj.features.shelf import DEFS, HEAD, Shelf, define_of, need
from falaj.features.stream import Arrival
from falaj.jobs.attempts import who_of
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Reader, Writer
from falaj.store.records import Record

MOST_PAGE = 1000
_ALL = 1000


class Defining(Shelf):
    """What is defined, and what relies on it."""

    @verb()
    def plan(self, ctx: Context, definitions: Annotated[Definitions, "what a definition file says"]) -> Plan:
        """Show what applying definitions would change, what it would break, and who uses that.

        `falaj features apply FILE --plan` reads the file and calls this.

        Example:
            falaj features plan --definitions @definitions.json
        """
        with self._ledger.read(ctx) as tx:
            return plan(definitions, self._standing(tx, ctx, definitions))

    @verb(writes=("name",), reads=("views",))
    def define(
        self,
        ctx: Context,
        name: Annotated[Ref, "what is defined, for example view:fraud/spend"],
        definition: Annotated[dict[str, Any], "the definition, as plain data"],
        views: Annotated[tuple[Ref, ...], "of a service: the views it takes from"] = (),
        label: Annotated[Label | None, "what the law says of it"] = None,
    ) -> Ref:
        """Define one entity, view or service. What numbers depend on makes a new version; other words change in place.

        `falaj features apply` does this for a whole file.

        Example:
            falaj features define entity:fraud/customer --definition @customer.json
        """
        del label  # the guard has joined it into ctx.label
        if name.kind not in KINDS or name.version:
            raise Invalid(f"{name} cannot be defined", "entity:, view: or service:, without a version", name)
        given = from_plain(DEFS[name.kind], definition)
        if given.name != f"{name.project}/{name.name}":
            raise Invalid(f"this is the definition of {given.name}", f"not of {name}", name)
        with self._ledger.write(ctx) as tx:
            made, label_made = self._made(tx, ctx, given, views)
            return self._add(tx, ctx, name, given, made, label_made)

    @verb()
    def list(
        self,
        ctx: Context,
        kind: Annotated[str, "entity, view or service; views when left out"] = "view",
        project: Annotated[str, "of one project only"] = "",
        search: Annotated[str, "only those with this text in name, words, tags or columns"] = "",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> DefinedPage:
        """List what is defined and you may see, each at its newest version; --search finds what to reuse.

        Example:
            falaj features list --search spend
        """
        if kind not in KINDS or not 0 < limit <= MOST_PAGE:
            raise Invalid(f"a page of {limit} of {kind!r:.40}", f"{', '.join(KINDS)}; 1 to {MOST_PAGE}")
        with self._ledger.read(ctx) as tx:
            terms, cells = {"newest": "yes"}, ctx.cells(kind)
            page = tx.find(kind, project=project, terms=terms, cells=cells, after=after, limit=limit)
            found = [self._shown(tx, record) for record in page.records]
        wanted = search.casefold()
        return DefinedPage(tuple(one for one in found if wanted in _words(one)), page.next)

    @verb(reads=("name",))
    def show(self, ctx: Context, name: Annotated[Ref, "which entity, view or service"]) -> Defined:
        """Show a definition, its version, how many rows it has and how fresh they are.

        Example:
            falaj features show view:fraud/spend
        """
        with self._ledger.read(ctx) as tx:
            record = need(tx, name)
            return replace(self._shown(tx, record), definition=record.body["definition"])

    @verb(reads=("view",))
    def about(self, ctx: Context, view: Annotated[Ref, "which view"]) -> Arrival:
        """What bringing or reading rows of a view takes to know: its definition, its entity and its stream.

        Example:
            falaj features about view:fraud/spend --json
        """
        with self._ledger.read(ctx) as tx:
            return self._view(tx, view).arrival

    @verb(reads=("name",))
    def users(self, ctx: Context, name: Annotated[Ref, "which view or service"]) -> tuple[Ref, ...]:
        """Who uses it: services, training sets and models that you may see.

        Example:
            falaj features users view:fraud/spend
        """
        with self._ledger.read(ctx) as tx:
            pinned = need(tx, name).ref
            cells = {kind: ctx.cells(kind) for kind in ("service", "dataset", "model")}
            return tuple(sorted(ref for ref, cell in users_of(tx, pinned) if cell in cells[ref.kind]))

    def _made(
        self, tx: Reader, ctx: Context, given: Any, views: tuple[Ref, ...]
    ) -> tuple[dict[str, Any], Label | None]:
        """What a version is made of, pinned; and its label where that is more than the guard knows."""
        if isinstance(given, EntityDef):
            check(given)
            return {}, None
        if isinstance(given, ViewDef):
            project, _, name = given.entity.partition("/")
            entity = need(tx, Ref("entity", project, name), "entity")
            check(given, entities=[define_of(entity)])
            if given.zone not in ("", ctx.zone) and (given.online or given.source.kind == "push"):
                # The online store and what is pushed lie where this platform stands, and nowhere else.
                hint = f"online=False and no pushes, or define it on the platform of {given.zone}"
                raise Invalid(f"{given.name} lies in {given.zone}, and this platform serves from {ctx.zone}", hint)
            return {"entity": str(entity.ref)}, (ctx.label or Label()).join(given.label)
        found = {str(ref.bare): need(tx, ref, "view") for ref in views}
        picked = [(pick, found.get(str(Ref.parse(f"view:{pick.view}").bare))) for pick in given.picks]
        lost = next((pick.view for pick, record in picked if record is None), "")
        if lost:
            raise NotFound(f"the view {lost} was not named", "name every view that the service takes from")
        known = [(pick, record, define_of(record)) for pick, record in picked if record is not None]
        owners = [define_of(tx.need(Ref.parse(record.body["entity"]))) for _, record, _ in known]
        check(given, entities=owners, views=[view for _, _, view in known])
        label = join_all((ctx.label or Label(), *(_asked(pick, view) for pick, _, view in known)))
        return {"views": [str(record.ref) for _, record, _ in known]}, label

    def _add(
        self, tx: Writer, ctx: Context, name: Ref, given: Any, made: Mapping[str, Any], label: Label | None
    ) -> Ref:
        head = tx.get(name)
        old = tx.get(name.at(head.body["newest"])) if head else None
        plain = to_plain(given)
        if old is not None and all(old.body.get(key) == value for key, value in made.items()):
            if old.body["definition"] == plain:
                tx.emit("features.define", old.ref, unchanged=1)
                return old.ref
            if words_only(define_of(old), given):
                tx.put(old.ref, {**old.body, "definition": plain}, rev=old.rev)
                tx.emit("features.describe", old.ref)
                return old.ref
        count = (head.body["count"] if head else 0) + 1
        version = name.at(f"v{count}")
        shared = old is not None and name.kind == "view" and self._shares(tx, old, given, made["entity"])
        body = {
            "definition": plain, "made_at": ctx.now(), "id": new_id(), "who": who_of(ctx), **made,
            **({"rows": old.body["rows"] if shared and old else count} if name.kind == "view" else {}),
        }  # fmt: skip
        uses = [Ref.parse(text) for text in (*made.get("views", ()), *([made["entity"]] if "entity" in made else []))]
        terms = {"newest": "yes", **{f"from.{ref}": "yes" for ref in uses}}
        if old is not None:
            left = {key: value for key, value in old.terms.items() if key != "newest"}
            tx.put(old.ref, old.body, rev=old.rev, label=old.label, terms=left)
        changes: dict[str, Any] = {"newest": version.version, "count": count, "aliases": {}}
        tx.put(name, changes, rev=head.rev if head else None, terms=HEAD, label=label)
        tx.put(version, body, label=label, terms=terms)
        tx.emit("features.define", version, tuple(uses))
        return version

    def _shares(self, tx: Reader, old: Record, given: ViewDef, entity: str) -> bool:
        """Whether the next version has the rows of the one before."""
        entities = [define_of(tx.need(Ref.parse(one))) for one in (old.body["entity"], entity)]
        before: ViewDef = define_of(old)
        # Rows that lie there under a label cannot be of a version that demands a stricter one.
        return before.label.covers(given.label) and rows_shared(before, given, *entities)

    def _standing(self, tx: Reader, ctx: Context, definitions: Definitions) -> Standing:
        """What stands of all that the definitions name or pick, and who relies on it, as far as one may see it."""
        cells = {kind: ctx.cells(kind) for kind in (*KINDS, "model", "dataset")}
        newest: dict[str, Stood] = {}
        older: dict[str, ViewDef] = {}
        asked = list(_named(definitions))
        while asked:
            ref = asked.pop()
            head = tx.get(ref.bare)
            record = tx.get(ref if ref.pinned else ref.at(head.body["newest"])) if head else None
            if record is None or cell_of(record) not in cells[ref.kind]:
                continue
            if ref.pinned:
                older[str(ref)] = define_of(record)
            else:
                newest[str(ref)] = _stood(record)
            if ref.kind == "view":
                entity = Ref.parse(record.body["entity"]).bare
                asked += [entity] if str(entity) not in newest else []
        services, models = self._relying(tx, cells, [one.ref for one in newest.values() if one.ref.kind == "view"])
        return Standing(newest, older, services, models)

    def _relying(
        self, tx: Reader, cells: Mapping[str, frozenset[str]], views: Iterable[Ref]
    ) -> tuple[tuple[Stood, ...], dict[str, tuple[str, ...]]]:
        """Services that use one of the views, and the models that were trained on them."""
        services: dict[Ref, Stood] = {}
        models: dict[str, tuple[str, ...]] = {}
        for view in views:
            for ref, cell in users_of(tx, view):
                if ref.kind != "service" or cell not in cells["service"]:
                    continue
                trained = [one for one, seen in users_of(tx, ref) if one.kind == "model" and seen in cells["model"]]
                head = tx.get(ref.bare)
                if trained or (head is not None and head.body["newest"] == ref.version):
                    services[ref] = _stood(tx.need(ref))
                for model in map(str, trained):
                    models[model] = (*models.get(model, ()), str(ref))
        return tuple(services.values()), models

    def _shown(self, tx: Reader, record: Record) -> Defined:
        definition = define_of(record)
        uses = [*record.body.get("views", ()), *([record.body["entity"]] if "entity" in record.body else [])]
        shown = Defined(
            record.ref, definition.owner if not isinstance(definition, EntityDef) else record.author,
            definition.about, _columns(definition), record.label, record.body["made_at"],
            uses=tuple(map(Ref.parse, uses)), tags=definition.tags,
        )  # fmt: skip
        if not isinstance(definition, ViewDef):
            return shown
        view = self._view(tx, record.ref)
        stream = view.stream
        rows = sum(one.num_rows for one in stream.chapters) + sum(one.num_rows for one in stream.tail)
        return replace(
            shown, rows=rows, fresh=stream.newest_us / 1e6, generation=stream.generation, filled=stream.filled,
            quarantined=stream.quarantined, zone=view.arrival.zone,
        )  # fmt: skip


def users_of(tx: Reader, ref: Ref) -> list[tuple[Ref, str]]:
    """Everything that was made with a version, as far as models, each with its cell."""
    seen: dict[Ref, str] = {}
    ahead = [ref]
    for kinds in (("service", "dataset"), ("dataset", "model"), ("model",)):
        reached: list[Ref] = []
        for one in ahead:
            for kind in kinds:
                page = tx.find(kind, terms={f"from.{one}": "yes"}, limit=_ALL)
                reached += [record.ref for record in page.records]
                seen |= {record.ref: cell_of(record) for record in page.records}
        ahead = reached
    return list(seen.items())


def cell_of(record: Record) -> str:
    """What policy may look at of a record."""
    from falaj.store.envelope import cell_text

    return cell_text(record.key.kind, record.key.project, record.zone, record.label, record.restricted)


def _named(definitions: Definitions) -> Iterable[Ref]:
    """Everything that definitions define or take from, once."""
    names = [f"entity:{one.name}" for one in definitions.entities]
    names += [
        f"{kind}:{name}" for one in definitions.views for kind, name in (("view", one.name), ("entity", one.entity))
    ]
    for service in definitions.services:
        picked = [f"view:{pick.view}" for pick in service.picks]
        names += [f"service:{service.name}", *picked, *(name.partition("@")[0] for name in picked)]
    return [Ref.parse(name) for name in dict.fromkeys(names)]


def _stood(record: Record) -> Stood:
    pins = (*record.body.get("views", ()), *([record.body["entity"]] if "entity" in record.body else []))
    return Stood(record.ref, define_of(record), pins)


def _asked(pick: Pick, view: ViewDef) -> Label:
    """What the law says of what a service takes from a view."""
    wanted = set(pick.columns) or {one.name for one in view.features} | {one.name for one in view.windows}
    through = {one.of for one in view.windows if one.name in wanted}
    return join_all(one.label for one in view.features if one.label is not None and one.name in wanted | through)


def _columns(definition: Any) -> tuple[str, ...]:
    if isinstance(definition, EntityDef):
        return tuple(f"{one.name} {one.type}" for one in definition.keys)
    if isinstance(definition, ServiceDef):
        return tuple(f"{pick.view}.{name}" for pick in definition.picks for name in pick.columns or ("*",))
    return tuple(f"{one.name} {one.type}" for one in definition.windows or definition.features)


def _words(one: Defined) -> str:
    return " ".join((str(one.ref), one.about, one.owner, *one.columns, *one.tags, *one.tags.values())).casefold()
