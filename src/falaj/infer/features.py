"""Keys in, features out: what stands before a model that was trained on a feature service.

The values are the Reader's, the very ones a training set has, and become tensors as numpy casts a column of their type;
nothing else is done to them. A model takes one input for each feature by its name, or one matrix of all of them in the
order of the service (or of `features.order` in its sheet). Beside features it may take what a request brings, and keys.
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

from falaj.asof.encrypted_online import EncryptedOnline
from falaj.asof.reading import Reader
from falaj.asof.records import STATUSES, Computed, Field, ServicePlan
from falaj.asof.space_keys import KeyTexts, finder_of
from falaj.core.errors import FalajError, Invalid, UserCodeFailed
from falaj.core.ports import Online
from falaj.core.sheet import Sheet, TensorSpec
from falaj.infer.records import Arrays, Features, Runtime
from falaj.infer.runtimes.specs import Specs, dtype
from falaj.infer.warm import made_up
from falaj.worker.function_sandbox import FunctionSandbox

Open = Callable[[str], Online]
Make = Callable[[Mapping[str, Any]], Any]
_TYPES = {
    "bool": "BOOL", "int32": "INT32", "int64": "INT64", "float32": "FP32", "float64": "FP64", "string": "BYTES",
    "bytes": "BYTES", "time": "INT64",
}  # fmt: skip
_KINDS = {"BOOL": "b", "BYTES": "O"}
_FITS = {"b": "b", "i": "bi", "f": "bif", "O": "O"}
"""Of what kinds of values a tensor can be made: numbers become floats, never the other way round."""
CALL_S, MEMORY_BYTES = 30.0, 2 << 30
"""Seconds that a feature function may take for one batch, and address space of its process."""
_NUMBERS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def with_features(runtime: Runtime, features: Features, open_online: Open, order: str = "") -> "Joined":
    """The model behind its features: it is asked by keys."""
    online = open_online(features.online)
    try:
        joined = Joined(runtime, Lookup(features, online, runtime.inputs, order))
    except Invalid:
        online.close()
        raise
    with contextlib.suppress(FalajError):  # keys cannot be made up, so the model is warmed by itself
        runtime.run([made_up(spec, Sheet(), 1) for spec in runtime.inputs], {})
    return joined


def open_online(url: str) -> Online:
    """The online store at an address, for reading, by whichever package registers its scheme."""
    scheme = url.partition(":")[0]
    found = list(metadata.entry_points(group="falaj.online", name=scheme))
    if not found:
        raise Invalid(f"nothing here reads features from {scheme[:40]!r}", "install what knows it beside the server")
    try:
        store: Online = found[0].load()(url, {"readonly": True})
    except ModuleNotFoundError as error:
        raise Invalid(f"{scheme[:40]}: needs the package {error.name}", "install it beside the server") from error
    return store


class Joined:
    """A model that is asked by keys."""

    inline = False
    """The store may be far: not to be waited for on an event loop."""

    def __init__(self, runtime: Runtime, lookup: "Lookup") -> None:
        self._runtime, self._lookup = runtime, lookup
        self.inputs, self.outputs = lookup.inputs, runtime.outputs
        self.platform, self.size_bytes = runtime.platform, runtime.size_bytes
        self.parallel, self.isolated = runtime.parallel, runtime.isolated
        self.batches = getattr(runtime, "batches", True)
        self.watched_inputs = runtime.inputs
        self._last = threading.local()

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """The model's outputs for the things these keys name."""
        self._last.given = arrays = self._lookup.arrays(inputs)
        return self._runtime.run(arrays, parameters)

    def given(self) -> Arrays:
        """What the model itself was given in this thread's last run: features, not keys."""
        arrays, self._last.given = self._last.given, ()
        return arrays  # type: ignore[no-any-return]

    def replan(self, plan: Mapping[str, Any], keys: KeyTexts | None = None) -> None:
        """Read another version of the service from now on; one that gives the same columns."""
        self._lookup.replan(plan, keys)

    def close(self) -> None:
        """Let go of the model and of the store."""
        self._runtime.close()
        self._lookup.close()


