"""Names: what is said of a name and of a version after it was published, aliases, and what an alias meant when."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from falaj.catalog.life_records import Binding, Named, NamedPage
from falaj.catalog.limits import MESSAGE, check_tags, check_text
from falaj.catalog.records import STAGES, Version
from falaj.catalog.shelf import AT, HEAD, Act, Shelf, as_named, as_version, check_kind, missing
from falaj.core.context import Context
from falaj.core.errors import Invalid
from falaj.core.event import Event
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.store.ledger import Ledger

_ALIAS = r"[a-z][a-z0-9._-]{0,62}"
_TAKEN = frozenset({*STAGES, "latest", "newest"})
_PAGE = 1000
UNRATIFIED, LAPSED = "emergency, not ratified", "emergency, lapsed"


class Names(Shelf):
    """What people say of names and versions, and the words they give to versions."""

    @verb(writes=("name",), heads=("name",))
    def describe(
        self,
        ctx: Context,
        name: Annotated[Ref, "the name, without a version; it is made when it does not exist"],
        about: Annotated[str | None, "what it is, for whoever finds it; as it was when left out"] = None,
        tags: Annotated[dict[str, str] | None, "tags to set, by name"] = None,
        drop: Annotated[tuple[str, ...], "tags to take away"] = (),
    ) -> Named:
        """Say what a name stands for, before or after it has versions.

        Example:
            falaj catalog describe model:fraud/scorer --about "scores card payments" --tags team=fraud
        """
        check_kind(name)
        if name.version:
            raise Invalid(f"{name} names a version", "falaj catalog annotate says something of a version", name)
        check_text("what is said of it", about or "", MESSAGE)
        with self._ledger.write(ctx) as tx:
            head = tx.get(name)
            body = head.body if head else {}
            kept = _tagged(body.get("tags", {}), tags, drop)
            said = body.get("about", "") if about is None else about
            head = self._write_head(tx, name, {"about": said, "tags": kept}, ctx.now())
            tx.emit("catalog.describe", head.ref, message=said[:500], tags=len(kept))
        return as_named(head)

    @verb(reads=("name",), heads=("name",))
    def about(self, ctx: Context, name: Annotated[Ref, "the name"]) -> Named:
        """Show a name: what it stands for, its tags, its newest version and its aliases.

        Example:
            falaj catalog about model:fraud/scorer
        """
        check_kind(name)
        with self._ledger.read(ctx) as tx:
            return as_named(tx.need(name.bare))

    @verb()
    def names(
        self,
        ctx: Context,
        kind: Annotated[str, "dataset, model or code; all of them when left out"] = "",
        project: Annotated[str, "of one project only"] = "",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> NamedPage:
        """List the names you may see, those without a version too. A model that was renamed is listed once.

        Example:
            falaj catalog names --kind model --project fraud
        """
        with self._ledger.read(ctx) as tx:
            found, following = self._page(tx, ctx, (kind, project, ""), HEAD, after, limit)
        return NamedPage(tuple(one for one in map(as_named, found) if one.newest or AT not in one.tags), following)

    @verb(reads=("name",), group="write")
    def annotate(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        message: Annotated[str | None, "what it is; as it was when left out"] = None,
        tags: Annotated[dict[str, str] | None, "tags to set, by name"] = None,
        drop: Annotated[tuple[str, ...], "tags to take away"] = (),
    ) -> Version:
        """Say something of a version after it was published. What its publisher said stays in the log.

        Example:
            falaj catalog annotate model:fraud/scorer@v3 --message "the one from the March data" --tags reviewed=yes
        """
        check_text("the message", message or "", MESSAGE)
        with self._ledger.write(ctx) as tx:
            record = self._live(tx, name)
            now = as_version(record, {})
            said = now.message if message is None else message
            kept = _tagged(now.tags, tags, drop)
            record = self._rewrite(tx, record, notes={"message": said, "tags": kept})
            tx.emit("catalog.annotate", record.ref, message=said[:500], tags=len(kept))
            return as_version(record, self._aliases(tx, name))

    @verb(reads=("name",), group="write")
    def tag(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        alias: Annotated[str, "the word that shall mean this version, for example champion"],
        reason: Annotated[str, "why, for the history"] = "",
    ) -> Version:
        """Let a word mean this version: `model:fraud/scorer@champion`. A word that meant another one moves here.

        Stages are words too, and only promote and rollback move them.

        Example:
            falaj catalog tag model:fraud/scorer@v3 champion
        """
        _check_alias(alias)
        check_text("the reason", reason, MESSAGE)
        with self._ledger.write(ctx) as tx:
            record = self._live(tx, name)
            self._point(tx, name, alias, record.key.version, Act("tag", reason))
            return as_version(record, self._aliases(tx, name))

    @verb(reads=("name",), heads=("name",), group="write")
    def untag(
        self,
        ctx: Context,
        name: Annotated[Ref, "the name, without a version"],
        alias: Annotated[str, "the word that shall mean nothing any more"],
        reason: Annotated[str, "why, for the history"] = "",
    ) -> Named:
        """Take an alias away. What it meant and when stays in its history.

        Example:
            falaj catalog untag model:fraud/scorer champion
        """
        _check_alias(alias)
        check_text("the reason", reason, MESSAGE)
        with self._ledger.write(ctx) as tx:
            if alias not in self._aliases(tx, name):
                raise missing(name.at(alias))
            self._point(tx, name, alias, "", Act("untag", reason))
            return as_named(tx.need(name.bare))

    @verb(reads=("name",), heads=("name",))
    def history(
        self,
        ctx: Context,
        name: Annotated[Ref, "the name with an alias; all its aliases when none is given"],
        on: Annotated[str, "only what held then: a day such as 2027-03-03, a time, or seconds since 1970"] = "",
    ) -> tuple[Binding, ...]:
        """Say what an alias or a stage meant, from when to when, who moved it, why, and who approved that.

        It is read from the log, so it stays when versions and aliases go.

        Example:
            falaj catalog history model:fraud/scorer@production --on 2027-03-03
        """
        check_kind(name)
        found = bindings(_moves(self._ledger, ctx.tenant, name.bare))
        span = _span(on) if on else None
        return tuple(
            each
            for each in found
            if name.version in ("", each.alias, each.ref.version) and (span is None or _held(each, *span))
        )


def bindings(moves: Iterable[Event]) -> list[Binding]:
    """What every alias of one name meant, oldest first, from the events that moved it."""
    found: list[Binding] = []
    open_at: dict[str, int] = {}
    for move in moves:
        told = {key: str(value) for key, value in move.body.items()}
        alias, people = told["alias"], tuple(filter(None, told.get("people", "").split(",")))
        last = open_at.pop(alias, None)
        if last is not None and told.get("how") == "ratify":
            first = found[last].approved_by
            how = f"emergency, ratified by {', '.join(one for one in people if one not in first)}"
            found[last] = replace(found[last], approved_by=tuple(dict.fromkeys((*first, *people))), how=how)
            open_at[alias] = last
            continue
        if last is not None:
            how = LAPSED if told.get("how") == "lapse" else found[last].how
            found[last] = replace(found[last], until=move.at, how=how)
        if told["to"]:
            open_at[alias] = len(found)
            by, why, how = told.get("asker") or move.actor, told.get("reason", ""), told.get("how", "")
            how = UNRATIFIED if how == "emergency" else how
            found.append(Binding(alias, move.subject, move.at, 0.0, by, how, why, told.get("approval", ""), people))
    return found


def in_haste(ledger: Ledger, tenant: str, name: Ref, stage: str) -> set[str]:
    """The accounts behind emergencies for a stage that nobody ratified, since others last consented to one there."""
    found: set[str] = set()
    for each in bindings(_moves(ledger, tenant, name.bare)):
        if each.alias == stage and each.how in (UNRATIFIED, LAPSED):
            found |= {each.by, *each.approved_by}
        elif each.alias == stage and each.approved_by and each.how not in ("rollback", "lapse"):
            found.clear()
    return found


def _moves(ledger: Ledger, tenant: str, name: Ref) -> Iterator[Event]:
    after = ""
    where = {"verb": "catalog.point", "kind": name.kind, "project": name.project, "name": name.name}
    while facts := ledger.tail(after, tenant=tenant, limit=_PAGE, **where):
        yield from (fact.event for fact in facts)
        if len(facts) < _PAGE:
            return
        after = facts[-1].pos


def _held(binding: Binding, start: float, stop: float) -> bool:
    return binding.since < stop and (not binding.until or binding.until > start)


def _span(text: str) -> tuple[float, float]:
    """The time a text names: a day is all of it, anything finer that moment."""
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text):
        return float(text), float(text) + 1e-6
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"{text[:40]!r} is no time", "a day such as 2027-03-03, or 2027-03-03T14:30") from error
    start = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    return start, start + (86_400.0 if len(text) <= 10 else 1e-6)


def _tagged(old: Mapping[str, str], new: Mapping[str, str] | None, drop: tuple[str, ...]) -> dict[str, str]:
    tags = {key: value for key, value in {**old, **(new or {})}.items() if key not in drop}
    check_tags(tags)
    return tags


def _check_alias(alias: str) -> None:
    if alias in STAGES:
        raise Invalid(f"{alias} is a stage", "stages move by falaj catalog promote and falaj catalog rollback")
    if alias in _TAKEN or not re.fullmatch(_ALIAS, alias) or Ref("model", "any", "any", alias).pinned:
        raise Invalid(f"{alias[:80]!r} cannot be an alias", "small letters, digits, . _ and -, not v3 and not latest")
