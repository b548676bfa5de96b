"""What the catalog's pages share: the head of a thing, its stage, its label, and the way between its pages."""

from collections.abc import Mapping

from falaj.catalog.records import KINDS, Version
from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.page import address, href
from falaj.console.states import tone
from falaj.console.view import View
from falaj.core.errors import NotFound
from falaj.core.label import ANY, CLASS_NAMES, Label
from falaj.core.ref import Ref
from falaj.govern.applicability import LabelFacts, find_exemption

_CLASS_TONES = ("good", "", "warn", "bad")


def asked(view: View) -> Ref:
    """What the address names; only what the catalog keeps has a page here."""
    ref = Ref.parse(view.args["ref"])
    if ref.kind not in KINDS:
        raise NotFound(f"the catalog keeps no {ref.kind}", f"it keeps: {', '.join(KINDS)}", ref)
    return ref


def at(ref: Ref, piece: str = "", **query: object) -> str:
    """The address of one of a thing's pages."""
    return address(f"catalog/{ref}/{piece}", query) if piece else href(ref, **query)


def stage(view: View, name: str) -> Html:
    """A stage, in its colour."""
    return h.span(view.t.of("catalog.stage", name), class_=f"badge {tone(name)}".strip(), data_state=name)


def marks(view: View, ref: Ref, aliases: Mapping[str, str] | tuple[str, ...]) -> Html:
    """The words that mean a version; stages look like stages."""
    del ref
    known = ("production", "staging")
    return join([stage(view, one) if one in known else parts.tag(one) for one in aliases])


def label_marks(view: View, label: Label) -> Html:
    """A label in as little room as a row of a list has."""
    name = CLASS_NAMES[label.classification]
    kind = f"badge {_CLASS_TONES[label.classification]}".strip()
    held = h.span(view.t("catalog.held"), class_="badge bad") if label.holds else None
    return join(h.span(view.t.of("catalog.class", name), class_=kind), " ", map(parts.tag, sorted(label.regimes)), held)


def label_card(view: View, label: Label) -> Html:
    """A label with what it means."""
    t, name = view.t, CLASS_NAMES[label.classification]
    free = t("catalog.any_purpose") if label.purposes == ANY else [parts.tag(one) for one in sorted(label.purposes)]
    exempt = _exemptions(view, label)
    regimes = [h.div(parts.tag(one), " ", h.span(t.of("catalog.regime", one), class_="soft small"), exempt.get(one))
               for one in sorted(label.regimes)]  # fmt: skip
    keep = [
        t("catalog.keep_least", time=view.duration(label.min_retain_s)) if label.min_retain_s else None,
        t("catalog.keep_most", time=view.duration(label.max_retain_s)) if label.max_retain_s is not None else None,
    ]
    meant = h.div(label_class(view, label), h.div(t.of("catalog.class_means", name), class_="soft small"))
    return parts.card(t("console.label"), parts.facts([
        (t("catalog.classification"), meant),
        (t("catalog.regimes"), join(regimes)),
        (t("catalog.purposes"), join(free)),
        (t("catalog.categories"), join([parts.tag(one) for one in sorted(label.categories)])),
        (t("catalog.origin"), join([parts.tag(one) for one in sorted(label.origin)])),
        (t("catalog.holds"), join([h.div(h.bdi(one)) for one in sorted(label.holds)])),
        (t("catalog.keeping"), join([h.div(one) for one in keep if one])),
    ]), id="label")  # fmt: skip


def _exemptions(view: View, label: Label) -> dict[str, Html]:
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


def label_class(view: View, label: Label) -> Html:
    """How much harm it would do in wrong hands, in a word."""
    kind = f"badge {_CLASS_TONES[label.classification]}".strip()
    return h.span(view.t.of("catalog.class", CLASS_NAMES[label.classification]), class_=kind)


def ways(view: View, ref: Ref, now: str) -> Html:
    """The pages of one thing, as tabs; a bare name has no files of its own."""
    t = view.t
    known = [("", t("console.overview"))]
    if ref.version:
        known += [("files", t("console.files")), ("diff", t("catalog.changes"))]
        known += [("lineage", t("console.lineage"))]
    known += [("stages", t("catalog.stages"))] if ref.kind != "code" else []
    links = [h.a(word, href=at(ref, piece), aria_current="page" if piece == now else None) for piece, word in known]
    return h.nav(links, class_="tabs", aria_label=t("console.parts"))


def crumbs(view: View, ref: Ref) -> tuple[tuple[str | Html, str], ...]:
    """Kind, project and, of a version, its name."""
    kind = (view.t.of("catalog.kinds", ref.kind), address("catalog", {"kind": ref.kind}))
    project = (h.bdi(ref.project), address("catalog", {"kind": ref.kind, "project": ref.project}))
    return (kind, project, (h.bdi(ref.name), href(ref.bare))) if ref.version else (kind, project)


def title(ref: Ref) -> Html:
    """The short name of a thing."""
    return h.bdi(f"{ref.name}@{ref.version}" if ref.version else ref.name)


def summary(view: View, version: Version) -> Html:
    """One line under the title of every page of a version."""
    gone = h.span(view.t("catalog.deleted"), class_="badge bad") if version.state != "live" else None
    others = tuple(one for one in version.aliases if one != version.stage)
    said = h.p(h.bdi(version.message), class_="soft") if version.message else None
    line = h.div(stage(view, version.stage), gone, marks(view, version.ref, others), label_marks(view, version.label),
                 class_="row")  # fmt: skip
    return h.div(line, said, class_="head")
