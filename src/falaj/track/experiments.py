"""Experiments: make, find, rename, delete and restore them. Deleting is soft: everything can be had back."""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.store.ledger import Reader, Writer
from falaj.store.records import Record
from falaj.track.notebook import MOST_TAGS, Notebook, check_texts, check_title
from falaj.track.reading import ALONG, as_experiment, digest_of, find_all
from falaj.track.records import DEFAULT, Experiment, ExperimentPage
from falaj.track.where import EXPERIMENTS, arrange, read_order, read_where, select

STATES = ("active", "deleted", "all")
MOST_PAGE = 50_000


class Experiments(Notebook):
    """How experiments come to be and are found again."""

    @verb(writes=("name",))
    def create(
        self,
        ctx: Context,
        name: Annotated[Ref, "what to call it, for example experiment:fraud/scoring"],
        title: Annotated[str, "what people read, in any script; its name when left out"] = "",
        tags: Annotated[dict[str, str] | None, "tags, by name"] = None,
    ) -> Experiment:
        """Make an experiment: the place of runs that try to answer one question.

        Example:
            falaj track create experiment:fraud/scoring --title "Which transactions are fraud?"
        """
        if name.kind != "experiment" or name.version:
            raise Invalid(f"{name} names no experiment", "for example experiment:fraud/scoring", name)
        with self._ledger.write(ctx) as tx:
            if tx.get(name) is not None:
                raise Conflict(f"{name} exists already", "choose another name", name)
            chosen = self._free_title(tx, name.project, title or ("Default" if name == DEFAULT else name.name))
            body = {
                "id": "0" if name == DEFAULT else _new_number(tx),
                "title": chosen,
                "tags": check_texts("tag", tags),
                "state": "active",
                "made_at": ctx.now(),
            }
            record = tx.put(name, body, terms=_terms(body))
            tx.emit("track.create", record.ref)
        return as_experiment(record)

    @verb()
    def experiments(
        self,
        ctx: Context,
        project: Annotated[str, "of one project only"] = "",
        title: Annotated[str, "the one with exactly this title"] = "",
        where: Annotated[str, "which, as in: name LIKE 'fraud%' and tags.team = 'risk'"] = "",
        order: Annotated[tuple[str, ...], "by what, as in: creation_time DESC; by name when left out"] = (),
        state: Annotated[str, "active, deleted or all"] = "active",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> ExperimentPage:
        """List the experiments you may see.

        Example:
            falaj track experiments --project fraud
        """
        picks, ways = read_where(where, EXPERIMENTS), read_order(order, EXPERIMENTS)
        if state not in STATES:
            raise Invalid(f"{state[:40]!r} is no state", f"one of {', '.join(STATES)}")
        terms = {**({"title": digest_of(title)} if title else {}), **({"state": state} if state != "all" else {})}
        cells = ctx.cells("experiment")
        with self._ledger.read(ctx) as tx:
            if not picks and not ways:
                page = tx.find("experiment", project=project, terms=terms, cells=cells, after=after, limit=limit)
                shown = [record for record in page.records if not title or not ctx.withheld(record)]
                return ExperimentPage(tuple(map(as_experiment, shown)), page.next)
            records = find_all(tx, "experiment", project=project, terms=terms, cells=cells)
            # No filter compares what its caller may not read.
            shown = [record for record in records if not ctx.withheld(record)]
            matches = arrange(select([_Seen(as_experiment(record)) for record in shown], picks), ways)
        if not (after or "0").isdigit() or not 0 < limit <= MOST_PAGE:
            raise Invalid(
                f"a page of {limit} after {after[:80]!r}", f"1 to {MOST_PAGE}, and the `next` of the page before"
            )
        start = int(after or 0)
        page_of = tuple(match.experiment for match in matches[start : start + limit])
        return ExperimentPage(page_of, str(start + limit) if start + limit < len(matches) else "")

    @verb(reads=("name",))
    def experiment(self, ctx: Context, name: Annotated[Ref, "which experiment"]) -> Experiment:
        """Show an experiment.

        Example:
            falaj track experiment experiment:fraud/scoring
        """
        with self._ledger.read(ctx) as tx:
            return as_experiment(self._experiment(tx, name))

    @verb(writes=("name",))
    def change(
        self,
        ctx: Context,
        name: Annotated[Ref, "which experiment"],
        title: Annotated[str, "its new title; kept when left out"] = "",
        tags: Annotated[dict[str, str] | None, "tags to set"] = None,
        drop: Annotated[tuple[str, ...], "tags to take off"] = (),
    ) -> Experiment:
        """Change the title or the tags of an experiment.

        Example:
            falaj track change experiment:fraud/scoring --title "Fraud, second try"
        """
        with self._ledger.write(ctx) as tx:
            old = self._experiment(tx, name)
            if old.body["state"] != "active":
                raise Invalid(f"{name.bare} is deleted", f"falaj track restore {name.bare}", name)
            kept = {**old.body["tags"], **check_texts("tag", tags)}
            body = {**old.body, "tags": {key: value for key, value in kept.items() if key not in drop}}
            if len(kept) > MOST_TAGS:
                raise Invalid(f"{len(kept)} tags on one experiment", f"at most {MOST_TAGS}", name)
            if title and title != old.body["title"]:
                body["title"] = self._free_title(tx, name.project, title)
            record = tx.put(name.bare, body, rev=old.rev, terms=_terms(body))
            tx.emit("track.change", record.ref)
        return as_experiment(record)

    @verb(writes=("name",))
    def delete(self, ctx: Context, name: Annotated[Ref, "which run or experiment"]) -> Ref:
        """Delete a run, or an experiment with its runs; `restore` brings back what went with it.

        Lists no longer show it and nothing more can be logged to it. What it measured and its files are kept.

        Example:
            falaj track delete run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        return self._turn(ctx, name, "deleted")

    @verb(writes=("name",))
    def restore(self, ctx: Context, name: Annotated[Ref, "which run or experiment"]) -> Ref:
        """Bring a deleted run or experiment back.

        Example:
            falaj track restore run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        return self._turn(ctx, name, "active")

    def _turn(self, ctx: Context, name: Ref, state: str) -> Ref:
        with self._ledger.write(ctx) as tx:
            if name.kind == "experiment":
                old = self._experiment(tx, name)
                body = {**old.body, "state": state}
                record = tx.put(name.bare, body, rev=old.rev, terms=_terms(body))
                self._turn_runs(tx, record, state)
            else:
                record = self._save_run(tx, self._run(tx, name), {"state": state, ALONG: False})
            tx.emit("track.delete" if state == "deleted" else "track.restore", record.ref)
        return name.bare

    def _turn_runs(self, tx: Writer, experiment: Record, state: str) -> None:
        """Runs go with their experiment, and come back with it; those that were deleted before it stay deleted."""
        old = {"state": "deleted", ALONG: "yes"} if state == "active" else {"state": "active"}
        for run in list(find_all(tx, "run", terms={"experiment": experiment.body["id"], **old})):
            turned = self._save_run(tx, run, {"state": state, ALONG: state == "deleted"})
            tx.emit("track.delete" if state == "deleted" else "track.restore", turned.ref)

    def _free_title(self, tx: Writer, project: str, title: str) -> str:
        check_title(title)
        if tx.find("experiment", project=project, terms={"title": digest_of(title)}, limit=1).records:
            hint = "choose another title, or restore that one"
            raise Conflict(f"the project {project} has an experiment {title[:80]!r} already", hint)
        return title


class _Seen:
    """An experiment as filters see it."""

    metrics: Mapping[str, float] = {}
    params: Mapping[str, str] = {}
    datasets: tuple[Mapping[str, str], ...] = ()

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.tags = experiment.tags
        self.attributes: dict[str, Any] = {
            "name": experiment.title, "experiment_id": experiment.id, "creation_time": round(experiment.made_at * 1000),
            "last_update_time": round(experiment.changed_at * 1000),
        }  # fmt: skip


def _new_number(tx: Reader) -> str:
    """A decimal number that no experiment of the tenant has; small enough for every client's integers."""
    while True:
        number = str(10**14 + secrets.randbelow(9 * 10**14))
        if not tx.find("experiment", terms={"id": number}, limit=1).records:
            return number


def _terms(body: dict[str, object]) -> dict[str, str]:
    return {"id": str(body["id"]), "title": digest_of(str(body["title"])), "state": str(body["state"])}
