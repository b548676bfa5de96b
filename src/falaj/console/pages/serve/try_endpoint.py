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

from falaj.console import components
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.operation_forms import FORM_TOKEN_FIELD
from falaj.console.page_view import PageView, render_error
from falaj.console.pages.serve.endpoint_list import list_served_models
from falaj.console.pages.serve.input_forms import (
    ModelInput,
    parse_metadata_inputs,
    parse_signature_inputs,
    parse_values,
)
from falaj.core.errors import FalajError
from falaj.serve.endpoint_client import EndpointClient, build_input_tensor
from falaj.serve.records import EndpointView

CALL_TIMEOUT_S, METADATA_TIMEOUT_S, MAX_ANSWER_CHARACTERS = 15.0, 3.0, 20_000


def render_try_form(view: PageView, endpoint_view: EndpointView) -> Html:
    """The form, and what was answered."""
    t = view.t
    if not endpoint_view.url:
        signature_inputs = _find_signature_inputs(view, endpoint_view)
        no_gateway_notice = components.notice("warn", t("serve.no_gateway"), t("serve.no_gateway_hint"))
        return join_html(no_gateway_notice, _render_form(view, endpoint_view, signature_inputs, can_send=False))
    if missing_permission := view.lacks("serve.enter", endpoint_view.ref):
        return components.notice("denied", t("console.needs", what=missing_permission))
    try:
        timeout_s = (
            CALL_TIMEOUT_S if view.form else METADATA_TIMEOUT_S
        )  # an endpoint that sleeps is woken by a question, not by a look
        with EndpointClient(view.here, endpoint_view.url, token=view.here.token(), timeout_s=timeout_s) as caller:
            metadata = caller.metadata(_get_revision(view))
            answer_card = _send_request(view, endpoint_view, caller, metadata) if view.form else EMPTY
    except FalajError as error:
        return join_html(
            render_error(view, error),
            _render_form(view, endpoint_view, _find_signature_inputs(view, endpoint_view), can_send=True),
        )
    return join_html(answer_card, _render_form(view, endpoint_view, parse_metadata_inputs(metadata), can_send=True))


def _find_signature_inputs(view: PageView, endpoint_view: EndpointView) -> tuple[ModelInput, ...]:
    """What was published with the model."""
    try:
        card = view.here.catalog.show(list_served_models(endpoint_view)[-1]).card
    except FalajError:
        return ()
    return parse_signature_inputs(card.signature) if card else ()


def _send_request(view: PageView, endpoint_view: EndpointView, caller: EndpointClient, metadata: Any) -> Html:
    """One request, and what came of it."""
    try:
        values = parse_values(parse_metadata_inputs(metadata), view.form)
        view.here.serve.enter(endpoint_view.ref)
        started_at = time.perf_counter()
        outputs = caller.infer(values, _get_revision(view), metadata)
    except FalajError as error:
        return render_error(view, error)
    duration_s = time.perf_counter() - started_at
    output_lines = [f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in outputs.items()]
    answer_text = "{\n" + ",\n".join(output_lines) + "\n}"
    status_line = h.p(components.badge(view, "done"), " ", view.t("serve.answered_in"), " ", view.duration(duration_s))
    answer_block = h.pre(
        answer_text[:MAX_ANSWER_CHARACTERS] + ("…" if len(answer_text) > MAX_ANSWER_CHARACTERS else ""),
        tabindex="0",
        id="answer-body",
    )
    return components.card(
        view.t("serve.answer"),
        status_line,
        answer_block,
        _render_commands(view, endpoint_view, values, metadata),
        id="answer",
    )


