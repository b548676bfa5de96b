"""What the catalog's pages share: the head of a thing, its stage, its label, and the way between its pages."""

from collections.abc import Mapping

from falaj.catalog.records import VERSION_KINDS, CatalogVersion
from falaj.console import components
from falaj.console.markup import Html, h, join_html
from falaj.console.page import build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.state_tones import get_tone
from falaj.core.errors import NotFound
from falaj.core.label import ANY_VALUE, CLASS_NAMES, Label
from falaj.core.ref import Ref
from falaj.govern.applicability import LabelFacts, find_exemption

_CLASS_TONES = ("good", "", "warn", "bad")


def parse_catalog_ref(view: PageView) -> Ref:
    """What the address names; only what the catalog keeps has a page here."""
    ref = Ref.parse(view.args["ref"])
    if ref.kind not in VERSION_KINDS:
        raise NotFound(f"the catalog keeps no {ref.kind}", f"it keeps: {', '.join(VERSION_KINDS)}", ref)
    return ref


def build_version_url(ref: Ref, subpage: str = "", **query: object) -> str:
    """The address of one of a thing's pages."""
    return build_url(f"catalog/{ref}/{subpage}", query) if subpage else build_resource_url(ref, **query)


def render_stage(view: PageView, name: str) -> Html:
    """A stage, in its colour."""
    return h.span(view.t.of("catalog.stage", name), class_=f"badge {get_tone(name)}".strip(), data_state=name)


def render_aliases(view: PageView, ref: Ref, aliases: Mapping[str, str] | tuple[str, ...]) -> Html:
    """The words that mean a version; stages look like stages."""
    del ref
    stage_aliases = ("production", "staging")
    return join_html(
        [render_stage(view, alias) if alias in stage_aliases else components.tag(alias) for alias in aliases]
    )


def render_label_summary(view: PageView, label: Label) -> Html:
    """A label in as little room as a row of a list has."""
    class_name = CLASS_NAMES[label.classification]
    badge_class = f"badge {_CLASS_TONES[label.classification]}".strip()
    hold_badge = h.span(view.t("catalog.held"), class_="badge bad") if label.holds else None
    return join_html(
        h.span(view.t.of("catalog.class", class_name), class_=badge_class),
        " ",
        map(components.tag, sorted(label.regimes)),
        hold_badge,
    )


def render_label_card(view: PageView, label: Label) -> Html:
    """A label with what it means."""
    t, class_name = view.t, CLASS_NAMES[label.classification]
    purpose_tags = (
        t("catalog.any_purpose")
        if label.purposes == ANY_VALUE
        else [components.tag(value) for value in sorted(label.purposes)]
    )
    exemption_by_regime = _find_exemptions(view, label)
    regimes = [
        h.div(
            components.tag(value),
            " ",
            h.span(t.of("catalog.regime", value), class_="soft small"),
            exemption_by_regime.get(value),
        )
        for value in sorted(label.regimes)
    ]
    retention_lines = [
        t("catalog.keep_least", time=view.duration(label.min_retain_s)) if label.min_retain_s else None,
        t("catalog.keep_most", time=view.duration(label.max_retain_s)) if label.max_retain_s is not None else None,
    ]
    classification_text = h.div(
        render_classification(view, label), h.div(t.of("catalog.class_means", class_name), class_="soft small")
    )
    return components.card(
        t("console.label"),
        components.fact_list(
            [
                (t("catalog.classification"), classification_text),
                (t("catalog.regimes"), join_html(regimes)),
                (t("catalog.purposes"), join_html(purpose_tags)),
                (t("catalog.categories"), join_html([components.tag(value) for value in sorted(label.categories)])),
                (t("catalog.origin"), join_html([components.tag(value) for value in sorted(label.origin)])),
                (t("catalog.holds"), join_html([h.div(h.bdi(value)) for value in sorted(label.holds)])),
                (t("catalog.keeping"), join_html([h.div(value) for value in retention_lines if value])),
            ]
        ),
        id="label",
    )


def _find_exemptions(view: PageView, label: Label) -> dict[str, Html]:
    """Return, for each regime of a label that does not apply to it, the reason. It limits residency all the same."""
    if len(label.regimes) < 2 and not label.categories:
        return {}
    facts = LabelFacts(label.regimes, label.categories)
    reasons = {}
    for regime in view.here.zones.regimes():
        exemption = find_exemption(regime, facts) if regime.id in label.regimes else None
        if exemption is not None:
            because = exemption.because_ar if view.t.rtl else exemption.because
            reasons[regime.id] = h.div(view.t("catalog.not_applicable", because=because), class_="small")
    return reasons


def render_classification(view: PageView, label: Label) -> Html:
    """How much harm it would do in wrong hands, in a word."""
    badge_class = f"badge {_CLASS_TONES[label.classification]}".strip()
    return h.span(view.t.of("catalog.class", CLASS_NAMES[label.classification]), class_=badge_class)


def render_version_tabs(view: PageView, ref: Ref, current_subpage: str) -> Html:
    """The pages of one thing, as tabs; a bare name has no files of its own."""
    t = view.t
    subpages = [("", t("console.overview"))]
    if ref.version:
        subpages += [("files", t("console.files")), ("diff", t("catalog.changes"))]
        subpages += [("lineage", t("console.lineage"))]
    subpages += [("stages", t("catalog.stages"))] if ref.kind != "code" else []
    links = [
        h.a(label, href=build_version_url(ref, subpage), aria_current="page" if subpage == current_subpage else None)
        for subpage, label in subpages
    ]
    return h.nav(links, class_="tabs", aria_label=t("console.parts"))


def make_breadcrumbs(view: PageView, ref: Ref) -> tuple[tuple[str | Html, str], ...]:
    """Kind, project and, of a version, its name."""
    kind_crumb = (view.t.of("catalog.kinds", ref.kind), build_url("catalog", {"kind": ref.kind}))
    project_crumb = (h.bdi(ref.project), build_url("catalog", {"kind": ref.kind, "project": ref.project}))
    return (
        (kind_crumb, project_crumb, (h.bdi(ref.name), build_resource_url(ref.bare)))
        if ref.version
        else (kind_crumb, project_crumb)
    )


def render_title(ref: Ref) -> Html:
    """The short name of a thing."""
    return h.bdi(f"{ref.name}@{ref.version}" if ref.version else ref.name)


def render_summary(view: PageView, version: CatalogVersion) -> Html:
    """One line under the title of every page of a version."""
    deleted_badge = h.span(view.t("catalog.deleted"), class_="badge bad") if version.state != "live" else None
    other_aliases = tuple(alias for alias in version.aliases if alias != version.stage)
    message_line = h.p(h.bdi(version.message), class_="soft") if version.message else None
    badges_line = h.div(
        render_stage(view, version.stage),
        deleted_badge,
        render_aliases(view, version.ref, other_aliases),
        render_label_summary(view, version.label),
        class_="row",
    )
    return h.div(badges_line, message_line, class_="head")
