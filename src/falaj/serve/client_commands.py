"""What people do with endpoints beside the platform: deploy, call, and run a model over a dataset."""

import time
import typing
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from typing import Annotated, Any, TypeVar, cast

from falaj.core.client_command import Client, add_flags, client_command
from falaj.core.errors import FalajError, Invalid, NotFound, Unavailable
from falaj.core.ref import Ref
from falaj.serve.records import (
    AB,
    CANARY,
    SHADOW,
    DeployPlan,
    EndpointAddress,
    EndpointRules,
    EndpointView,
    ReplicaNeeds,
    ScalePolicy,
    TrialRequest,
)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
POLL_INTERVAL_S = 0.1
EXPLAIN_AFTER_S = 2.0
"""A replica that has no place to run after so long is explained."""
READY_TIMEOUT_S = 300.0
GATEWAY_TIMEOUT_S = 10.0
_OPTION_GROUPS: dict[str, type] = {"needs": ReplicaNeeds, "scale": ScalePolicy, "rules": EndpointRules}
_EXTRA_FLAGS: dict[str, Any] = {
    "canary": Annotated[str | None, "give it this share of the traffic, and watch: 10%"],
    "shadow": Annotated[str | None, "copy this share of the requests to it; nobody sees its answers"],
    "ab": Annotated[str | None, "give it this share, each caller always the same side"],
    "judge": Annotated[bool | None, "promote it or roll it back without anybody, by what is measured"],
    "watch": Annotated[dict[str, str] | None, "what the judge looks at; see docs/serve.md"],
    "code": Annotated[Ref | None, "of a torch or Python model: the version of its code"],
    "features": Annotated[Ref | None, "the feature service, where the model was trained on several"],
    "defaults": Annotated[dict[str, str] | None, "what the model is given for a feature that is not there"],
    "raw": Annotated[bool | None, "callers send the model's own inputs, not keys of features"],
    "message": Annotated[str | None, "what is new in it"],
}


def _with_option_flags(function: FunctionT) -> FunctionT:
    """Every field of what replicas need, of scale and of rules is a flag: said once, where it is at home."""
    flags = dict(_EXTRA_FLAGS)
    for option_class in _OPTION_GROUPS.values():
        hints = typing.get_type_hints(option_class)
        for option_field in fields(option_class):
            option_type = dict[str, str] if option_field.name in ("env", "secret") else hints[option_field.name]
            flags[option_field.name] = Annotated[option_type | None, _FLAG_HELP[option_field.name]]
    return add_flags(function, flags)


_FLAG_HELP = {
    "cpus": "cores of each replica", "memory": "memory of each replica", "gpus": "GPUs of each replica",
    "gpu_models": "any of these models", "threads": "threads of one run; one for each whole core when 0",
    "queue": "the queue; the project's own when left out", "band": "best-effort, low, normal, high or critical",
    "cluster": "on this cluster only", "zone": "served in this zone", "image": "the container image",
    "env": "variables of replicas; never secrets",
    "secret": "variables whose values are secrets: DB=secret:fraud/db",  # nosec B105 - help
    "least": "replicas at least; 0: none while nobody asks",
    "most": "replicas at most", "concurrency": "requests in flight that one replica should have",
    "latency_ms": "more replicas also when the slowest twentieth takes longer",
    "idle_s": "so long without a request before the last replica goes",
    "keep_s": "so long the revision before is kept after a switch", "per_s": "requests a second of one caller",
    "burst": "requests of one caller at once", "timeout_s": "how long a request may take",
    "hold_s": "how long a request waits for the first replica", "retries": "retries, as a share of requests",
    "hedge_ms": "ask a second replica after so long", "sample": "the share of requests whose bodies are kept",
    "keep_days": "how long they are kept", "tell_s": "how often replicas tell what they counted",
    "sticky": "the header that keeps a caller with one arm",
}  # fmt: skip


@client_command
@_with_option_flags
def deploy(
    here: Client,
    endpoint: Annotated[Ref, "for example endpoint:fraud/score"],
    model: Annotated[Ref, "the model version, for example model:fraud/scorer@production"],
    wait: Annotated[bool, "wait until it answers, or will not"] = False,
    **flags: Any,
) -> EndpointView:
    """Put a model version behind an endpoint that speaks the Open Inference Protocol, by HTTP and gRPC.

    What is not said stays as it is. Replicas start beside those that run, and the traffic moves when they are ready;
    with --canary, --ab or --shadow only a share of it, and with --judge the rest follows, or goes back, by itself.

    Example:
        falaj serve deploy endpoint:fraud/score model:fraud/scorer@production
        falaj serve deploy endpoint:fraud/score model:fraud/scorer@v8 --canary 10% --judge
    """
    set_flags = {name: value for name, value in flags.items() if value is not None}
    try:
        current_view: EndpointView | None = here.serve.show(endpoint)
    except NotFound:
        current_view = None
    option_groups = {
        name: _build_option_group(name, option_class, set_flags, current_view)
        for name, option_class in _OPTION_GROUPS.items()
    }
    plan_fields = {name: set_flags[name] for name in ("raw", "defaults", "message") if name in set_flags}
    plan = DeployPlan(**option_groups, trial=_parse_trial(set_flags), **plan_fields)
    here.serve.add(endpoint, model, plan, code=set_flags.get("code"), features=set_flags.get("features"))
    return _wait_until_ready(here, endpoint) if wait else cast(EndpointView, here.serve.show(endpoint))