class Lookup:
    """Tensors of keys and request fields to tensors of features."""

    def __init__(self, features: Features, online: Online, targets: Specs, order: str = "") -> None:
        self._store, self._defaults = online, features.defaults
        self._online = _readable(online, features.space_keys)
        self._targets, self._order = targets, order
        self._isolate = features.isolate or "FALAJ_SANDBOX" in os.environ
        self._functions: dict[str, FunctionSandbox] = {}
        self._reader = self._opened(features.plan)
        plan = self._reader.plan
        self._keys = list({one.name: one for view in plan.views for one in view.keys}.values())
        self._request = list(plan.request)
        self._given = list({one.name: one for one in (*self._keys, *self._request)}.values())
        self.inputs = tuple(TensorSpec(one.name, _datatype(one), (-1,)) for one in self._given)
        self._types = {one.name: one.type for one in self._given} | {one.name: one.type for one in plan.outputs}
        self._makes = self._made(plan)

    def arrays(self, inputs: Arrays) -> list[Any]:
        """What the model takes, for one batch."""
        given = {one.name: _column(one, array) for one, array in zip(self._given, inputs, strict=True)}
        request = {one.name: given[one.name] for one in self._request}
        answer = self._reader.read(given, request or None)
        columns: dict[str, Any] = dict(given)
        for name, codes in answer.statuses.items():
            columns[name] = self._filled(name, answer.columns[name], codes) if any(codes) else answer.columns[name]
        with np.errstate(over="ignore"):  # too large for FP32 is inf, as it was in training
            return [make(columns) for make in self._makes]

    def replan(self, plan: Mapping[str, Any], keys: KeyTexts | None = None) -> None:
        """Change the plan, and the keys of its spaces, between two runs."""
        old, new = self._reader.plan, plan_of(plan)
        if (_shape(old), old.outputs) != (_shape(new), new.outputs):
            raise Invalid(f"{new.ref} has other keys or features than {old.ref}", "deploy a model trained on it")
        if keys:
            self._online = _readable(self._store, keys)
        self._reader = self._opened(plan)

    def close(self) -> None:
        """Let go of the store and end the processes of functions."""
        self._store.close()
        for function in self._functions.values():
            function.close()

    def _opened(self, plain: Mapping[str, Any]) -> Reader:
        plan = plan_of(plain)
        sealed = [view.ref for view in plan.views if view.sealed]
        if sealed:
            raise Invalid(f"{sealed[0]} is sealed: only the platform can open its rows", "send the features yourself")
        before, self._functions = self._functions, {}
        for step in plan.computed:
            if step.source and step.digest not in self._functions:
                kept = step.digest in before
                self._functions[step.digest] = before.pop(step.digest) if kept else _open_function(step, self._isolate)
        for function in before.values():
            function.close()
        return Reader(plan, self._online, functions=self._functions)

    def _made(self, plan: ServicePlan) -> list[Make]:
        """How each tensor is made of columns; settled once, so that a request only does it."""
        targets = self._targets
        if len(targets) == 1 and len(targets[0].shape) == 2 and targets[0].name not in self._types:
            names = [one.strip() for one in self._order.split(",")] if self._order else [f.name for f in plan.outputs]
            if targets[0].shape[1] not in (-1, len(names)):
                raise Invalid(f"the model takes {targets[0].shape[1]} features, the service has {len(names)}", _ORDER)
            for name in names:
                self._fits(name, targets[0].datatype)
            return [partial(_matrix, [(name, _dtype(self._types[name])) for name in names], dtype(targets[0].datatype))]
        return [self._single(spec) for spec in targets]

    def _single(self, spec: TensorSpec) -> Make:
        self._fits(spec.name, spec.datatype, lists=True)
        kind = self._types[spec.name]
        source = _dtype(kind[5:-1] if kind.startswith("list[") else kind)
        return partial(_tensor, spec, source, dtype(spec.datatype))

    def _fits(self, name: str, datatype: str, lists: bool = False) -> None:
        kind = self._types.get(name)
        if kind is None:
            raise Invalid(f"the service has no {name[:80]!r}", f"it has {', '.join(self._types)}"[:300])
        inner = kind[5:-1] if lists and kind.startswith("list[") else kind
        have, want = _kind(_TYPES.get(inner, "")), _kind(datatype)
        if not have or have not in _FITS.get(want, ""):
            raise Invalid(f"{name[:80]!r} is {kind} and cannot be given to a model as {datatype}", _ORDER)

    def _filled(self, name: str, values: Sequence[Any], codes: Sequence[int]) -> list[Any]:
        """A column whose gaps hold the default of the feature; Invalid without one."""
        if name not in self._defaults:
            at = next(index for index, code in enumerate(codes) if code)
            raise Invalid(
                f"the feature {name} is {STATUSES[codes[at]]} for row {at}",
                "send a key that has it, or deploy the endpoint with a default for it",
            )
        default = self._defaults[name]
        default = _NUMBERS.get(default, default) if isinstance(default, str) else default
        return [default if code else value for value, code in zip(values, codes, strict=True)]


