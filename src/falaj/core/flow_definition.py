"""How a flow is written: functions marked as steps, and one that calls them. Standard library only.

    from falaj import flow, step

    @step(cpus=2, retries=1, timeout="10m", outputs={"clean": "dataset:fraud/clean"})
    def clean(raw, threshold: float = 0.5):
        (step.output("clean") / "rows.csv").write_text(...)     # raw is a pathlib.Path: the folder of the dataset
        return {"rows": 12}                                     # a small JSON value

    @flow("fraud/retrain", params={"data": "dataset:fraud/transactions"})
    def retrain(data, threshold=0.5):
        cleaned = clean(data, threshold)
        with flow.when(cleaned["rows"]):
            train(cleaned["clean"])

Inside a flow, calling a step runs nothing: it is written down, and what it gives stands for what will be. Everywhere
else a step is the plain function it was.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from falaj.core.errors import Invalid
from falaj.core.flow_draft import (
    RESOURCE_KINDS,
    STEP_FUNCTION,
    STEP_GATE,
    STEP_JOB,
    STEP_OPERATION,
    FlowDraft,
    Placeholder,
    PlainData,
    StepResult,
    detect_resource_kind,
    make_step_plan,
    to_step_source,
)
from falaj.core.ref import Ref

Dataset = Annotated[Path, "dataset"]
Model = Annotated[Path, "model"]
Code = Annotated[Path, "code"]
_OUTPUT_VARIABLE_PREFIX = "FALAJ_OUTPUT_"


_current_draft: ContextVar[FlowDraft | None] = ContextVar("falaj_flow", default=None)
_local_outputs: ContextVar[Mapping[str, str] | None] = ContextVar("falaj_outputs", default=None)


def _import_inspect() -> Any:
    """Loaded by whoever writes a flow, and not by every step that runs."""
    import inspect

    return inspect


class Step:
    """A function that runs as a job of its own."""

    def __init__(self, function: Callable[..., Any], options: PlainData) -> None:
        self.function, self._options = function, options
        self.name = str(options.get("name") or function.__name__)
        self.__doc__, self.__name__, self.__wrapped__ = function.__doc__, function.__name__, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """In a flow, write the step down; anywhere else, run it."""
        draft = _current_draft.get()
        return self.function(*args, **kwargs) if draft is None else draft.add(self._make_plan(args, kwargs))

    def map(self, values: Any, *args: Any, **kwargs: Any) -> Any:
        """Once for every value of a list, as the first argument; what they give comes together as a list."""
        draft = _current_draft.get()
        if draft is None:
            return [self.function(value, *args, **kwargs) for value in values]
        first_parameter = next(iter(_import_inspect().signature(self.function).parameters), "")
        if not first_parameter:
            raise Invalid(f"{self.name} takes nothing to go through", "give the function a parameter")
        plan = self._make_plan((values, *args), kwargs, mapped_parameter=first_parameter)
        return draft.add({**plan, "over": first_parameter})

    def options(self, **overrides: Any) -> "Step":
        """The same function under another name, or with other needs."""
        return Step(self.function, {**self._options, **_require_fixed_options(overrides)})

    def _make_plan(self, args: tuple[Any, ...], kwargs: PlainData, mapped_parameter: str = "") -> PlainData:
        signature = _import_inspect().signature(self.function)
        try:
            bound_arguments = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Invalid(f"{self.name}: {error}", f"it is {self.name}{signature}") from None
        if any(
            parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            for parameter in signature.parameters.values()
        ):
            raise Invalid(f"{self.name} takes any arguments", "name every parameter: they are what is recorded")
        hints = _resolve_type_hints(self.function)
        sources = {
            name: self._to_step_source(name, value, hints.get(name), name == mapped_parameter)
            for name, value in bound_arguments.arguments.items()
        }
        file_name = Path(_import_inspect().getfile(self.function)).name
        plan = make_step_plan(self.name, STEP_FUNCTION, self._options)
        return {**plan, "entry": f"{file_name}:{self.function.__name__}", "takes": sources}

    def _to_step_source(self, name: str, value: Any, annotation: Any, is_mapped: bool) -> Any:
        expected_kinds = [
            annotation_item for annotation_item in get_args(annotation)[1:] if annotation_item in RESOURCE_KINDS
        ]
        kind = (
            value.whole().kind
            if isinstance(value, StepResult)
            else value.kind
            if isinstance(value, Placeholder)
            else ""
        )
        kind = kind or detect_resource_kind(value)
        if expected_kinds and kind and kind != expected_kinds[0] and not is_mapped:
            description = value.what if isinstance(value, Placeholder) else value
            raise Invalid(
                f"{self.name} wants a {expected_kinds[0]} as {name}, and {description} is a {kind}", "give it another"
            )
        source = to_step_source(value)
        # A text stays a text where the function says that it wants one.
        return {**source, "text": True} if annotation is str and isinstance(source, dict) else source


class _StepDecorator:
    """`@step` and `@step(cpus=2, outputs={…})`; `step.output("name")` is the folder to write an output to."""

    def __call__(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Mark a function as a step."""
        if function is not None:
            return Step(function, _require_fixed_options(options))
        return lambda marked: Step(marked, _require_fixed_options(options))

    @staticmethod
    def output(name: str) -> Path:
        """Where the files of an output go."""
        folder = (_local_outputs.get() or {}).get(name) or os.environ.get(
            f"{_OUTPUT_VARIABLE_PREFIX}{name.upper()}", ""
        )
        if not folder:
            output_names = [
                variable[len(_OUTPUT_VARIABLE_PREFIX) :].lower()
                for variable in os.environ
                if variable.startswith(_OUTPUT_VARIABLE_PREFIX)
            ]
            if output_names or "FALAJ_ATTEMPT" in os.environ:
                raise Invalid(f"this step has no output {name!r:.60}", f"it has: {', '.join(output_names) or 'none'}")
            import tempfile  # in an attempt nobody needs it, and every step would wait for it

            folder = tempfile.mkdtemp(prefix=f"falaj-{name}-")
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        return path


