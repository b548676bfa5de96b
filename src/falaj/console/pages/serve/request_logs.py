"""Requests that were kept, with what was asked and answered."""

import json
from collections.abc import Mapping
from typing import Any

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import Html, h, join_html
from falaj.console.page_view import PageView
from falaj.serve.records import EndpointView, RequestLogLine, RequestLogPage

PAGE_SIZE, MAX_BODY_CHARACTERS = 50, 4000
SPAN_NAMES = {"3600": "hour", "86400": "day", "604800": "week"}


def render_logs(view: PageView, endpoint_view: EndpointView) -> Html:
    """Newest first."""
    t = view.t
    spans = [(seconds_text, t.of("serve.span", span_name)) for seconds_text, span_name in SPAN_NAMES.items()]
    revision_options = [
        ("", t("console.all")),
        *((str(revision.number), str(revision.number)) for revision in reversed(endpoint_view.revisions[-50:])),
    ]
    fields = (
        FormField("since", t("console.since"), "select", value="86400", options=spans),
        FormField("revision", t("serve.revision"), "select", options=revision_options),
        FormField("key", t("serve.key")),
    )
    return join_html(components.filter_form(view, fields), view.part(lambda: _render_log_lines(view, endpoint_view)))


def _render_log_lines(view: PageView, endpoint_view: EndpointView) -> Html:
    t = view.t
    since = view.query("since") if view.query("since") in SPAN_NAMES else "86400"
    log_page: RequestLogPage = view.here.serve.logs(
        endpoint_view.ref,
        since_s=float(since),
        key=view.query("key"),
        revision=view.count("revision", 0),
        after=view.query("page"),
        limit=PAGE_SIZE,
    )
    if not log_page.lines:
        return components.empty_state(view, t("serve.no_logs"), t("serve.no_logs_hint"))
    headers = (
        t("console.when"),
        ColumnHeader(t("serve.request"), "code"),
        t("serve.arm"),
        ColumnHeader(t("serve.status"), "n"),
        ColumnHeader(t("console.took"), "n"),
        t("serve.caller"),
        t("console.details"),
    )
    rows = [_make_row(view, log_line) for log_line in log_page.lines]
    return join_html(components.table(view, headers, rows, t("serve.logs")), components.pager(view, log_page.next))


def _make_row(view: PageView, log_line: RequestLogLine) -> TableRow:
    t = view.t
    bodies_details = h.details(
        h.summary(t("serve.bodies")),
        h.h3(t("serve.request")),
        _render_json(log_line.request),
        h.h3(t("serve.answer")),
        _render_json(log_line.response),
        id=f"body-{components.to_element_id(log_line.id)}",
    )
    status = h.span(view.number(log_line.status), class_="badge good" if log_line.status < 400 else "badge bad")
    return TableRow(
        (
            view.when(log_line.at),
            log_line.id,
            h.bdi(f"{log_line.arm} · {log_line.revision}"),
            status,
            view.duration(log_line.latency_us / 1e6),
            h.bdi(log_line.caller),
            bodies_details,
        ),
        id=f"line-{log_line.id}",
        state="bad" if log_line.status >= 500 else "",
    )


def _render_json(body: Mapping[str, Any]) -> Html:
    json_text = json.dumps(body, ensure_ascii=False, indent=1, default=str)
    return h.pre(json_text[:MAX_BODY_CHARACTERS] + ("…" if len(json_text) > MAX_BODY_CHARACTERS else ""), tabindex="0")