_ORDER = "say which features, in order, in the sheet: features.order = a,b,c"


def _readable(store: Online, keys: KeyTexts) -> Online:
    """The store with its rows decrypted; as it is where the server was given no keys."""
    return EncryptedOnline(store, finder_of(keys)) if keys else store


def plan_of(plain: Mapping[str, Any]) -> ServicePlan:
    """A plan from plain values."""
    import msgspec

    try:
        return msgspec.convert(plain, ServicePlan)
    except msgspec.ValidationError as error:
        raise Invalid(f"the plan of the features is not whole: {error}", "deploy the endpoint again") from error


def _open_function(computed: Computed, required: bool) -> FunctionSandbox:
    """A function of the service in a process of its own, which reads neither the store nor anything else of ours."""
    if computed.digest != f"sha256:{hashlib.sha256(computed.source.encode()).hexdigest()}":
        raise Invalid(f"the function {computed.name} is not the one that was defined", "deploy the endpoint again")
    function = FunctionSandbox(
        computed.name, computed.source, required=required, call_s=CALL_S, memory_bytes=MEMORY_BYTES
    )
    function.check()
    return function


def _shape(plan: ServicePlan) -> tuple[Any, ...]:
    return ({one for view in plan.views for one in view.keys}, plan.request)


def _datatype(field: Field) -> str:
    if field.type not in _TYPES:
        raise Invalid(
            f"a request cannot bring {field.name[:80]!r}, which is {field.type}", "send the features yourself"
        )
    return _TYPES[field.type]


def _dtype(kind: str) -> "np.dtype[Any]":
    return dtype(_TYPES[kind])


def _kind(datatype: str) -> str:
    return _KINDS.get(datatype) or {"I": "i", "U": "i", "F": "f", "B": "f"}.get(datatype[:1], "")


def _column(field: Field, array: Any) -> list[Any]:
    """A tensor of a request as the Reader takes a column."""
    values: list[Any] = array.ravel().tolist() if isinstance(array, np.ndarray) else list(array)
    if field.type != "string":
        return values
    try:
        return [one.decode() for one in values]
    except UnicodeDecodeError as error:
        raise Invalid(f"{field.name[:80]!r} holds bytes that are no UTF-8", "it is a text") from error


def _matrix(names: Sequence[tuple[str, Any]], to: Any, columns: Mapping[str, Any]) -> Any:
    return np.stack([_cast(columns[name], kind, name).astype(to) for name, kind in names], axis=1)


def _tensor(spec: TensorSpec, kind: Any, to: Any, columns: Mapping[str, Any]) -> Any:
    values = columns[spec.name]
    if spec.datatype == "BYTES":
        made = np.empty(len(values), object)
        made[:] = [one.encode() if isinstance(one, str) else one for one in values]
    else:
        made = _cast(values, kind, spec.name).astype(to)
    shape = tuple(len(values) if at == 0 else size for at, size in enumerate(spec.shape))
    try:
        return made.reshape(shape) if made.ndim < len(shape) or -1 not in shape else made
    except ValueError as error:
        raise Invalid(f"{spec.name!r:.80} came as {list(made.shape)}", f"the model takes {list(spec.shape)}") from error


def _cast(values: Any, kind: Any, name: str) -> Any:
    try:
        return np.array(values, kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserCodeFailed(f"the values of {name} are not all of its type", "look at its default") from error
