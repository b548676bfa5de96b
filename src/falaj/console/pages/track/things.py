"""Beside runs: the models that they logged, and traces of programs."""

from collections.abc import Sequence

from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.page import Page, address, href
from falaj.console.pages.track.files import files
from falaj.console.view import View
from falaj.core.ref import Ref

_PAGE = 50


def outputs(view: View, experiment: Ref) -> Html:
    """Models that runs of an experiment logged."""
    t = view.t
    found = view.here.outputs.list((experiment,), after=view.query("page"), limit=_PAGE)
    if not found.outputs:
        return parts.empty(view, t("track.no_models"), t("track.no_models_hint"))
    rows = [
        parts.Row((h.a(h.bdi(one.title), href=href(one.ref)), h.bdi(one.type), parts.badge(view, one.status),
                   h.bdi(one.author), view.ago(one.made_at)), str(one.ref))
        for one in found.outputs
    ]  # fmt: skip
    heads = (t("console.model"), t("console.kind"), t("console.state"), t("console.by"), t("console.made"))
    return join(parts.table(view, heads, rows, t("track.models")), parts.pager(view, found.next))


def traces(view: View, experiment: Ref) -> Html:
    """What programs did, the newest first."""
    t = view.t
    found = view.here.traces.list(experiment, after=view.query("page"), limit=_PAGE)
    if not found.traces:
        return parts.empty(view, t("track.no_traces"), t("track.no_traces_hint"))
    rows = [
        parts.Row((h.a(h.code(one.ref.name, dir="ltr"), href=href(one.ref)), parts.badge(view, one.status),
                   view.when(one.started), view.duration(one.lasted_s), h.bdi(one.request[:80])), str(one.ref))
        for one in found.traces
    ]  # fmt: skip
    heads = (t("track.trace"), t("console.state"), t("console.when"), t("console.took"), t("track.request"))
    return join(parts.table(view, heads, rows, t("track.traces")), parts.pager(view, found.next))


def output(view: View, ref: Ref) -> Page:
    """A model that a run logged."""
    t, found = view.t, view.here.outputs.show(ref)
    made_by = Ref("run", ref.project, found.run) if found.run else None
    told = parts.facts([
        (t("console.state"), parts.badge(view, found.status)), (t("console.kind"), h.bdi(found.type)),
        (t("track.run"), parts.ref(view, made_by, short=True) if made_by else ""),
        (t("console.by"), h.bdi(found.author)), (t("console.made"), view.when(found.made_at)),
    ])  # fmt: skip
    measured = [(h.bdi(one.point.key), view.number(one.point.number)) for one in found.metrics]
    params = [(h.bdi(key), h.bdi(value)) for key, value in found.params.items()]
    body = join(
        parts.cards(parts.card(t("console.overview"), told), *_told(t("track.metrics"), measured),
                    *_told(t("track.params"), params)),
        view.part(lambda: files(view, found.ref)),
    )  # fmt: skip
    return Page(h.bdi(found.title), body, _crumbs(found.experiment), live=("outputs",))


def trace(view: View, ref: Ref) -> Page:
    """One trace: what came in, what went out, and its spans as files."""
    t, found = view.t, view.here.traces.show(ref)
    told = parts.facts([
        (t("console.state"), parts.badge(view, found.status)), (t("console.when"), view.when(found.started)),
        (t("console.took"), view.duration(found.lasted_s)), (t("console.by"), h.bdi(found.author)),
    ])  # fmt: skip
    said = [(t("track.request"), found.request), (t("track.response"), found.response)]
    cards = [parts.card(name, h.pre(h.code(text[:20_000]), tabindex="0")) for name, text in said if text]
    facts = [(h.bdi(key), h.bdi(value[:300])) for key, value in {**found.facts, **found.tags}.items()]
    body = join(parts.cards(parts.card(t("console.overview"), told), *cards, *_told(t("console.details"), facts)),
                view.part(lambda: files(view, found.ref)))  # fmt: skip
    return Page(h.code(ref.name, dir="ltr"), body, _crumbs(found.experiment), live=("traces",))


def _crumbs(experiment: Ref) -> tuple[tuple[Html, str], ...]:
    return ((h.bdi(experiment.name), address(f"track/{experiment}")),)


def _told(title: str | Html, facts: Sequence[tuple[str | Html, Html]]) -> list[Html]:
    return [parts.card(title, parts.facts(facts))] if facts else []