class Flow:
    """A flow that was written down: its name, and how to read it."""

    def __init__(self, name: str, function: Callable[..., Any], options: PlainData) -> None:
        self.name, self.function, self._options = name, function, options
        self.__doc__ = function.__doc__

    @property
    def ref(self) -> Ref:
        """What it is called."""
        project, slash, name = self.name.removeprefix("flow:").partition("/")
        if not slash:
            raise Invalid(f"{self.name!r:.80} is no name of a flow", "PROJECT/NAME, for example fraud/retrain")
        return Ref("flow", project, name)

    def plan(self) -> PlainData:
        """The flow as data: the function is called once, and steps in it are written down and not run."""
        options = self._options
        params = self._default_parameters()
        draft = FlowDraft()
        token = _current_draft.set(draft)
        try:
            self.function(
                **{
                    name: Placeholder({"param": name}, detect_resource_kind(value), name)
                    for name, value in params.items()
                }
            )
        finally:
            _current_draft.reset(token)
        if not draft.steps:
            raise Invalid(f"the flow {self.name} has no step", "call a function that is marked with @step in it")
        message = _import_inspect().getdoc(self.function) or ""
        flow_options = {"queue": options["queue"], "at_once": options["at_once"], "secrets": options["secrets"]}
        return {"steps": draft.steps, "params": params, **flow_options, "message": message.partition("\n")[0][:300]}

    def _default_parameters(self) -> PlainData:
        signature_parameters = _import_inspect().signature(self.function).parameters
        unknown = sorted(set(self._options["params"]) - set(signature_parameters))
        if unknown:
            raise Invalid(
                f"the function {self.function.__name__} has no parameter {unknown[0]}", "params= names its own"
            )
        defaults = {
            name: None if parameter.default is parameter.empty else parameter.default
            for name, parameter in signature_parameters.items()
        }
        return defaults | {
            name: str(parameter) if isinstance(parameter, Ref) else parameter
            for name, parameter in self._options["params"].items()
        }


