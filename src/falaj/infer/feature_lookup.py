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

from falaj.asof.encrypted_online_store import EncryptedOnlineStore
from falaj.asof.records import STATUS_NAMES, Computed, FeatureField, ServicePlan
from falaj.asof.service_reader import ServiceReader
from falaj.asof.space_keys import KeyTexts, make_key_finder
from falaj.core.errors import FalajError, Invalid, UserCodeFailed
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.core.ports import OnlineStore
from falaj.infer.records import Arrays, FeatureConfig, ModelRuntime
from falaj.infer.runtimes.tensor_specs import TensorSpecs, numpy_type
from falaj.infer.warm_up import make_sample_input
from falaj.worker.function_sandbox import FunctionSandbox

OpenStore = Callable[[str], OnlineStore]
BuildTensor = Callable[[Mapping[str, Any]], Any]
_DATATYPES = {
    "bool": "BOOL", "int32": "INT32", "int64": "INT64", "float32": "FP32", "float64": "FP64", "string": "BYTES",
    "bytes": "BYTES", "time": "INT64",
}  # fmt: skip
_NUMPY_KINDS = {"BOOL": "b", "BYTES": "O"}
_CONVERTIBLE_KINDS = {"b": "b", "i": "bi", "f": "bif", "O": "O"}
"""Of what kinds of values a tensor can be made: numbers become floats, never the other way round."""
FUNCTION_TIMEOUT_S, FUNCTION_MEMORY_BYTES = 30.0, 2 << 30
"""Seconds that a feature function may take for one batch, and address space of its process."""
_SPECIAL_NUMBERS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def attach_features(
    runtime: ModelRuntime, features: FeatureConfig, open_online: OpenStore, feature_order: str = ""
) -> "FeatureRuntime":
    """The model behind its features: it is asked by keys."""
    online = open_online(features.online)
    try:
        joined = FeatureRuntime(runtime, FeatureLookup(features, online, runtime.inputs, feature_order))
    except Invalid:
        online.close()
        raise
    with contextlib.suppress(FalajError):  # keys cannot be made up, so the model is warmed by itself
        runtime.run([make_sample_input(spec, ModelManifest(), 1) for spec in runtime.inputs], {})
    return joined


def open_online_store(url: str) -> OnlineStore:
    """The online store at an address, for reading, by whichever package registers its scheme."""
    scheme = url.partition(":")[0]
    entry_points = list(metadata.entry_points(group="falaj.online", name=scheme))
    if not entry_points:
        raise Invalid(f"nothing here reads features from {scheme[:40]!r}", "install what knows it beside the server")
    try:
        store: OnlineStore = entry_points[0].load()(url, {"readonly": True})
    except ModuleNotFoundError as error:
        raise Invalid(f"{scheme[:40]}: needs the package {error.name}", "install it beside the server") from error
    return store


class FeatureRuntime:
    """A model that is asked by keys."""

    inline = False
    """The store may be far: not to be waited for on an event loop."""

    def __init__(self, runtime: ModelRuntime, lookup: "FeatureLookup") -> None:
        self._runtime, self._lookup = runtime, lookup
        self.inputs, self.outputs = lookup.inputs, runtime.outputs
        self.platform, self.size_bytes = runtime.platform, runtime.size_bytes
        self.parallel, self.isolated = runtime.parallel, runtime.isolated
        self.batches = getattr(runtime, "batches", True)
        self.watched_inputs = runtime.inputs
        self._last_run = threading.local()

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """The model's outputs for the things these keys name."""
        self._last_run.given = arrays = self._lookup.arrays(inputs)
        return self._runtime.run(arrays, parameters)

    def given(self) -> Arrays:
        """What the model itself was given in this thread's last run: features, not keys."""
        arrays, self._last_run.given = self._last_run.given, ()
        return arrays  # type: ignore[no-any-return]

    def replan(self, plan: Mapping[str, Any], keys: KeyTexts | None = None) -> None:
        """Read another version of the service from now on; one that gives the same columns."""
        self._lookup.replan(plan, keys)

    def close(self) -> None:
        """Let go of the model and of the store."""
        self._runtime.close()
        self._lookup.close()


