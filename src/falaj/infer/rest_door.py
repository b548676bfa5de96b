"""The Open Inference Protocol over HTTP, in front of an engine: routes, who may ask, and what is said back."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import msgspec

from falaj.core.errors import FalajError, Invalid, NotFound
from falaj.infer.keys import Keys
from falaj.infer.queue import Done
from falaj.infer.together import Left, One, Turn
from falaj.infer.tracing import tracing_of
from falaj.oip.again import Wanted
from falaj.oip.calls import Asked, Call, Reply, Tell, Verdict
from falaj.oip.lot_frames import Lot, TellLot
from falaj.oip.requests import Head
from falaj.oip.rest import decode, decode_raw, encode, header_bytes, problem, refusal, said
from falaj.oip.tensors import Answer, Ask

if TYPE_CHECKING:
    from falaj.infer.engine import Engine

EXTENSIONS = ("binary_tensor_data", "model_repository", "model_configuration", "statistics", "sequence")
_MOST_ROUTES, _MOST_NAME = 4096, 200
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"
_NOT_OFFERED = {
    "trace": "tracing", "logging": "log settings", "systemsharedmemory": "shared memory",
    "cudasharedmemory": "shared memory", "tpusharedmemory": "shared memory", "generate": "generate",
    "generate_stream": "generate",
}  # fmt: skip
_Reply = Callable[[Reply], Any]
_Cancel = Callable[[], None] | None
_Act = Callable[[Call, _Reply], _Cancel]


class _Route(NamedTuple):
    act: _Act
    guarded: bool = True
    """Whether a token is asked for."""
    infers: tuple[str, str] | None = None
    """The model and the version that it asks for an inference."""


class _Lead(NamedTuple):
    """What is known of inferences by their head."""

    infers: tuple[str, str]
    size: int
    """Of the JSON, as `header_bytes` says it."""


_NO_LEAD = _Lead(("", ""), 0)
"""Of what is asked one by one."""


class Rest:
    """A RestDoor. Nothing of a body is read before the caller is known."""

    def __init__(self, engine: "Engine", keys: Keys, *, name: str = "falaj", version: str = "") -> None:
        self._engine, self._keys, self._tracing = engine, keys, tracing_of(engine)
        about = {"name": name, "version": version, "extensions": list(EXTENSIONS)}
        self._fixed: Mapping[tuple[str, ...], tuple[str, _Route]] = {
            ("v2",): ("GET", _Route(_tell(lambda: about))),
            ("v2", "health", "live"): ("GET", _Route(_tell(lambda: {"live": True}), guarded=False)),
            ("v2", "health", "ready"): ("GET", _Route(self._server_ready, guarded=False)),
            ("v2", "models", "stats"): ("GET", _Route(_tell(engine.statistics))),
            ("v2", "repository", "index"): ("POST", _Route(self._index)),
            ("metrics",): ("GET", _Route(self._metrics)),
        }
        self._of_models: Mapping[tuple[str, ...], tuple[str, Callable[..., _Cancel]]] = {
            (): ("GET", partial(self._about, engine.metadata)),
            ("config",): ("GET", partial(self._about, engine.config)),
            ("stats",): ("GET", partial(self._about, engine.statistics)),
            ("ready",): ("GET", self._model_ready),
            ("infer",): ("POST", self._infer),
        }
        self._routes: dict[tuple[bytes, bytes], _Route] = {}
        """What answers a method and a path that came before."""

    def rest(self, call: Call, reply: _Reply) -> _Cancel:
        """Answer one request, now or later."""
        try:
            route = self._routes.get((call.method, call.path)) or self._route(call.method, call.path)
            if route.guarded and not call.trusted:
                self._keys.check(call.headers.get(b"authorization"))
            return route.act(call, reply)
        except FalajError as error:
            reply(problem(error))
            return None

    def judge(self, head: Head, peer: str, _decide: Callable[[Verdict], Any]) -> Verdict:
        """Decide by the head of a request whether its body is gathered, and inflated."""
        try:
            route = self._routes.get((head.method, head.path)) or self._route(head.method, head.path)
            if route.guarded:
                self._keys.check(head.headers.get(b"authorization"))
                return peer or "local"
            answers: list[Reply] = []
            route.act(Call(head.method, head.path, head.headers), answers.append)  # which answers at once
            return answers[0]
        except FalajError as error:
            return problem(error)

    def vouch(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the token in these headers may call."""
        return self._keys.allow(headers.get(b"authorization"))

    def many(self, asked: Sequence[Asked], tell: Tell) -> Left:
        """Answer requests that came in one piece; what is given back ends those that are not answered yet."""
        lots: dict[tuple[str, str], list[One]] = {}
        left: Left = []
        for number, call in asked:
            route = self._routes.get((call.method, call.path))
            infers = route.infers if route is not None and call.trusted else None
            if infers is None or b"traceparent" in call.headers:
                left.append((number, self.rest(call, partial(tell, number))))
                continue
            try:
                one = (number, call.name, header_bytes(call.headers), call.body)
            except FalajError as error:
                tell(number, problem(error))
                continue
            if (lot := lots.get(infers)) is not None:
                lot.append(one)
            else:
                lots[infers] = [one]
        return left + self._take(lots, 0.0, tell)

    def lot(self, lot: Lot, tell: Tell, tell_lot: TellLot) -> Left:
        """The same for such as a gateway sent with one head; their numbers are the streams."""
        route = self._routes.get((lot.method, lot.path))
        infers, size = route.infers if route is not None else None, 0
        try:
            size = header_bytes(lot.headers)
        except FalajError:
            infers = None  # each is told so
        if infers is None or b"traceparent" in lot.headers:
            return [(at, self.rest(call, partial(tell, at))) for at, call in lot.calls()]
        asked = list(zip(lot.streams, lot.names, repeat(size), lot.bodies, strict=False))
        return Turn(self._engine, self._read, self._go, infers, tell).take(asked, tell_lot=tell_lot)

    def joins(self, head: Head) -> bool:
        """Whether inferences with this head are run as one where several come."""
        lead: Any = head.lead
        if lead is None:
            route = self._routes.get((head.method, head.path))
            if route is None:
                return False  # the first one of all goes by itself
            lead = head.lead = _lead(route, head)
        return lead is not _NO_LEAD and self._tracing is None and self._engine.joining(*lead.infers) is not None

    def alike(self, asked: Sequence[tuple[Head, bytes]], came: float, tell: Tell) -> Left:
        """Answer inferences that one turn of the loop read; their heads are such as `joins` said yes to."""
        lots: dict[tuple[str, str], list[One]] = {}
        last, lot, size = None, list[One](), 0
        for number, (head, body) in enumerate(asked):
            if head is not last:
                try:
                    self._keys.check(head.headers.get(b"authorization"))
                except FalajError as error:
                    tell(number, problem(error))
                    continue
                lead: Any = head.lead
                last, size = head, lead.size
                lot = lots.setdefault(lead.infers, [])
            lot.append((number, b"", size, body))
        return self._take(lots, came, tell)

    def _take(self, lots: Mapping[tuple[str, str], Sequence[One]], came: float, tell: Tell) -> Left:
        left: Left = []
        for (model, version), lot in lots.items():
            left += Turn(self._engine, self._read, self._go, (model, version), tell).take(lot, came)
        return left

    def _route(self, method: bytes, path: bytes) -> _Route:
        wanted, found = self._find(_parts(path))
        if wanted and method != wanted.encode() and (method, wanted) != (b"HEAD", "GET"):
            found = _Route(_no_method(wanted))
        if len(self._routes) >= _MOST_ROUTES:
            self._routes.clear()
        self._routes[method, path] = found
        return found

    def _find(self, parts: tuple[str, ...]) -> tuple[str, _Route]:
        """The method of a path and what answers it; no method where any is answered the same."""
        if parts in self._fixed:
            return self._fixed[parts]
        match parts:
            case ("v2", "repository", "models", name, "load" | "unload" as what):
                return "POST", _Route(partial(self._change, what, _name(name)))
            case ("v2", "models", name, "versions", version, *rest):
                return self._of_model(_name(name), _name(version), rest)
            case ("v2", "models", name, *rest):
                return self._of_model(_name(name), "", rest)
            case ("v2", word, *_) if word in _NOT_OFFERED:
                return "", _Route(_not_offered(_NOT_OFFERED[word]))
        raise NotFound("nothing is at this address", "GET v2, or POST v2/models/NAME/infer")

    def _of_model(self, name: str, version: str, rest: Sequence[str]) -> tuple[str, _Route]:
        if rest and rest[0] in _NOT_OFFERED:
            return "", _Route(_not_offered(_NOT_OFFERED[rest[0]]))
        found = self._of_models.get(tuple(rest))
        if found is None:
            raise NotFound(
                "nothing is at this address", "v2/models/NAME[/versions/VERSION][/infer, ready, config, stats]"
            )
        infers = (name, version) if found[1] == self._infer else None
        return found[0], _Route(partial(found[1], name, version), infers=infers)

    def _infer(self, model: str, version: str, call: Call, reply: _Reply) -> _Cancel:
        ask, wanted = self._read(model, version, header_bytes(call.headers), call.body)
        ask.name = call.name
        done: Done = partial(_answer, wanted, reply)
        if self._tracing is not None:
            done = self._tracing.noting(ask, call.headers, call.trusted, done)
        return self._engine.submit(ask, done)

    def _read(self, model: str, version: str, json_bytes: int, body: bytes) -> tuple[Ask, Wanted]:
        return decode(body, json_bytes, model, version) if json_bytes else self._raw(Ask(model, version, ()), body)

    def _go(self, ask: Ask, wanted: Wanted, reply: _Reply) -> _Cancel:
        return self._engine.submit(ask, partial(_answer, wanted, reply))

    def _raw(self, ask: Ask, body: bytes) -> tuple[Ask, Wanted]:
        inputs = self._engine.metadata(ask.model, ask.version)["inputs"]
        if len(inputs) != 1:
            raise Invalid(f"{ask.model[:60]!r} has {len(inputs)} inputs", "send a request with a header in JSON")
        batches = self._engine.config(ask.model, ask.version).get("max_batch_size", 0) > 0
        return decode_raw(body, ask, inputs[0], batches=batches)

    def _about(self, ask: Callable[[str, str], Any], model: str, version: str, _: Call, reply: _Reply) -> None:
        reply(said(ask(model, version)))

    def _server_ready(self, _: Call, reply: _Reply) -> None:
        if self._engine.ready():
            reply(said({"live": True, "ready": True}))
        else:
            reply(refusal(400, "the server is not ready", "wait until its models are loaded"))

    def _model_ready(self, model: str, version: str, _: Call, reply: _Reply) -> None:
        if self._engine.ready(model, version):
            reply(said({"name": model, "ready": True}))
        else:
            reply(refusal(400, f"{model[:60]!r} is not ready", "see v2/repository/index for what there is"))

    def _metrics(self, _: Call, reply: _Reply) -> None:
        reply(Reply(200, (self._engine.metrics(),), kind=_METRICS))

    def _index(self, call: Call, reply: _Reply) -> None:
        reply(said(self._engine.index(bool(_asked(call.body).get("ready", False)))))

    def _change(self, what: str, name: str, call: Call, reply: _Reply) -> None:
        parameters = _asked(call.body).get("parameters", {})
        if not isinstance(parameters, dict):
            raise Invalid("parameters is no object", 'for example {"parameters": {}}')
        change = self._engine.load if what == "load" else self._engine.unload
        change(name, parameters, lambda failed: reply(problem(failed) if isinstance(failed, FalajError) else said({})))


