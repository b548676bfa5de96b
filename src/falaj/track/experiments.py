"""Experiments: make, find, rename, delete and restore them. Deleting is soft: everything can be had back."""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.track.record_views import DELETED_WITH_EXPERIMENT, compute_title_digest, find_all_records, to_experiment
from falaj.track.records import DEFAULT_EXPERIMENT, Experiment, ExperimentPage
from falaj.track.search_language import EXPERIMENT_VOCABULARY, apply_filters, parse_filter, parse_order, sort_items
from falaj.track.tracking_base import MAX_TAGS, TrackingBase, check_texts, check_title

EXPERIMENT_STATES = ("active", "deleted", "all")
MAX_PAGE = 50_000


class ExperimentOperations(TrackingBase):
    """How experiments come to be and are found again."""

    @operation(writes=("name",))
    def create(
        self,
        ctx: CallContext,
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
        with self._ledger.write(ctx) as writer:
            if writer.get(name) is not None:
                raise Conflict(f"{name} exists already", "choose another name", name)
            chosen_title = self._check_title_free(
                writer, name.project, title or ("Default" if name == DEFAULT_EXPERIMENT else name.name)
            )
            body = {
                "id": "0" if name == DEFAULT_EXPERIMENT else _generate_experiment_id(writer),
                "title": chosen_title,
                "tags": check_texts("tag", tags),
                "state": "active",
                "made_at": ctx.now(),
            }
            record = writer.put(name, body, terms=_experiment_terms(body))
            writer.emit("track.create", record.ref)
        return to_experiment(record)

    @operation()
    def experiments(
        self,
        ctx: CallContext,
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
        filters, orders = parse_filter(where, EXPERIMENT_VOCABULARY), parse_order(order, EXPERIMENT_VOCABULARY)
        if state not in EXPERIMENT_STATES:
            raise Invalid(f"{state[:40]!r} is no state", f"one of {', '.join(EXPERIMENT_STATES)}")
        terms = {
            **({"title": compute_title_digest(title)} if title else {}),
            **({"state": state} if state != "all" else {}),
        }
        scopes = ctx.cells("experiment")
        with self._ledger.read(ctx) as reader:
            if not filters and not orders:
                page = reader.find("experiment", project=project, terms=terms, scopes=scopes, after=after, limit=limit)
                shown = [record for record in page.records if not title or not ctx.withheld(record)]
                return ExperimentPage(tuple(map(to_experiment, shown)), page.next)
            records = find_all_records(reader, "experiment", project=project, terms=terms, scopes=scopes)
            # No filter compares what its caller may not read.
            shown = [record for record in records if not ctx.withheld(record)]
            matches = sort_items(
                apply_filters([_SearchableExperiment(to_experiment(record)) for record in shown], filters), orders
            )
        if not (after or "0").isdigit() or not 0 < limit <= MAX_PAGE:
            raise Invalid(
                f"a page of {limit} after {after[:80]!r}", f"1 to {MAX_PAGE}, and the `next` of the page before"
            )
        start = int(after or 0)
        page_experiments = tuple(match.experiment for match in matches[start : start + limit])
        return ExperimentPage(page_experiments, str(start + limit) if start + limit < len(matches) else "")

    @operation(reads=("name",))
    def experiment(self, ctx: CallContext, name: Annotated[Ref, "which experiment"]) -> Experiment:
        """Show an experiment.

        Example:
            falaj track experiment experiment:fraud/scoring
        """
        with self._ledger.read(ctx) as reader:
            return to_experiment(self._require_experiment(reader, name))

    @operation(writes=("name",))
    def change(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which experiment"],
        title: Annotated[str, "its new title; kept when left out"] = "",
        tags: Annotated[dict[str, str] | None, "tags to set"] = None,
        drop: Annotated[tuple[str, ...], "tags to take off"] = (),
    ) -> Experiment:
        """Change the title or the tags of an experiment.

        Example:
            falaj track change experiment:fraud/scoring --title "Fraud, second try"
        """
        with self._ledger.write(ctx) as writer:
            old_record = self._require_experiment(writer, name)
            if old_record.body["state"] != "active":
                raise Invalid(f"{name.bare} is deleted", f"falaj track restore {name.bare}", name)
            merged_tags = {**old_record.body["tags"], **check_texts("tag", tags)}
            body = {**old_record.body, "tags": {key: value for key, value in merged_tags.items() if key not in drop}}
            if len(merged_tags) > MAX_TAGS:
                raise Invalid(f"{len(merged_tags)} tags on one experiment", f"at most {MAX_TAGS}", name)
            if title and title != old_record.body["title"]:
                body["title"] = self._check_title_free(writer, name.project, title)
            record = writer.put(name.bare, body, rev=old_record.rev, terms=_experiment_terms(body))
            writer.emit("track.change", record.ref)
        return to_experiment(record)

    @operation(writes=("name",))
    def delete(self, ctx: CallContext, name: Annotated[Ref, "which run or experiment"]) -> Ref:
        """Delete a run, or an experiment with its runs; `restore` brings back what went with it.

        Lists no longer show it and nothing more can be logged to it. What it measured and its files are kept.

        Example:
            falaj track delete run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        return self._set_state(ctx, name, "deleted")

    @operation(writes=("name",))
    def restore(self, ctx: CallContext, name: Annotated[Ref, "which run or experiment"]) -> Ref:
        """Bring a deleted run or experiment back.

        Example:
            falaj track restore run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        return self._set_state(ctx, name, "active")

    def _set_state(self, ctx: CallContext, name: Ref, state: str) -> Ref:
        with self._ledger.write(ctx) as writer:
            if name.kind == "experiment":
                old_record = self._require_experiment(writer, name)
                body = {**old_record.body, "state": state}
                record = writer.put(name.bare, body, rev=old_record.rev, terms=_experiment_terms(body))
                self._set_run_states(writer, record, state)
            else:
                record = self._save_run(
                    writer, self._require_run(writer, name), {"state": state, DELETED_WITH_EXPERIMENT: False}
                )
            writer.emit("track.delete" if state == "deleted" else "track.restore", record.ref)
        return name.bare

    def _set_run_states(self, writer: LedgerWriter, experiment: LedgerRecord, state: str) -> None:
        """Runs go with their experiment, and come back with it; those that were deleted before it stay deleted."""
        old_terms = {"state": "deleted", DELETED_WITH_EXPERIMENT: "yes"} if state == "active" else {"state": "active"}
        for run in list(find_all_records(writer, "run", terms={"experiment": experiment.body["id"], **old_terms})):
            changed_run = self._save_run(writer, run, {"state": state, DELETED_WITH_EXPERIMENT: state == "deleted"})
            writer.emit("track.delete" if state == "deleted" else "track.restore", changed_run.ref)

    def _check_title_free(self, writer: LedgerWriter, project: str, title: str) -> str:
        check_title(title)
        if writer.find("experiment", project=project, terms={"title": compute_title_digest(title)}, limit=1).records:
            hint = "choose another title, or restore that one"
            raise Conflict(f"the project {project} has an experiment {title[:80]!r} already", hint)
        return title


class _SearchableExperiment:
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


def _generate_experiment_id(reader: LedgerReader) -> str:
    """A decimal number that no experiment of the tenant has; small enough for every client's integers."""
    while True:
        number = str(10**14 + secrets.randbelow(9 * 10**14))
        if not reader.find("experiment", terms={"id": number}, limit=1).records:
            return number


def _experiment_terms(body: dict[str, object]) -> dict[str, str]:
    return {"id": str(body["id"]), "title": compute_title_digest(str(body["title"])), "state": str(body["state"])}
