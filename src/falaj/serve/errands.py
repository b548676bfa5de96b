"""What people do with endpoints beside the platform: deploy, call, and run a model over a dataset."""

import time
import typing
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from typing import Annotated, Any, TypeVar, cast

from falaj.core.errand import Here, errand, with_flags
from falaj.core.errors import FalajError, Invalid, NotFound, Unavailable
from falaj.core.ref import Ref
from falaj.serve.records import AB, CANARY, SHADOW, DeployPlan, EndpointView, Needs, Reach, Rules, Scale, Trial

F = TypeVar("F", bound=Callable[..., Any])
LOOK_S = 0.1
EXPLAIN_S = 2.0
"""A replica that has no place to run after so long is explained."""
WAIT_S = 300.0
GATEWAY_S = 10.0
_PARTS: dict[str, type] = {"needs": Needs, "scale": Scale, "rules": Rules}
_MORE: dict[str, Any] = {
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


def _with_flags(function: F) -> F:
    """Every field of what replicas need, of scale and of rules is a flag: said once, where it is at home."""
    flags = dict(_MORE)
    for part in _PARTS.values():
        hints = typing.get_type_hints(part)
        for one in fields(part):
            kind = dict[str, str] if one.name in ("env", "secret") else hints[one.name]
            flags[one.name] = Annotated[kind | None, _HELP[one.name]]
    return with_flags(function, flags)


_HELP = {
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


@errand
@_with_flags
def deploy(
    here: Here,
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
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        known: EndpointView | None = here.serve.show(endpoint)
    except NotFound:
        known = None
    parts = {name: _part(name, kind, given, known) for name, kind in _PARTS.items()}
    said = {name: given[name] for name in ("raw", "defaults", "message") if name in given}
    plan = DeployPlan(**parts, trial=_trial(given), **said)
    here.serve.add(endpoint, model, plan, code=given.get("code"), features=given.get("features"))
    return _waited(here, endpoint) if wait else cast(EndpointView, here.serve.show(endpoint))


def _part(name: str, kind: type, given: dict[str, Any], known: EndpointView | None) -> Any:
    """Needs, scale or rules with what flags say, over what stands; nothing when they say nothing."""
    words = {one.name: given[one.name] for one in fields(kind) if one.name in given}
    if not words:
        return None
    before: Any = kind()
    if known is not None:
        before = known.revisions[-1].needs if name == "needs" else getattr(known, name)
    made = replace(before, **words)
    if name == "scale" and "most" not in words:
        made = replace(made, most=max(made.most, made.least))
    return made


def _trial(given: dict[str, Any]) -> Trial | None:
    kinds = [kind for kind in (CANARY, SHADOW, AB) if kind in given]
    if len(kinds) > 1:
        raise Invalid(f"{' and '.join(kinds)} at once", "choose one")
    if not kinds:
        if given.get("judge"):
            raise Invalid("there is nothing to judge", "give it a share: --canary 10%")
        return None
    return Trial(kinds[0], _share(given[kinds[0]]), bool(given.get("judge")), dict(given.get("watch") or {}))


def _share(text: str) -> float:
    """10% or 0.1"""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise Invalid(f"{text[:40]!r} is no share", "for example 10%") from None
    if not 0 < share <= 1:
        raise Invalid(f"a share of {text[:40]}", "above 0, and all at most")
    return share


@errand
def url(here: Here, endpoint: Annotated[Ref, "which endpoint"]) -> Reach:
    """Say where an endpoint is called, by HTTP and by gRPC, and how.

    Example:
        falaj serve url endpoint:fraud/score
    """
    view: EndpointView = here.serve.show(endpoint)
    if not view.url:
        raise Unavailable("no gateway runs yet", "falaj up keeps one once there is an endpoint; falaj gateway is one")
    example = f"curl -H 'authorization: Bearer TOKEN' {view.url}/infer -d '{{\"inputs\": [...]}}'"
    return Reach(view.ref, view.url, view.grpc, view.name, example)


@errand
def call(
    here: Here,
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
    from falaj.serve.calling import Caller

    # The first endpoint of a platform has its gateway a moment after it has its replica.
    until = time.monotonic() + min(GATEWAY_S, timeout_s)
    while not (url := here.serve.show(endpoint).url) and time.monotonic() < until:
        time.sleep(LOOK_S)
    with Caller(here, url or here.serve.url(endpoint).url, token=token, timeout_s=timeout_s) as caller:
        return caller.infer({**(inputs or {}), **(keys or {})}, revision)


def _why_waiting(here: Here, view: EndpointView) -> str:
    """Why the newest revision's replica has no place to run, with what helps; empty while nothing stands against it."""
    newest = view.revisions[-1].number
    job = next((replica.job for replica in view.replicas if replica.revision == newest), None)
    with suppress(FalajError):
        why = here.jobs.why(job) if job is not None else None
        if why is not None and why.state == "waiting" and why.reason:
            cures = (
                f"give each replica less (falaj serve deploy {view.ref} MODEL --cpus 0.1 --memory 256MiB) or stop an"
            )
            return f"{view.ref} waits for {why.reason}: {why.text}; {cures} endpoint (falaj serve list)"
    return ""


def _waited(here: Here, endpoint: Ref, wait_s: float = WAIT_S) -> EndpointView:
    """The endpoint once its newest revision has its traffic, or an error that says why it will not."""
    started = time.monotonic()
    until, shown_by, waits = started + wait_s, 0.0, ""
    with here.working():
        while True:
            view: EndpointView = here.serve.show(endpoint)
            newest = view.revisions[-1].number
            ready = any(one.revision == newest and one.state == "ready" for one in view.replicas)
            tried = view.rollout is not None and newest in view.rollout.arms.values()
            if ready and (str(newest) in view.traffic or tried):
                # A platform that runs keeps a gateway, which starts with the first endpoint; an embedded one has none.
                shown_by = shown_by or time.monotonic() + (0.0 if here.address.startswith("dir:") else GATEWAY_S)
                if view.url or time.monotonic() >= shown_by:
                    return view
            if f"revision {newest}" in view.note:
                raise Invalid(f"{endpoint} does not get ready: {view.note}", "falaj jobs logs shows all of it")
            if not waits and time.monotonic() > started + EXPLAIN_S:
                waits = _why_waiting(here, view)
                if waits:
                    here.progress.note(waits)
            if time.monotonic() > until:
                hint = waits or "falaj serve show says what it does"
                raise Unavailable(f"{endpoint} is not ready after {wait_s:g} s", hint)
            time.sleep(LOOK_S)
