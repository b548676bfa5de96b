"""Definitions: entities, views and services, each version fixed for good; who uses which."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.errors import Invalid, NotFound
from falaj.core.event import generate_id
from falaj.core.label import Label, join_labels
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.features.change_planning import (
    DefinitionState,
    StoredDefinition,
    check_definition,
    differs_in_words_only,
    plan_changes,
    shares_rows,
)
from falaj.features.records import (
    KINDS,
    ChangePlan,
    ColumnPick,
    DefinitionPage,
    DefinitionSet,
    DefinitionView,
    EntityDef,
    ServiceDef,
    ViewDef,
)
from falaj.features.row_stream import ViewDetails
from falaj.features.service_base import (
    DEFINITION_TYPES,
    HEAD_TERMS,
    FeatureServiceBase,
    read_definition,
    require_definition,
)
from falaj.jobs.attempts import to_submitter
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

MAX_PAGE = 1000
_MAX_USERS = 1000


class DefinitionOperations(FeatureServiceBase):
    """What is defined, and what relies on it."""

    @operation()
    def plan(
        self, ctx: CallContext, definitions: Annotated[DefinitionSet, "what a definition file says"]
    ) -> ChangePlan:
        """Show what applying definitions would change, what it would break, and who uses that.

        `falaj features apply FILE --plan` reads the file and calls this.

        Example:
            falaj features plan --definitions @definitions.json
        """
        with self._ledger.read(ctx) as tx:
            return plan_changes(definitions, self._read_state(tx, ctx, definitions))

    @operation(writes=("name",), reads=("views",))
    def define(
        self,
        ctx: CallContext,
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
        parsed = from_plain(DEFINITION_TYPES[name.kind], definition)
        if parsed.name != f"{name.project}/{name.name}":
            raise Invalid(f"this is the definition of {parsed.name}", f"not of {name}", name)
        with self._ledger.write(ctx) as tx:
            pins, joined_label = self._pin_dependencies(tx, ctx, parsed, views)
            return self._add_version(tx, ctx, name, parsed, pins, joined_label)

    @operation()
    def list(
        self,
        ctx: CallContext,
        kind: Annotated[str, "entity, view or service; views when left out"] = "view",
        project: Annotated[str, "of one project only"] = "",
        search: Annotated[str, "only those with this text in name, words, tags or columns"] = "",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> DefinitionPage:
        """List what is defined and you may see, each at its newest version; --search finds what to reuse.

        Example:
            falaj features list --search spend
        """
        if kind not in KINDS or not 0 < limit <= MAX_PAGE:
            raise Invalid(f"a page of {limit} of {kind!r:.40}", f"{', '.join(KINDS)}; 1 to {MAX_PAGE}")
        with self._ledger.read(ctx) as tx:
            terms, scopes = {"newest": "yes"}, ctx.cells(kind)
            page = tx.find(kind, project=project, terms=terms, scopes=scopes, after=after, limit=limit)
            views = [self._to_view(tx, record) for record in page.records]
        search_text = search.casefold()
        return DefinitionPage(tuple(view for view in views if search_text in _get_search_text(view)), page.next)

    @operation(reads=("name",))
    def show(self, ctx: CallContext, name: Annotated[Ref, "which entity, view or service"]) -> DefinitionView:
        """Show a definition, its version, how many rows it has and how fresh they are.

        Example:
            falaj features show view:fraud/spend
        """
        with self._ledger.read(ctx) as tx:
            record = require_definition(tx, name)
            return replace(self._to_view(tx, record), definition=record.body["definition"])

    @operation(reads=("view",))
    def about(self, ctx: CallContext, view: Annotated[Ref, "which view"]) -> ViewDetails:
        """What bringing or reading rows of a view takes to know: its definition, its entity and its stream.

        Example:
            falaj features about view:fraud/spend --json
        """
        with self._ledger.read(ctx) as tx:
            return self._read_view(tx, view).arrival

    @operation(reads=("name",))
    def users(self, ctx: CallContext, name: Annotated[Ref, "which view or service"]) -> tuple[Ref, ...]:
        """Who uses it: services, training sets and models that you may see.

        Example:
            falaj features users view:fraud/spend
        """
        with self._ledger.read(ctx) as tx:
            pinned = require_definition(tx, name).ref
            scopes_by_kind = {kind: ctx.cells(kind) for kind in ("service", "dataset", "model")}
            return tuple(sorted(ref for ref, scope in list_users(tx, pinned) if scope in scopes_by_kind[ref.kind]))

    def _pin_dependencies(
        self, tx: LedgerReader, ctx: CallContext, definition: Any, views: tuple[Ref, ...]
    ) -> tuple[dict[str, Any], Label | None]:
        """What a version is made of, pinned; and its label where that is more than the guard knows."""
        if isinstance(definition, EntityDef):
            check_definition(definition)
            return {}, None
        if isinstance(definition, ViewDef):
            project, _, name = definition.entity.partition("/")
            entity = require_definition(tx, Ref("entity", project, name), "entity")
            check_definition(definition, entities=[read_definition(entity)])
            if definition.zone not in ("", ctx.zone) and (definition.online or definition.source.kind == "push"):
                # The online store and what is pushed lie where this platform stands, and nowhere else.
                hint = f"online=False and no pushes, or define it on the platform of {definition.zone}"
                raise Invalid(
                    f"{definition.name} lies in {definition.zone}, and this platform serves from {ctx.zone}", hint
                )
            return {"entity": str(entity.ref)}, (ctx.label or Label()).join(definition.label)
        view_records = {str(ref.bare): require_definition(tx, ref, "view") for ref in views}
        picked_records = [
            (pick, view_records.get(str(Ref.parse(f"view:{pick.view}").bare))) for pick in definition.picks
        ]
        missing = next((pick.view for pick, record in picked_records if record is None), "")
        if missing:
            raise NotFound(f"the view {missing} was not named", "name every view that the service takes from")
        found_picks = [(pick, record, read_definition(record)) for pick, record in picked_records if record is not None]
        owners = [read_definition(tx.need(Ref.parse(record.body["entity"]))) for _, record, _ in found_picks]
        check_definition(definition, entities=owners, views=[view for _, _, view in found_picks])
        label = join_labels((ctx.label or Label(), *(_join_picked_labels(pick, view) for pick, _, view in found_picks)))
        return {"views": [str(record.ref) for _, record, _ in found_picks]}, label

    def _add_version(
        self,
        tx: LedgerWriter,
        ctx: CallContext,
        name: Ref,
        definition: Any,
        pins: Mapping[str, Any],
        label: Label | None,
    ) -> Ref:
        head = tx.get(name)
        stored = tx.get(name.at(head.body["newest"])) if head else None
        definition_data = to_plain(definition)
        if stored is not None and all(stored.body.get(key) == value for key, value in pins.items()):
            if stored.body["definition"] == definition_data:
                tx.emit("features.define", stored.ref, unchanged=1)
                return stored.ref
            if differs_in_words_only(read_definition(stored), definition):
                tx.put(stored.ref, {**stored.body, "definition": definition_data}, rev=stored.rev)
                tx.emit("features.describe", stored.ref)
                return stored.ref
        count = (head.body["count"] if head else 0) + 1
        version = name.at(f"v{count}")
        has_shared_rows = (
            stored is not None and name.kind == "view" and self._shares_rows(tx, stored, definition, pins["entity"])
        )
        body = {
            "definition": definition_data,
            "made_at": ctx.now(),
            "id": generate_id(),
            "who": to_submitter(ctx),
            **pins,
            **({"rows": stored.body["rows"] if has_shared_rows and stored else count} if name.kind == "view" else {}),
        }
        used_refs = [
            Ref.parse(text) for text in (*pins.get("views", ()), *([pins["entity"]] if "entity" in pins else []))
        ]
        terms = {"newest": "yes", **{f"from.{ref}": "yes" for ref in used_refs}}
        if stored is not None:
            remaining_terms = {key: value for key, value in stored.terms.items() if key != "newest"}
            tx.put(stored.ref, stored.body, rev=stored.rev, label=stored.label, terms=remaining_terms)
        changes: dict[str, Any] = {"newest": version.version, "count": count, "aliases": {}}
        tx.put(name, changes, rev=head.rev if head else None, terms=HEAD_TERMS, label=label)
        tx.put(version, body, label=label, terms=terms)
        tx.emit("features.define", version, tuple(used_refs))
        return version

    def _shares_rows(self, tx: LedgerReader, stored: LedgerRecord, definition: ViewDef, entity: str) -> bool:
        """Whether the next version has the rows of the one before."""
        entities = [read_definition(tx.need(Ref.parse(entity_ref))) for entity_ref in (stored.body["entity"], entity)]
        old_definition: ViewDef = read_definition(stored)
        # Rows that lie there under a label cannot be of a version that demands a stricter one.
        return old_definition.label.covers(definition.label) and shares_rows(old_definition, definition, *entities)

    def _read_state(self, tx: LedgerReader, ctx: CallContext, definitions: DefinitionSet) -> DefinitionState:
        """What stands of all that the definitions name or pick, and who relies on it, as far as one may see it."""
        scopes_by_kind = {kind: ctx.cells(kind) for kind in (*KINDS, "model", "dataset")}
        newest: dict[str, StoredDefinition] = {}
        older: dict[str, ViewDef] = {}
        pending = list(_list_named_refs(definitions))
        while pending:
            ref = pending.pop()
            head = tx.get(ref.bare)
            record = tx.get(ref if ref.pinned else ref.at(head.body["newest"])) if head else None
            if record is None or get_policy_scope(record) not in scopes_by_kind[ref.kind]:
                continue
            if ref.pinned:
                older[str(ref)] = read_definition(record)
            else:
                newest[str(ref)] = _to_stored_definition(record)
            if ref.kind == "view":
                entity = Ref.parse(record.body["entity"]).bare
                pending += [entity] if str(entity) not in newest else []
        services, models = self._list_dependents(
            tx, scopes_by_kind, [stored.ref for stored in newest.values() if stored.ref.kind == "view"]
        )
        return DefinitionState(newest, older, services, models)

    def _list_dependents(
        self, tx: LedgerReader, scopes_by_kind: Mapping[str, frozenset[str]], views: Iterable[Ref]
    ) -> tuple[tuple[StoredDefinition, ...], dict[str, tuple[str, ...]]]:
        """Services that use one of the views, and the models that were trained on them."""
        services: dict[Ref, StoredDefinition] = {}
        models: dict[str, tuple[str, ...]] = {}
        for view in views:
            for ref, scope in list_users(tx, view):
                if ref.kind != "service" or scope not in scopes_by_kind["service"]:
                    continue
                trained_models = [
                    model_ref
                    for model_ref, model_scope in list_users(tx, ref)
                    if model_ref.kind == "model" and model_scope in scopes_by_kind["model"]
                ]
                head = tx.get(ref.bare)
                if trained_models or (head is not None and head.body["newest"] == ref.version):
                    services[ref] = _to_stored_definition(tx.need(ref))
                for model in map(str, trained_models):
                    models[model] = (*models.get(model, ()), str(ref))
        return tuple(services.values()), models

    def _to_view(self, tx: LedgerReader, record: LedgerRecord) -> DefinitionView:
        definition = read_definition(record)
        used_refs = [*record.body.get("views", ()), *([record.body["entity"]] if "entity" in record.body else [])]
        definition_view = DefinitionView(
            record.ref,
            definition.owner if not isinstance(definition, EntityDef) else record.author,
            definition.about,
            _describe_columns(definition),
            record.label,
            record.body["made_at"],
            uses=tuple(map(Ref.parse, used_refs)),
            tags=definition.tags,
        )
        if not isinstance(definition, ViewDef):
            return definition_view
        view = self._read_view(tx, record.ref)
        stream = view.stream
        rows = sum(rows_part.num_rows for rows_part in stream.chapters) + sum(
            rows_part.num_rows for rows_part in stream.tail
        )
        return replace(
            definition_view,
            rows=rows,
            fresh=stream.newest_us / 1e6,
            generation=stream.generation,
            filled=stream.filled,
            quarantined=stream.quarantined,
            zone=view.arrival.zone,
        )


def list_users(tx: LedgerReader, ref: Ref) -> list[tuple[Ref, str]]:
    """Everything that was made with a version, as far as models, each with its cell."""
    scope_by_ref: dict[Ref, str] = {}
    frontier = [ref]
    for kinds in (("service", "dataset"), ("dataset", "model"), ("model",)):
        next_refs: list[Ref] = []
        for user in frontier:
            for kind in kinds:
                page = tx.find(kind, terms={f"from.{user}": "yes"}, limit=_MAX_USERS)
                next_refs += [record.ref for record in page.records]
                scope_by_ref |= {record.ref: get_policy_scope(record) for record in page.records}
        frontier = next_refs
    return list(scope_by_ref.items())


def get_policy_scope(record: LedgerRecord) -> str:
    """What policy may look at of a record."""
    from falaj.store.envelope import encode_scope

    return encode_scope(record.key.kind, record.key.project, record.zone, record.label, record.restricted)


def _list_named_refs(definitions: DefinitionSet) -> Iterable[Ref]:
    """Everything that definitions define or take from, once."""
    names = [f"entity:{view.name}" for view in definitions.entities]
    names += [
        f"{kind}:{name}" for view in definitions.views for kind, name in (("view", view.name), ("entity", view.entity))
    ]
    for service in definitions.services:
        picked_names = [f"view:{pick.view}" for pick in service.picks]
        names += [f"service:{service.name}", *picked_names, *(name.partition("@")[0] for name in picked_names)]
    return [Ref.parse(name) for name in dict.fromkeys(names)]


def _to_stored_definition(record: LedgerRecord) -> StoredDefinition:
    pins = (*record.body.get("views", ()), *([record.body["entity"]] if "entity" in record.body else []))
    return StoredDefinition(record.ref, read_definition(record), pins)


def _join_picked_labels(pick: ColumnPick, view: ViewDef) -> Label:
    """What the law says of what a service takes from a view."""
    picked_columns = set(pick.columns) or {column.name for column in view.features} | {
        column.name for column in view.windows
    }
    window_inputs = {column.of for column in view.windows if column.name in picked_columns}
    return join_labels(
        column.label
        for column in view.features
        if column.label is not None and column.name in picked_columns | window_inputs
    )


def _describe_columns(definition: Any) -> tuple[str, ...]:
    if isinstance(definition, EntityDef):
        return tuple(f"{field.name} {field.type}" for field in definition.keys)
    if isinstance(definition, ServiceDef):
        return tuple(f"{pick.view}.{name}" for pick in definition.picks for name in pick.columns or ("*",))
    return tuple(f"{field.name} {field.type}" for field in definition.windows or definition.features)


def _get_search_text(view: DefinitionView) -> str:
    return " ".join((str(view.ref), view.about, view.owner, *view.columns, *view.tags, *view.tags.values())).casefold()
