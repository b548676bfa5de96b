"""Names: what is said of a name and of a version after it was published, aliases, and what an alias meant when."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from falaj.catalog.lifecycle_records import AliasBinding, NamePage, NameView
from falaj.catalog.publish_limits import MAX_MESSAGE, require_short_text, require_valid_tags
from falaj.catalog.records import VERSION_STAGES, CatalogVersion
from falaj.catalog.service_base import (
    HEAD_TERMS,
    MOVED_TAG,
    AliasMove,
    CatalogServiceBase,
    missing_version_error,
    require_catalog_kind,
    to_name_view,
    to_version,
)
from falaj.core.context import CallContext
from falaj.core.errors import Invalid
from falaj.core.event import Event
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger

_ALIAS_PATTERN = r"[a-z][a-z0-9._-]{0,62}"
_RESERVED_ALIASES = frozenset({*VERSION_STAGES, "latest", "newest"})
_PAGE_SIZE = 1000
HOW_UNRATIFIED, HOW_LAPSED = "emergency, not ratified", "emergency, lapsed"


class NameOperations(CatalogServiceBase):
    """What people say of names and versions, and the words they give to versions."""

    @operation(writes=("name",), unpinned_params=("name",))
    def describe(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "the name, without a version; it is made when it does not exist"],
        about: Annotated[str | None, "what it is, for whoever finds it; as it was when left out"] = None,
        tags: Annotated[dict[str, str] | None, "tags to set, by name"] = None,
        drop: Annotated[tuple[str, ...], "tags to take away"] = (),
    ) -> NameView:
        """Say what a name stands for, before or after it has versions.

        Example:
            falaj catalog describe model:fraud/scorer --about "scores card payments" --tags team=fraud
        """
        require_catalog_kind(name)
        if name.version:
            raise Invalid(f"{name} names a version", "falaj catalog annotate says something of a version", name)
        require_short_text("what is said of it", about or "", MAX_MESSAGE)
        with self._ledger.write(ctx) as tx:
            head_record = tx.get(name)
            head_body = head_record.body if head_record else {}
            merged_tags = _merge_tags(head_body.get("tags", {}), tags, drop)
            description = head_body.get("about", "") if about is None else about
            head_record = self._write_head(tx, name, {"about": description, "tags": merged_tags}, ctx.now())
            tx.emit("catalog.describe", head_record.ref, message=description[:500], tags=len(merged_tags))
        return to_name_view(head_record)

    @operation(reads=("name",), unpinned_params=("name",))
    def about(self, ctx: CallContext, name: Annotated[Ref, "the name"]) -> NameView:
        """Show a name: what it stands for, its tags, its newest version and its aliases.

        Example:
            falaj catalog about model:fraud/scorer
        """
        require_catalog_kind(name)
        with self._ledger.read(ctx) as tx:
            return to_name_view(tx.need(name.bare))

    @operation()
    def names(
        self,
        ctx: CallContext,
        kind: Annotated[str, "dataset, model or code; all of them when left out"] = "",
        project: Annotated[str, "of one project only"] = "",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> NamePage:
        """List the names you may see, those without a version too. A model that was renamed is listed once.

        Example:
            falaj catalog names --kind model --project fraud
        """
        with self._ledger.read(ctx) as tx:
            head_records, next_cursor = self.find_page(tx, ctx, (kind, project, ""), HEAD_TERMS, after, limit)
        return NamePage(
            tuple(
                name_view
                for name_view in map(to_name_view, head_records)
                if name_view.newest or MOVED_TAG not in name_view.tags
            ),
            next_cursor,
        )

    @operation(reads=("name",), group="write")
    def annotate(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        message: Annotated[str | None, "what it is; as it was when left out"] = None,
        tags: Annotated[dict[str, str] | None, "tags to set, by name"] = None,
        drop: Annotated[tuple[str, ...], "tags to take away"] = (),
    ) -> CatalogVersion:
        """Say something of a version after it was published. What its publisher said stays in the log.

        Example:
            falaj catalog annotate model:fraud/scorer@v3 --message "the one from the March data" --tags reviewed=yes
        """
        require_short_text("the message", message or "", MAX_MESSAGE)
        with self._ledger.write(ctx) as tx:
            record = self.require_live(tx, name)
            current_version = to_version(record, {})
            new_message = current_version.message if message is None else message
            merged_tags = _merge_tags(current_version.tags, tags, drop)
            record = self.update_version(tx, record, notes={"message": new_message, "tags": merged_tags})
            tx.emit("catalog.annotate", record.ref, message=new_message[:500], tags=len(merged_tags))
            return to_version(record, self.read_aliases(tx, name))

    @operation(reads=("name",), group="write")
    def tag(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        alias: Annotated[str, "the word that shall mean this version, for example champion"],
        reason: Annotated[str, "why, for the history"] = "",
    ) -> CatalogVersion:
        """Let a word mean this version: `model:fraud/scorer@champion`. A word that meant another one moves here.

        Stages are words too, and only promote and rollback move them.

        Example:
            falaj catalog tag model:fraud/scorer@v3 champion
        """
        _require_valid_alias(alias)
        require_short_text("the reason", reason, MAX_MESSAGE)
        with self._ledger.write(ctx) as tx:
            record = self.require_live(tx, name)
            self.move_alias(tx, name, alias, record.key.version, AliasMove("tag", reason))
            return to_version(record, self.read_aliases(tx, name))

    @operation(reads=("name",), unpinned_params=("name",), group="write")
    def untag(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "the name, without a version"],
        alias: Annotated[str, "the word that shall mean nothing any more"],
        reason: Annotated[str, "why, for the history"] = "",
    ) -> NameView:
        """Take an alias away. What it meant and when stays in its history.

        Example:
            falaj catalog untag model:fraud/scorer champion
        """
        _require_valid_alias(alias)
        require_short_text("the reason", reason, MAX_MESSAGE)
        with self._ledger.write(ctx) as tx:
            if alias not in self.read_aliases(tx, name):
                raise missing_version_error(name.at(alias))
            self.move_alias(tx, name, alias, "", AliasMove("untag", reason))
            return to_name_view(tx.need(name.bare))

    @operation(reads=("name",), unpinned_params=("name",))
    def history(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "the name with an alias; all its aliases when none is given"],
        on: Annotated[str, "only what held then: a day such as 2027-03-03, a time, or seconds since 1970"] = "",
    ) -> tuple[AliasBinding, ...]:
        """Say what an alias or a stage meant, from when to when, who moved it, why, and who approved that.

        It is read from the log, so it stays when versions and aliases go.

        Example:
            falaj catalog history model:fraud/scorer@production --on 2027-03-03
        """
        require_catalog_kind(name)
        all_bindings = build_bindings(_iterate_alias_moves(self._ledger, ctx.tenant, name.bare))
        time_range = _parse_time_range(on) if on else None
        return tuple(
            alias_binding
            for alias_binding in all_bindings
            if name.version in ("", alias_binding.alias, alias_binding.ref.version)
            and (time_range is None or _is_bound_during(alias_binding, *time_range))
        )


def build_bindings(moves: Iterable[Event]) -> list[AliasBinding]:
    """What every alias of one name meant, oldest first, from the events that moved it."""
    built: list[AliasBinding] = []
    open_indexes: dict[str, int] = {}
    for move in moves:
        event_fields = {key: str(value) for key, value in move.body.items()}
        alias, approvers = event_fields["alias"], tuple(filter(None, event_fields.get("people", "").split(",")))
        open_index = open_indexes.pop(alias, None)
        if open_index is not None and event_fields.get("how") == "ratify":
            earlier_approvers = built[open_index].approved_by
            how = (
                "emergency, ratified by "
                f"{', '.join(approver for approver in approvers if approver not in earlier_approvers)}"
            )
            built[open_index] = replace(
                built[open_index], approved_by=tuple(dict.fromkeys((*earlier_approvers, *approvers))), how=how
            )
            open_indexes[alias] = open_index
            continue
        if open_index is not None:
            how = HOW_LAPSED if event_fields.get("how") == "lapse" else built[open_index].how
            built[open_index] = replace(built[open_index], until=move.at, how=how)
        if event_fields["to"]:
            open_indexes[alias] = len(built)
            requester, reason, how = (
                event_fields.get("asker") or move.actor,
                event_fields.get("reason", ""),
                event_fields.get("how", ""),
            )
            how = HOW_UNRATIFIED if how == "emergency" else how
            built.append(
                AliasBinding(
                    alias,
                    move.subject,
                    move.at,
                    0.0,
                    requester,
                    how,
                    reason,
                    event_fields.get("approval", ""),
                    approvers,
                )
            )
    return built


def find_hasty_accounts(ledger: Ledger, tenant: str, name: Ref, stage: str) -> set[str]:
    """The accounts behind emergencies for a stage that nobody ratified, since others last consented to one there."""
    accounts: set[str] = set()
    for alias_binding in build_bindings(_iterate_alias_moves(ledger, tenant, name.bare)):
        if alias_binding.alias == stage and alias_binding.how in (HOW_UNRATIFIED, HOW_LAPSED):
            accounts |= {alias_binding.by, *alias_binding.approved_by}
        elif (
            alias_binding.alias == stage
            and alias_binding.approved_by
            and alias_binding.how not in ("rollback", "lapse")
        ):
            accounts.clear()
    return accounts


def _iterate_alias_moves(ledger: Ledger, tenant: str, name: Ref) -> Iterator[Event]:
    after = ""
    filters = {"verb": "catalog.point", "kind": name.kind, "project": name.project, "name": name.name}
    while logged_events := ledger.tail(after, tenant=tenant, limit=_PAGE_SIZE, **filters):
        yield from (logged_event.event for logged_event in logged_events)
        if len(logged_events) < _PAGE_SIZE:
            return
        after = logged_events[-1].pos


def _is_bound_during(binding: AliasBinding, start: float, stop: float) -> bool:
    return binding.since < stop and (not binding.until or binding.until > start)


def _parse_time_range(text: str) -> tuple[float, float]:
    """The time a text names: a day is all of it, anything finer that moment."""
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text):
        return float(text), float(text) + 1e-6
    try:
        parsed_time = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"{text[:40]!r} is no time", "a day such as 2027-03-03, or 2027-03-03T14:30") from error
    start = (parsed_time if parsed_time.tzinfo else parsed_time.replace(tzinfo=UTC)).timestamp()
    return start, start + (86_400.0 if len(text) <= 10 else 1e-6)


def _merge_tags(
    earlier_tags: Mapping[str, str], new_tags: Mapping[str, str] | None, dropped_tags: tuple[str, ...]
) -> dict[str, str]:
    tags = {key: value for key, value in {**earlier_tags, **(new_tags or {})}.items() if key not in dropped_tags}
    require_valid_tags(tags)
    return tags


def _require_valid_alias(alias: str) -> None:
    if alias in VERSION_STAGES:
        raise Invalid(f"{alias} is a stage", "stages move by falaj catalog promote and falaj catalog rollback")
    if (
        alias in _RESERVED_ALIASES
        or not re.fullmatch(_ALIAS_PATTERN, alias)
        or Ref("model", "any", "any", alias).pinned
    ):
        raise Invalid(f"{alias[:80]!r} cannot be an alias", "small letters, digits, . _ and -, not v3 and not latest")