class _FlowDecorator:
    """`@flow("project/name")`, and what can stand in a flow beside steps."""

    def __call__(
        self,
        name: str,
        *,
        params: PlainData | None = None,
        secrets: Mapping[str, str] | None = None,
        queue: str = "",
        at_once: int = 8,
    ) -> Callable[[Callable[..., Any]], Flow]:
        """Mark the function that says which steps there are and what they give each other."""
        flow_options = {
            "params": dict(params or {}),
            "secrets": dict(secrets or {}),
            "queue": queue,
            "at_once": at_once,
        }
        return lambda function: Flow(name, function, flow_options)

    @contextmanager
    def when(self, *conditions: Placeholder) -> Iterator[None]:
        """What stands below runs only if these are true; else it is skipped."""
        yield from _add_conditions(conditions, {})

    @contextmanager
    def unless(self, *conditions: Placeholder) -> Iterator[None]:
        """What stands below runs only if these are not true."""
        yield from _add_conditions(conditions, {"not": True})

    @contextmanager
    def after(self, *steps: StepResult) -> Iterator[None]:
        """What stands below begins when these are over, though it takes nothing of them."""
        draft = _require_draft()
        draft.after += [step_result.what for step_result in steps]
        yield
        del draft.after[len(draft.after) - len(steps) :]

    def verb(self, verb: str, **arguments: Any) -> StepResult:
        """A verb of the platform (`serve.add`), called in the name of whoever owns the run."""
        takes = {name: to_step_source(value) for name, value in arguments.items()}
        plan = make_step_plan(verb.replace(".", "_"), STEP_OPERATION, {})
        return _require_draft().add({**plan, "entry": verb, "takes": takes, "cache": False})

    def job(
        self, command: str, *, inputs: PlainData | None = None, params: PlainData | None = None, **options: Any
    ) -> StepResult:
        """A command as a job. Inputs are folders in FALAJ_INPUT_<ROLE>, params values in FALAJ_PARAM_<NAME>."""
        job_arguments = {**(inputs or {}), **(params or {})}
        name = Path(
            next(
                (command_part for command_part in command.split() if command_part.endswith(".py")),
                command.split(maxsplit=1)[0],
            )
        ).stem
        plan = make_step_plan(str(options.get("name") or name.replace("-", "_")), STEP_JOB, options)
        takes = {role: to_step_source(value) for role, value in job_arguments.items()}
        return _require_draft().add({**plan, "words": {**plan["words"], "command": command}, "takes": takes})

    def approval(self, reason: str, *, needs: int = 1, days: int = 7, about: Any = None) -> StepResult:
        """Wait until people approve; refused, the flow fails here."""
        takes = {
            "reason": reason,
            "needs": needs,
            "days": days,
            **({} if about is None else {"about": to_step_source(about)}),
        }
        return _require_draft().add(
            {**make_step_plan("approval", STEP_GATE, {}), "entry": "approval", "takes": takes, "cache": False}
        )

    def event(self, verb: str, subject: Any, *, timeout: str | int = "1d") -> StepResult:
        """Wait until this happened to something (`catalog.promote`, a reference) after the flow came here."""
        takes = {"verb": verb, "subject": to_step_source(subject)}
        return _require_draft().add(
            {
                **make_step_plan("event", STEP_GATE, {"timeout": timeout}),
                "entry": "event",
                "takes": takes,
                "cache": False,
            }
        )


flow = _FlowDecorator()
step = _StepDecorator()


@contextmanager
def use_local_outputs(outputs: Mapping[str, str]) -> Iterator[None]:
    """While entered, `step.output` gives these folders: a step runs beside its writer."""
    token = _local_outputs.set(outputs)
    try:
        yield
    finally:
        _local_outputs.reset(token)


def _add_conditions(conditions: tuple[Placeholder, ...], extra_fields: PlainData) -> Iterator[None]:
    draft = _require_draft()
    if not conditions or not all("step" in getattr(condition, "source", {}) for condition in conditions):
        raise Invalid("a condition is what a step gives", 'for example flow.when(checked["better"])')
    draft.conditions += [{**condition.source, **extra_fields} for condition in conditions]
    yield
    del draft.conditions[len(draft.conditions) - len(conditions) :]


def _require_draft() -> FlowDraft:
    draft = _current_draft.get()
    if draft is None:
        raise Invalid("this stands outside a flow", 'write it in a function marked with @flow("project/name")')
    return draft


def _require_fixed_options(options: PlainData) -> PlainData:
    placeholder_name = next((name for name, value in options.items() if isinstance(value, Placeholder)), None)
    if placeholder_name is not None:
        raise Invalid(
            f"{placeholder_name} of a step is fixed when the flow is saved", "give what changes as an argument"
        )
    return options


def _resolve_type_hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}
