"""One endpoint: what answers, with which share, how it is asked, and what can be done about it."""

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, address
from falaj.console.pages.serve.acts import actions, change, scale
from falaj.console.pages.serve.logs import logs
from falaj.console.pages.serve.rollout import rollout
from falaj.console.pages.serve.traffic import figures, traffic
from falaj.console.pages.serve.trying import trying
from falaj.console.parts import Column, Row
from falaj.console.plots import shares
from falaj.console.view import View
from falaj.console.writing import NOTHING
from falaj.core.ref import Ref
from falaj.serve.records import RUNNING, EndpointView

LOOK_S = 5.0
"""Counts are no events: what is shown of them is looked at again so often."""
MOST = 50


def endpoint(view: View) -> Page:
    """One endpoint, in parts."""
    one: EndpointView = view.here.serve.show(Ref.parse(view.args["ref"]).bare)
    t, tab = view.t, view.query("tab")
    names = (
        ("", t("console.overview")), ("traffic", t("serve.traffic")), ("try", t("serve.try")),
        ("logs", t("serve.logs")), ("settings", t("serve.settings")),
    )  # fmt: skip
    bodies = {"traffic": traffic, "try": trying, "logs": logs, "settings": settings}
    body = bodies.get(tab, overview)(view, one)
    head = join(_state(view, one), actions(view, one), parts.tabs(view, names), body)
    still = tab in ("try", "logs")
    crumbs = ((h.bdi(one.ref.project), address("serve", {"project": one.ref.project})),)
    live = () if still else ("serve", "monitor")
    return Page(h.bdi(one.ref.name), head, crumbs=crumbs, live=live, every_s=0.0 if still else LOOK_S)


def _state(view: View, one: EndpointView) -> Html:
    watch = h.a(view.t("serve.watch"), href=address(f"monitor/{Ref('watch', one.ref.project, one.ref.name)}"))
    line = h.p(parts.badge(view, one.state), " ", h.code(one.ref, dir="ltr"), " · ", watch, id="state")
    return join(line, parts.notice("warn", one.note) if one.note else EMPTY)


def overview(view: View, one: EndpointView) -> Html:
    """How it stands now."""
    told = view.part(lambda: figures(view, one))
    tried = rollout(view, one) if one.rollout else EMPTY
    return join(told, _split(view, one), tried, _revisions(view, one), _replicas(view, one))


def _split(view: View, one: EndpointView) -> Html:
    known = {str(revision.number): revision for revision in one.revisions}
    given = [
        (f"{number} · {known[number].model.name}@{known[number].model.version}", share, "")
        for number, share in one.traffic.items()
        if number in known
    ]
    shown = shares(view, given, title=view.t("serve.split")) if given else view.t("serve.no_traffic")
    trial = one.rollout
    copied = (
        h.p(view.t("serve.copied", percent=f"{100 * trial.shares.get('shadow', 0.0):g}%"), class_="soft")
        if trial is not None and trial.kind == "shadow" and trial.state == RUNNING
        else EMPTY
    )
    return h.div(shown, copied, class_="card", id="split")


def _revisions(view: View, one: EndpointView) -> Html:
    t = view.t
    heads = (Column(t("serve.revision"), "n"), t("console.model"), Column(t("console.share"), "n"), t("console.who"),
             t("console.when"), t("serve.message"))  # fmt: skip
    rows = [
        Row(
            (
                view.number(kept.number),
                [h.div(parts.ref(view, used)) for used in (kept.model, kept.features, kept.code) if used],
                view.percent(share, 0) if (share := one.traffic.get(str(kept.number), 0.0)) else NOTHING,
                h.bdi(kept.made_by),
                view.ago(kept.made_at),
                h.span(kept.message, dir="auto"),
            ),
            id=f"revision-{kept.number}",
        )
        for kept in list(reversed(one.revisions))[:MOST]
    ]  # fmt: skip
    return parts.card(t("serve.revisions"), parts.table(view, heads, rows, t("serve.revisions")), id="revisions")


def _replicas(view: View, one: EndpointView) -> Html:
    t = view.t
    title = t("serve.replicas")
    if not one.replicas:
        return parts.card(title, h.p(t("serve.no_replicas"), class_="soft"), id="replicas")
    heads = (
        t("console.name"), Column(t("serve.revision"), "n"), t("console.state"), Column(t("serve.address"), "code"),
        t("console.since"), t("console.note"),
    )  # fmt: skip
    rows = [
        Row((parts.ref(view, kept.job, short=True), view.number(kept.revision), parts.badge(view, kept.state),
             kept.address, view.ago(kept.since), h.span(kept.note, dir="auto")), id=kept.name)
        for kept in one.replicas[:MOST]
    ]  # fmt: skip
    bounds = t("serve.bounds", least=one.scale.least, most=one.scale.most)
    return parts.card(title, h.p(bounds, class_="soft"), parts.table(view, heads, rows, title), id="replicas")


def settings(view: View, one: EndpointView) -> Html:
    """How it scales, what callers are held to, and where it is called."""
    t, grown, held = view.t, one.scale, one.rules
    scaled = parts.facts([
        (t("serve.least"), view.number(grown.least)), (t("serve.most"), view.number(grown.most)),
        (t("serve.concurrency"), view.number(grown.concurrency)),
        (t("serve.slower"), view.duration(grown.latency_ms / 1000) if grown.latency_ms else t("serve.not_looked_at")),
        (t("serve.idle_s"), view.duration(grown.idle_s)), (t("serve.keep_s"), view.duration(grown.keep_s)),
    ])  # fmt: skip
    ruled = parts.facts([
        (t("serve.caller_per_s"), view.number(held.per_s) if held.per_s else t("serve.unbounded")),
        (t("serve.burst"), view.number(held.burst) if held.burst else t("serve.unbounded")),
        (t("serve.timeout"), view.duration(held.timeout_s)), (t("serve.hold"), view.duration(held.hold_s)),
        (t("serve.retries"), view.percent(held.retries, 0)), (t("serve.sample"), view.percent(held.sample)),
        (t("serve.keep_days"), view.duration(held.keep_days * 86400)),
    ])  # fmt: skip
    needs = one.revisions[-1].needs
    needed = parts.facts([
        (t("serve.cpus"), view.number(needs.cpus)), (t("serve.memory"), h.bdi(needs.memory)),
        (t("serve.gpus"), view.number(needs.gpus)), (t("console.zone"), h.bdi(needs.zone) if needs.zone else ""),
    ])  # fmt: skip
    where = [parts.copyable(view, one.url), parts.copyable(view, one.grpc)] if one.url else t("serve.no_gateway")
    return parts.cards(
        parts.card(t("serve.scaling"), scaled, scale(view, one)),
        parts.card(t("serve.rules"), ruled, change(view, one)),
        parts.card(t("serve.needs"), needed), parts.card(t("serve.where"), where),
    )  # fmt: skip