def _build_option_group(
    name: str, option_class: type, set_flags: dict[str, Any], current_view: EndpointView | None
) -> Any:
    """Needs, scale or rules with what flags say, over what stands; nothing when they say nothing."""
    changed = {
        option_field.name: set_flags[option_field.name]
        for option_field in fields(option_class)
        if option_field.name in set_flags
    }
    if not changed:
        return None
    current_value: Any = option_class()
    if current_view is not None:
        current_value = current_view.revisions[-1].needs if name == "needs" else getattr(current_view, name)
    new_value = replace(current_value, **changed)
    if name == "scale" and "most" not in changed:
        new_value = replace(new_value, most=max(new_value.most, new_value.least))
    return new_value


def _parse_trial(set_flags: dict[str, Any]) -> TrialRequest | None:
    kinds = [kind for kind in (CANARY, SHADOW, AB) if kind in set_flags]
    if len(kinds) > 1:
        raise Invalid(f"{' and '.join(kinds)} at once", "choose one")
    if not kinds:
        if set_flags.get("judge"):
            raise Invalid("there is nothing to judge", "give it a share: --canary 10%")
        return None
    return TrialRequest(
        kinds[0], _parse_share(set_flags[kinds[0]]), bool(set_flags.get("judge")), dict(set_flags.get("watch") or {})
    )


def _parse_share(text: str) -> float:
    """10% or 0.1"""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise Invalid(f"{text[:40]!r} is no share", "for example 10%") from None
    if not 0 < share <= 1:
        raise Invalid(f"a share of {text[:40]}", "above 0, and all at most")
    return share


@client_command
def url(here: Client, endpoint: Annotated[Ref, "which endpoint"]) -> EndpointAddress:
    """Say where an endpoint is called, by HTTP and by gRPC, and how.

    Example:
        falaj serve url endpoint:fraud/score
    """
    view: EndpointView = here.serve.show(endpoint)
    if not view.url:
        raise Unavailable("no gateway runs yet", "falaj up keeps one once there is an endpoint; falaj gateway is one")
    example = f"curl -H 'authorization: Bearer TOKEN' {view.url}/infer -d '{{\"inputs\": [...]}}'"
    return EndpointAddress(view.ref, view.url, view.grpc, view.name, example)


@client_command
def call(
    here: Client,
    endpoint: Annotated[Ref, "which endpoint"],
    inputs: Annotated[dict[str, Any] | None, "values by the name of the input: '{\"x\": [[0.1, 0.2]]}'"] = None,
    keys: Annotated[dict[str, Any] | None, "of a model with features: whose, by the name of the key"] = None,
    revision: Annotated[int, "ask this one, whatever its share of traffic"] = 0,
    *,
    token: Annotated[str, "who calls; FALAJ_TOKEN, or who you are signed in as, when left out"] = "",
    timeout_s: Annotated[float, "how long to wait"] = 60.0,
) -> dict[str, Any]:
    """Call an endpoint through the gateway, and show what it answers.

    Example:
        falaj serve call endpoint:fraud/score --inputs '{"x": [[0.1, 0.2, 0.3]]}'
    """
    from falaj.serve.endpoint_client import EndpointClient

    # The first endpoint of a platform has its gateway a moment after it has its replica.
    gateway_deadline = time.monotonic() + min(GATEWAY_TIMEOUT_S, timeout_s)
    while not (url := here.serve.show(endpoint).url) and time.monotonic() < gateway_deadline:
        time.sleep(POLL_INTERVAL_S)
    with EndpointClient(here, url or here.serve.url(endpoint).url, token=token, timeout_s=timeout_s) as endpoint_client:
        return endpoint_client.infer({**(inputs or {}), **(keys or {})}, revision)


def _why_waiting(client: Client, view: EndpointView) -> str:
    """Why the newest revision's replica has no place to run, with what helps; empty while nothing stands against it."""
    newest = view.revisions[-1].number
    job = next((replica.job for replica in view.replicas if replica.revision == newest), None)
    with suppress(FalajError):
        explanation = client.jobs.why(job) if job is not None else None
        if explanation is not None and explanation.state == "waiting" and explanation.reason:
            cures = (
                f"give each replica less (falaj serve deploy {view.ref} MODEL --cpus 0.1 --memory 256MiB) or stop an"
            )
            return f"{view.ref} waits for {explanation.reason}: {explanation.text}; {cures} endpoint (falaj serve list)"
    return ""


def _wait_until_ready(client: Client, endpoint: Ref, wait_s: float = READY_TIMEOUT_S) -> EndpointView:
    """The endpoint once its newest revision has its traffic, or an error that says why it will not."""
    started = time.monotonic()
    wait_until, shown_by, waiting_reason = started + wait_s, 0.0, ""
    with client.working():
        while True:
            view: EndpointView = client.serve.show(endpoint)
            newest = view.revisions[-1].number
            ready = any(replica.revision == newest and replica.state == "ready" for replica in view.replicas)
            is_tried = view.rollout is not None and newest in view.rollout.arms.values()
            if ready and (str(newest) in view.traffic or is_tried):
                # A platform that runs keeps a gateway, which starts with the first endpoint; an embedded one has none.
                shown_by = shown_by or time.monotonic() + (
                    0.0 if client.address.startswith("dir:") else GATEWAY_TIMEOUT_S
                )
                if view.url or time.monotonic() >= shown_by:
                    return view
            if f"revision {newest}" in view.note:
                raise Invalid(f"{endpoint} does not get ready: {view.note}", "falaj jobs logs shows all of it")
            if not waiting_reason and time.monotonic() > started + EXPLAIN_AFTER_S:
                waiting_reason = _why_waiting(client, view)
                if waiting_reason:
                    client.progress.note(waiting_reason)
            if time.monotonic() > wait_until:
                hint = waiting_reason or "falaj serve show says what it does"
                raise Unavailable(f"{endpoint} is not ready after {wait_s:g} s", hint)
            time.sleep(POLL_INTERVAL_S)
