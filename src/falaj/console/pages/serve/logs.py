"""Requests that were kept, with what was asked and answered."""

import json
from collections.abc import Mapping
from typing import Any

from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.parts import Column, Field, Row
from falaj.console.view import View
from falaj.serve.records import EndpointView, LogLine, LogPage

PAGE, LONGEST = 50, 4000
SPANS = {"3600": "hour", "86400": "day", "604800": "week"}


def logs(view: View, one: EndpointView) -> Html:
    """Newest first."""
    t = view.t
    spans = [(name, t.of("serve.span", word)) for name, word in SPANS.items()]
    numbers = [("", t("console.all")), *((str(r.number), str(r.number)) for r in reversed(one.revisions[-50:]))]
    fields = (
        Field("since", t("console.since"), "select", value="86400", options=spans),
        Field("revision", t("serve.revision"), "select", options=numbers),
        Field("key", t("serve.key")),
    )
    return join(parts.filters(view, fields), view.part(lambda: _lines(view, one)))


def _lines(view: View, one: EndpointView) -> Html:
    t = view.t
    since = view.query("since") if view.query("since") in SPANS else "86400"
    found: LogPage = view.here.serve.logs(
        one.ref, since_s=float(since), key=view.query("key"), revision=view.count("revision", 0),
        after=view.query("page"), limit=PAGE,
    )  # fmt: skip
    if not found.lines:
        return parts.empty(view, t("serve.no_logs"), t("serve.no_logs_hint"))
    heads = (
        t("console.when"), Column(t("serve.request"), "code"), t("serve.arm"), Column(t("serve.status"), "n"),
        Column(t("console.took"), "n"), t("serve.caller"), t("console.details"),
    )  # fmt: skip
    rows = [_row(view, kept) for kept in found.lines]
    return join(parts.table(view, heads, rows, t("serve.logs")), parts.pager(view, found.next))


def _row(view: View, kept: LogLine) -> Row:
    t = view.t
    shown = h.details(
        h.summary(t("serve.bodies")), h.h3(t("serve.request")), _json(kept.request), h.h3(t("serve.answer")),
        _json(kept.response), id=f"body-{parts.slug(kept.id)}",
    )  # fmt: skip
    status = h.span(view.number(kept.status), class_="badge good" if kept.status < 400 else "badge bad")
    return Row(
        (view.when(kept.at), kept.id, h.bdi(f"{kept.arm} · {kept.revision}"), status,
         view.duration(kept.latency_us / 1e6), h.bdi(kept.caller), shown),
        id=f"line-{kept.id}", state="bad" if kept.status >= 500 else "",
    )  # fmt: skip


def _json(body: Mapping[str, Any]) -> Html:
    written = json.dumps(body, ensure_ascii=False, indent=1, default=str)
    return h.pre(written[:LONGEST] + ("…" if len(written) > LONGEST else ""), tabindex="0")