def _lead(route: _Route, head: Head) -> _Lead:
    try:
        return _Lead(route.infers, header_bytes(head.headers)) if route.infers is not None else _NO_LEAD
    except FalajError:  # it is told so when it is asked
        return _NO_LEAD


def _answer(wanted: Wanted, reply: _Reply, answer: Answer | FalajError) -> None:
    if isinstance(answer, FalajError):
        reply(problem(answer))
        return
    try:
        made = encode(answer, wanted)
    except FalajError as error:
        made = problem(error)
    reply(made)


def _tell(ask: Callable[[], Any]) -> _Act:
    def act(_: Call, reply: _Reply) -> None:
        reply(said(ask()))

    return act


def _no_method(wanted: str) -> _Act:
    def act(_: Call, reply: _Reply) -> None:
        told = refusal(405, "this address takes another method", wanted)
        told.headers = ((b"allow", wanted.encode()),)
        reply(told)

    return act


def _not_offered(what: str) -> _Act:
    def act(_: Call, reply: _Reply) -> None:
        reply(refusal(501, f"{what} is not offered", "see extensions in GET v2 for what is"))

    return act


def _asked(body: bytes) -> dict[str, Any]:
    """The object in a body; an empty one for an empty body."""
    try:
        found = msgspec.json.decode(body) if body.strip() else {}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Invalid(f"the body is no JSON: {str(error)[:200]}", "send an object, or nothing") from error
    if not isinstance(found, dict):
        raise Invalid("the body is no object", "send {} or nothing")
    return found


def _parts(path: bytes) -> tuple[str, ...]:
    try:
        return tuple(unquote(one, errors="strict") for one in path.decode("ascii").strip("/").split("/"))
    except ValueError as error:
        raise Invalid("the path is no path", "ASCII, with UTF-8 written as %XX") from error


def _name(name: str) -> str:
    """A name of a model or a version, as far as it can be one: never a path."""
    if not 0 < len(name) <= _MOST_NAME or name in (".", "..") or not name.isprintable() or {"/", "\\"} & set(name):
        raise Invalid("this is no name of a model or a version", "see v2/repository/index for what there is")
    return name