class FeatureLookup:
    """Tensors of keys and request fields to tensors of features."""

    def __init__(
        self, features: FeatureConfig, online: OnlineStore, targets: TensorSpecs, feature_order: str = ""
    ) -> None:
        self._store, self._defaults = online, features.defaults
        self._online = _decrypting_store(online, features.space_keys)
        self._targets, self._feature_order = targets, feature_order
        self._requires_isolation = features.isolate or "FALAJ_SANDBOX" in os.environ
        self._functions: dict[str, FunctionSandbox] = {}
        self._reader = self._open_reader(features.plan)
        plan = self._reader.plan
        self._key_fields = list({item.name: item for view in plan.views for item in view.keys}.values())
        self._request_fields = list(plan.request)
        self._input_fields = list({item.name: item for item in (*self._key_fields, *self._request_fields)}.values())
        self.inputs = tuple(TensorSpec(item.name, _field_datatype(item), (-1,)) for item in self._input_fields)
        self._type_by_name = {item.name: item.type for item in self._input_fields} | {
            item.name: item.type for item in plan.outputs
        }
        self._tensor_builders = self._build_tensor_builders(plan)

    def arrays(self, inputs: Arrays) -> list[Any]:
        """What the model takes, for one batch."""
        input_columns = {
            input_field.name: _to_column(input_field, array)
            for input_field, array in zip(self._input_fields, inputs, strict=True)
        }
        request = {input_field.name: input_columns[input_field.name] for input_field in self._request_fields}
        answer = self._reader.read(input_columns, request or None)
        columns: dict[str, Any] = dict(input_columns)
        for name, codes in answer.statuses.items():
            columns[name] = (
                self._fill_defaults(name, answer.columns[name], codes) if any(codes) else answer.columns[name]
            )
        with np.errstate(over="ignore"):  # too large for FP32 is inf, as it was in training
            return [build_tensor(columns) for build_tensor in self._tensor_builders]

    def replan(self, plan: Mapping[str, Any], keys: KeyTexts | None = None) -> None:
        """Change the plan, and the keys of its spaces, between two runs."""
        old_plan, new_plan = self._reader.plan, parse_plan(plan)
        if (_plan_shape(old_plan), old_plan.outputs) != (_plan_shape(new_plan), new_plan.outputs):
            raise Invalid(
                f"{new_plan.ref} has other keys or features than {old_plan.ref}", "deploy a model trained on it"
            )
        if keys:
            self._online = _decrypting_store(self._store, keys)
        self._reader = self._open_reader(plan)

    def close(self) -> None:
        """Let go of the store and end the processes of functions."""
        self._store.close()
        for function in self._functions.values():
            function.close()

    def _open_reader(self, plan_values: Mapping[str, Any]) -> ServiceReader:
        plan = parse_plan(plan_values)
        sealed_views = [view.ref for view in plan.views if view.sealed]
        if sealed_views:
            raise Invalid(
                f"{sealed_views[0]} is sealed: only the platform can open its rows", "send the features yourself"
            )
        previous_functions, self._functions = self._functions, {}
        for step in plan.computed:
            if step.source and step.digest not in self._functions:
                is_kept = step.digest in previous_functions
                self._functions[step.digest] = (
                    previous_functions.pop(step.digest) if is_kept else _open_function(step, self._requires_isolation)
                )
        for function in previous_functions.values():
            function.close()
        return ServiceReader(plan, self._online, functions=self._functions)

    def _build_tensor_builders(self, plan: ServicePlan) -> list[BuildTensor]:
        """How each tensor is made of columns; settled once, so that a request only does it."""
        targets = self._targets
        if len(targets) == 1 and len(targets[0].shape) == 2 and targets[0].name not in self._type_by_name:
            names = (
                [feature_name.strip() for feature_name in self._feature_order.split(",")]
                if self._feature_order
                else [output_field.name for output_field in plan.outputs]
            )
            if targets[0].shape[1] not in (-1, len(names)):
                raise Invalid(
                    f"the model takes {targets[0].shape[1]} features, the service has {len(names)}", _ORDER_HINT
                )
            for name in names:
                self._check_type(name, targets[0].datatype)
            return [
                partial(
                    _build_matrix,
                    [(name, _numpy_type(self._type_by_name[name])) for name in names],
                    numpy_type(targets[0].datatype),
                )
            ]
        return [self._single_tensor_builder(spec) for spec in targets]

    def _single_tensor_builder(self, spec: TensorSpec) -> BuildTensor:
        self._check_type(spec.name, spec.datatype, allows_lists=True)
        type_name = self._type_by_name[spec.name]
        source = _numpy_type(type_name[5:-1] if type_name.startswith("list[") else type_name)
        return partial(_build_tensor, spec, source, numpy_type(spec.datatype))

    def _check_type(self, name: str, datatype: str, allows_lists: bool = False) -> None:
        type_name = self._type_by_name.get(name)
        if type_name is None:
            raise Invalid(f"the service has no {name[:80]!r}", f"it has {', '.join(self._type_by_name)}"[:300])
        element_type = type_name[5:-1] if allows_lists and type_name.startswith("list[") else type_name
        available_kind, required_kind = _datatype_kind(_DATATYPES.get(element_type, "")), _datatype_kind(datatype)
        if not available_kind or available_kind not in _CONVERTIBLE_KINDS.get(required_kind, ""):
            raise Invalid(f"{name[:80]!r} is {type_name} and cannot be given to a model as {datatype}", _ORDER_HINT)

    def _fill_defaults(self, name: str, values: Sequence[Any], codes: Sequence[int]) -> list[Any]:
        """A column whose gaps hold the default of the feature; Invalid without one."""
        if name not in self._defaults:
            row_index = next(index for index, code in enumerate(codes) if code)
            raise Invalid(
                f"the feature {name} is {STATUS_NAMES[codes[row_index]]} for row {row_index}",
                "send a key that has it, or deploy the endpoint with a default for it",
            )
        default = self._defaults[name]
        default = _SPECIAL_NUMBERS.get(default, default) if isinstance(default, str) else default
        return [default if code else value for value, code in zip(values, codes, strict=True)]


