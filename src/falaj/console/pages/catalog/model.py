"""What a model version is made of, beside its files: figures, parameters, signature, environment, and what runs it."""

from collections.abc import Mapping

from falaj.catalog.records import Card, Version
from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.parts import Column, Row
from falaj.console.view import View
from falaj.core.errors import FalajError
from falaj.core.ref import Ref


def cards(view: View, version: Version) -> Html:
    """Cards of a model."""
    card = version.card or Card()
    return parts.cards(_made(view, card), _figures(view, card), _environment(view, card))


def _made(view: View, card: Card) -> Html:
    t, code = view.t, card.code
    safe = parts.badge(view, "no" if card.code_bearing else "ok")
    danger = t("catalog.runs_code") if card.code_bearing else t("catalog.runs_no_code")
    return parts.card(t("console.model"), parts.facts([
        (t("catalog.format"), join(h.bdi(card.format or "?"), " ", safe, h.div(danger, class_="soft small"))),
        (t("catalog.command"), h.code(" ".join(card.command), dir="ltr") if card.command else ""),
        (t("catalog.code"), parts.ref(view, code.ref) if code and code.ref else ""),
        (t("catalog.commit"), h.code(code.commit[:40], dir="ltr") if code and code.commit else ""),
        (t("catalog.dirty"), h.code(code.dirty[:24], dir="ltr") if code and code.dirty else ""),
        (t("console.run"), _run(view, card.run)),
    ]), _signature(view, card.signature), id="model")  # fmt: skip


def _run(view: View, run: str) -> Html:
    if not run:
        return EMPTY
    try:
        return parts.ref(view, Ref.parse(run))
    except FalajError:
        return h.bdi(run)  # a name that another tool gave it


def _signature(view: View, signature: Mapping[str, object]) -> Html:
    if not signature:
        return EMPTY
    rows = [(h.bdi(name), h.code(str(kind)[:300], dir="ltr")) for name, kind in signature.items()]
    return join(h.h3(view.t("catalog.inputs_outputs")), parts.facts(rows))


def _figures(view: View, card: Card) -> Html:
    t = view.t
    rows = [Row((h.bdi(name), view.number(value)), id=f"m-{name}") for name, value in list(card.metrics.items())[:100]]
    params = [(h.bdi(name), h.bdi(value)) for name, value in list(card.params.items())[:100]]
    told = parts.table(view, (t("catalog.metric"), Column(t("console.value"), "n")), rows, t("catalog.metrics"))
    body = told if rows else h.p(t("catalog.no_metrics"), class_="soft")
    more = join(h.h3(t("catalog.params")), parts.facts(params)) if params else None
    return parts.card(t("catalog.metrics"), body, more, id="metrics")


def _environment(view: View, card: Card) -> Html:
    if not card.environment:
        return EMPTY
    first = [(name, card.environment[name]) for name in ("python", "platform") if name in card.environment]
    rest = [(name, value) for name, value in sorted(card.environment.items()) if name not in ("python", "platform")]
    listed = h.ul([h.li(h.code(f"{name}=={value}", dir="ltr")) for name, value in rest], class_="packages")
    inner = h.details(h.summary(view.t("catalog.packages", n=len(rest))), listed, id="packages") if rest else None
    pairs = [(h.bdi(name), h.bdi(value)) for name, value in first]
    return parts.card(view.t("catalog.environment"), parts.facts(pairs), inner, id="environment")
