"""Try it: a form made from what the model takes, and one request through the gateway as whoever fills it in.

The address is the gateway's own, as the gateway wrote it down; nothing of a form can change it. The token is made for
this one request, says who asks, and can do no more than they can.
"""

import json
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from falaj.console import parts
from falaj.console.doing import KEY
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.pages.serve.listing import models
from falaj.console.pages.serve.shapes import Input, inputs_in, inputs_of, values_of
from falaj.console.view import View, said
from falaj.core.errors import FalajError
from falaj.serve.calling import Caller, tensor
from falaj.serve.records import EndpointView

TIMEOUT_S, LOOK_S, LONGEST = 15.0, 3.0, 20_000


def trying(view: View, one: EndpointView) -> Html:
    """The form, and what was answered."""
    t = view.t
    if not one.url:
        known = _signature(view, one)
        away = parts.notice("warn", t("serve.no_gateway"), t("serve.no_gateway_hint"))
        return join(away, _form(view, one, known, able=False))
    if lacking := view.lacks("serve.enter", one.ref):
        return parts.notice("denied", t("console.needs", what=lacking))
    try:
        within_s = TIMEOUT_S if view.form else LOOK_S  # an endpoint that sleeps is woken by a question, not by a look
        with Caller(view.here, one.url, token=view.here.token(), timeout_s=within_s) as caller:
            told = caller.metadata(_revision(view))
            answer = _asked(view, one, caller, told) if view.form else EMPTY
    except FalajError as error:
        return join(said(view, error), _form(view, one, _signature(view, one), able=True))
    return join(answer, _form(view, one, inputs_of(told), able=True))


def _signature(view: View, one: EndpointView) -> tuple[Input, ...]:
    """What was published with the model."""
    try:
        card = view.here.catalog.show(models(one)[-1]).card
    except FalajError:
        return ()
    return inputs_in(card.signature) if card else ()


def _asked(view: View, one: EndpointView, caller: Caller, told: Any) -> Html:
    """One request, and what came of it."""
    try:
        values = values_of(inputs_of(told), view.form)
        view.here.serve.enter(one.ref)
        begun = time.perf_counter()
        found = caller.infer(values, _revision(view), told)
    except FalajError as error:
        return said(view, error)
    took = time.perf_counter() - begun
    lines = [f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in found.items()]
    written = "{\n" + ",\n".join(lines) + "\n}"
    head = h.p(parts.badge(view, "done"), " ", view.t("serve.answered_in"), " ", view.duration(took))
    shown = h.pre(written[:LONGEST] + ("…" if len(written) > LONGEST else ""), tabindex="0", id="answer-body")
    return parts.card(view.t("serve.answer"), head, shown, _lines(view, one, values, told), id="answer")


def _lines(view: View, one: EndpointView, values: Mapping[str, Any], told: Any) -> Html:
    """The same request from elsewhere."""
    kinds = {kept.name: kept.datatype for kept in inputs_of(told)}
    body = {"inputs": [tensor(name, kinds.get(name, "FP32"), value) for name, value in values.items()]}
    revision = _revision(view)
    path = f"{one.url}/versions/{revision}" if revision else one.url
    purpose = f" -H {shlex.quote(f'falaj-purpose: {view.look.purpose}')}" if view.look.purpose else ""
    curl = f'curl -H "authorization: Bearer $FALAJ_TOKEN"{purpose} {path}/infer -d {shlex.quote(json.dumps(body))}'
    last = f", revision={revision}" if revision else ""
    python = f'here.serve.call("{one.ref}", inputs={values!r}{last})'
    return h.div(h.h3(view.t("console.at_terminal")), parts.copyable(view, curl), h.h3(view.t("console.in_python")),
                 parts.copyable(view, python), class_="lines")  # fmt: skip


def _form(view: View, one: EndpointView, inputs: Sequence[Input], *, able: bool) -> Html:
    t = view.t
    fields = [_fields(view, at, kept) for at, kept in enumerate(inputs)]
    whole = None if inputs else _area(view, "whole", t("serve.inputs"), view.form.get("whole", '{"x": [[0.1, 0.2]]}'))
    numbers = [("", t("serve.by_share")), *((str(r.number), str(r.number)) for r in reversed(one.revisions[-20:]))]
    chosen = view.form.get("revision", "")
    revision = h.label(
        h.span(t("serve.revision")),
        h.select([h.option(name, value=key, selected=key == chosen) for key, name in numbers], name="revision"),
    )
    send = h.button(t("serve.send"), class_="primary", disabled=not able)
    form = h.form(
        fields, whole, revision, h.input(type="hidden", name=KEY, value=view.csrf), send, method="post",
        action=view.link(tab="try"), class_="try", id="try",
    )  # fmt: skip
    return parts.card(t("serve.try_title"), h.p(t("serve.try_hint"), class_="soft"), form)


def _fields(view: View, at: int, one: Input) -> Html:
    shape = " \u00d7 ".join("n" if size < 0 else str(size) for size in one.shape)
    legend = h.legend(h.bdi(one.name), " ", h.small(h.bdi(f"{one.datatype} [{shape}]", dir="ltr"), class_="soft"))
    if not one.few:
        area = _area(
            view, f"json.{at}", view.t("serve.values_of", name=one.name), view.form.get(f"json.{at}", one.example)
        )
        return h.fieldset(legend, area)
    count = math.prod(one.row)
    names = [f"{one.name}[{n}]" for n in range(count)] if count > 1 else [one.name]
    made = [_field(view, f"in.{at}.{n}", name, one) for n, name in enumerate(names)]
    return h.fieldset(legend, h.div(made, class_="row"))


def _field(view: View, name: str, label: str, one: Input) -> Html:
    given = view.form.get(name, "" if one.kind == "text" else "0")
    if one.kind == "checkbox":
        made = h.input(type="checkbox", name=name, value="on", checked=given == "on")
    else:
        step = "any" if one.datatype.startswith(("FP", "BF")) else "1"
        made = h.input(type=one.kind, name=name, value=given, step=step if one.kind == "number" else None, dir="auto")
    return h.label(h.bdi(label), made)


def _area(view: View, name: str, label: str | Html, value: str) -> Html:
    del view
    return h.label(h.span(label), h.textarea(value, name=name, rows="4", dir="ltr", spellcheck="false"))


def _revision(view: View) -> int:
    given = view.form.get("revision", "")
    return int(given) if given.isdecimal() and len(given) < 9 else 0