_ORDER_HINT = "say which features, in order, in the sheet: features.order = a,b,c"


def _decrypting_store(store: OnlineStore, keys: KeyTexts) -> OnlineStore:
    """The store with its rows decrypted; as it is where the server was given no keys."""
    return EncryptedOnlineStore(store, make_key_finder(keys)) if keys else store


def parse_plan(plan_values: Mapping[str, Any]) -> ServicePlan:
    """A plan from plain values."""
    import msgspec

    try:
        return msgspec.convert(plan_values, ServicePlan)
    except msgspec.ValidationError as error:
        raise Invalid(f"the plan of the features is not whole: {error}", "deploy the endpoint again") from error


def _open_function(computed: Computed, required: bool) -> FunctionSandbox:
    """A function of the service in a process of its own, which reads neither the store nor anything else of ours."""
    if computed.digest != f"sha256:{hashlib.sha256(computed.source.encode()).hexdigest()}":
        raise Invalid(f"the function {computed.name} is not the one that was defined", "deploy the endpoint again")
    function = FunctionSandbox(
        computed.name,
        computed.source,
        is_required=required,
        call_timeout_s=FUNCTION_TIMEOUT_S,
        memory_bytes=FUNCTION_MEMORY_BYTES,
    )
    function.check()
    return function


def _plan_shape(plan: ServicePlan) -> tuple[Any, ...]:
    return ({key_field for view in plan.views for key_field in view.keys}, plan.request)


def _field_datatype(field: FeatureField) -> str:
    if field.type not in _DATATYPES:
        raise Invalid(
            f"a request cannot bring {field.name[:80]!r}, which is {field.type}", "send the features yourself"
        )
    return _DATATYPES[field.type]


def _numpy_type(type_name: str) -> "np.dtype[Any]":
    return numpy_type(_DATATYPES[type_name])


def _datatype_kind(datatype: str) -> str:
    return _NUMPY_KINDS.get(datatype) or {"I": "i", "U": "i", "F": "f", "B": "f"}.get(datatype[:1], "")


def _to_column(field: FeatureField, array: Any) -> list[Any]:
    """A tensor of a request as the Reader takes a column."""
    values: list[Any] = array.ravel().tolist() if isinstance(array, np.ndarray) else list(array)
    if field.type != "string":
        return values
    try:
        return [element.decode() for element in values]
    except UnicodeDecodeError as error:
        raise Invalid(f"{field.name[:80]!r} holds bytes that are no UTF-8", "it is a text") from error


def _build_matrix(names: Sequence[tuple[str, Any]], target_type: Any, columns: Mapping[str, Any]) -> Any:
    return np.stack(
        [_cast_values(columns[name], source_type, name).astype(target_type) for name, source_type in names], axis=1
    )


def _build_tensor(spec: TensorSpec, source_type: Any, target_type: Any, columns: Mapping[str, Any]) -> Any:
    values = columns[spec.name]
    if spec.datatype == "BYTES":
        array = np.empty(len(values), object)
        array[:] = [element.encode() if isinstance(element, str) else element for element in values]
    else:
        array = _cast_values(values, source_type, spec.name).astype(target_type)
    shape = tuple(len(values) if axis == 0 else size for axis, size in enumerate(spec.shape))
    try:
        return array.reshape(shape) if array.ndim < len(shape) or -1 not in shape else array
    except ValueError as error:
        raise Invalid(
            f"{spec.name!r:.80} came as {list(array.shape)}", f"the model takes {list(spec.shape)}"
        ) from error


def _cast_values(values: Any, source_type: Any, name: str) -> Any:
    try:
        return np.array(values, source_type)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserCodeFailed(f"the values of {name} are not all of its type", "look at its default") from error
