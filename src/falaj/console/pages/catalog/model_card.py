"""What a model version is made of, beside its files: figures, parameters, signature, environment, and what runs it."""

from collections.abc import Mapping

from falaj.catalog.records import CatalogVersion, ModelCard
from falaj.console import components
from falaj.console.components import ColumnHeader, TableRow
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page_view import PageView
from falaj.core.errors import FalajError
from falaj.core.ref import Ref


def render_model_cards(view: PageView, version: CatalogVersion) -> Html:
    """Cards of a model."""
    card = version.card or ModelCard()
    return components.card_grid(
        _render_summary(view, card), _render_figures(view, card), _render_environment(view, card)
    )


def _render_summary(view: PageView, card: ModelCard) -> Html:
    t, code = view.t, card.code
    safety_badge = components.badge(view, "no" if card.code_bearing else "ok")
    safety_note = t("catalog.runs_code") if card.code_bearing else t("catalog.runs_no_code")
    return components.card(
        t("console.model"),
        components.fact_list(
            [
                (
                    t("catalog.format"),
                    join_html(h.bdi(card.format or "?"), " ", safety_badge, h.div(safety_note, class_="soft small")),
                ),
                (t("catalog.command"), h.code(" ".join(card.command), dir="ltr") if card.command else ""),
                (t("catalog.code"), components.ref_link(view, code.ref) if code and code.ref else ""),
                (t("catalog.commit"), h.code(code.commit[:40], dir="ltr") if code and code.commit else ""),
                (t("catalog.dirty"), h.code(code.dirty[:24], dir="ltr") if code and code.dirty else ""),
                (t("console.run"), _render_run_link(view, card.run)),
            ]
        ),
        _render_signature(view, card.signature),
        id="model",
    )


def _render_run_link(view: PageView, run: str) -> Html:
    if not run:
        return EMPTY
    try:
        return components.ref_link(view, Ref.parse(run))
    except FalajError:
        return h.bdi(run)  # a name that another tool gave it


def _render_signature(view: PageView, signature: Mapping[str, object]) -> Html:
    if not signature:
        return EMPTY
    rows = [(h.bdi(name), h.code(str(field_type)[:300], dir="ltr")) for name, field_type in signature.items()]
    return join_html(h.h3(view.t("catalog.inputs_outputs")), components.fact_list(rows))


def _render_figures(view: PageView, card: ModelCard) -> Html:
    t = view.t
    rows = [
        TableRow((h.bdi(name), view.number(value)), id=f"m-{name}") for name, value in list(card.metrics.items())[:100]
    ]
    params = [(h.bdi(name), h.bdi(value)) for name, value in list(card.params.items())[:100]]
    metric_table = components.table(
        view, (t("catalog.metric"), ColumnHeader(t("console.value"), "n")), rows, t("catalog.metrics")
    )
    body = metric_table if rows else h.p(t("catalog.no_metrics"), class_="soft")
    params_list = join_html(h.h3(t("catalog.params")), components.fact_list(params)) if params else None
    return components.card(t("catalog.metrics"), body, params_list, id="metrics")


def _render_environment(view: PageView, card: ModelCard) -> Html:
    if not card.environment:
        return EMPTY
    leading_entries = [(name, card.environment[name]) for name in ("python", "platform") if name in card.environment]
    packages = [(name, value) for name, value in sorted(card.environment.items()) if name not in ("python", "platform")]
    package_list = h.ul([h.li(h.code(f"{name}=={value}", dir="ltr")) for name, value in packages], class_="packages")
    package_details = (
        h.details(h.summary(view.t("catalog.packages", n=len(packages))), package_list, id="packages")
        if packages
        else None
    )
    pairs = [(h.bdi(name), h.bdi(value)) for name, value in leading_entries]
    return components.card(
        view.t("catalog.environment"), components.fact_list(pairs), package_details, id="environment"
    )