def _render_commands(view: PageView, endpoint_view: EndpointView, values: Mapping[str, Any], metadata: Any) -> Html:
    """The same request from elsewhere."""
    datatype_by_name = {model_input.name: model_input.datatype for model_input in parse_metadata_inputs(metadata)}
    request_body = {
        "inputs": [
            build_input_tensor(name, datatype_by_name.get(name, "FP32"), value) for name, value in values.items()
        ]
    }
    revision = _get_revision(view)
    request_url = f"{endpoint_view.url}/versions/{revision}" if revision else endpoint_view.url
    purpose = f" -H {shlex.quote(f'falaj-purpose: {view.look.purpose}')}" if view.look.purpose else ""
    curl_command = (
        f'curl -H "authorization: Bearer $FALAJ_TOKEN"{purpose} '
        f"{request_url}/infer -d {shlex.quote(json.dumps(request_body))}"
    )
    revision_argument = f", revision={revision}" if revision else ""
    python_code = f'here.serve.call("{endpoint_view.ref}", inputs={values!r}{revision_argument})'
    return h.div(
        h.h3(view.t("console.at_terminal")),
        components.copyable_code(view, curl_command),
        h.h3(view.t("console.in_python")),
        components.copyable_code(view, python_code),
        class_="lines",
    )


def _render_form(view: PageView, endpoint_view: EndpointView, inputs: Sequence[ModelInput], *, can_send: bool) -> Html:
    t = view.t
    fields = [_render_input(view, position, model_input) for position, model_input in enumerate(inputs)]
    whole_input = (
        None
        if inputs
        else _render_text_area(view, "whole", t("serve.inputs"), view.form.get("whole", '{"x": [[0.1, 0.2]]}'))
    )
    revision_options = [
        ("", t("serve.by_share")),
        *(
            (str(revision_view.number), str(revision_view.number))
            for revision_view in reversed(endpoint_view.revisions[-20:])
        ),
    ]
    chosen_revision = view.form.get("revision", "")
    revision_select = h.label(
        h.span(t("serve.revision")),
        h.select(
            [h.option(name, value=key, selected=key == chosen_revision) for key, name in revision_options],
            name="revision",
        ),
    )
    send_button = h.button(t("serve.send"), class_="primary", disabled=not can_send)
    form = h.form(
        fields,
        whole_input,
        revision_select,
        h.input(type="hidden", name=FORM_TOKEN_FIELD, value=view.csrf),
        send_button,
        method="post",
        action=view.link(tab="try"),
        class_="try",
        id="try",
    )
    return components.card(t("serve.try_title"), h.p(t("serve.try_hint"), class_="soft"), form)


def _render_input(view: PageView, position: int, model_input: ModelInput) -> Html:
    shape = " \u00d7 ".join("n" if size < 0 else str(size) for size in model_input.shape)
    legend = h.legend(
        h.bdi(model_input.name), " ", h.small(h.bdi(f"{model_input.datatype} [{shape}]", dir="ltr"), class_="soft")
    )
    if not model_input.few:
        text_area = _render_text_area(
            view,
            f"json.{position}",
            view.t("serve.values_of", name=model_input.name),
            view.form.get(f"json.{position}", model_input.example),
        )
        return h.fieldset(legend, text_area)
    num_values = math.prod(model_input.row)
    names = (
        [f"{model_input.name}[{value_index}]" for value_index in range(num_values)]
        if num_values > 1
        else [model_input.name]
    )
    value_fields = [
        _render_value_field(view, f"in.{position}.{value_index}", name, model_input)
        for value_index, name in enumerate(names)
    ]
    return h.fieldset(legend, h.div(value_fields, class_="row"))


def _render_value_field(view: PageView, name: str, label: str, model_input: ModelInput) -> Html:
    value_text = view.form.get(name, "" if model_input.kind == "text" else "0")
    if model_input.kind == "checkbox":
        input_element = h.input(type="checkbox", name=name, value="on", checked=value_text == "on")
    else:
        step = "any" if model_input.datatype.startswith(("FP", "BF")) else "1"
        input_element = h.input(
            type=model_input.kind,
            name=name,
            value=value_text,
            step=step if model_input.kind == "number" else None,
            dir="auto",
        )
    return h.label(h.bdi(label), input_element)


def _render_text_area(view: PageView, name: str, label: str | Html, value: str) -> Html:
    del view
    return h.label(h.span(label), h.textarea(value, name=name, rows="4", dir="ltr", spellcheck="false"))


def _get_revision(view: PageView) -> int:
    revision_text = view.form.get("revision", "")
    return int(revision_text) if revision_text.isdecimal() and len(revision_text) < 9 else 0
