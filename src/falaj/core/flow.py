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
from falaj.core.ref import Ref
from falaj.core.sketch import (
    FUNCTION,
    GATE,
    JOB,
    KINDS,
    VERB,
    Handle,
    Outcome,
    Plain,
    Sketch,
    kind_of,
    source_of,
    step_plan,
)

Dataset = Annotated[Path, "dataset"]
Model = Annotated[Path, "model"]
Code = Annotated[Path, "code"]
_OUTPUT = "FALAJ_OUTPUT_"


_writing: ContextVar[Sketch | None] = ContextVar("falaj_flow", default=None)
_local: ContextVar[Mapping[str, str] | None] = ContextVar("falaj_outputs", default=None)


def _inspect() -> Any:
    """Loaded by whoever writes a flow, and not by every step that runs."""
    import inspect

    return inspect


class Step:
    """A function that runs as a job of its own."""

    def __init__(self, function: Callable[..., Any], options: Plain) -> None:
        self.function, self._options = function, options
        self.name = str(options.get("name") or function.__name__)
        self.__doc__, self.__name__, self.__wrapped__ = function.__doc__, function.__name__, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """In a flow, write the step down; anywhere else, run it."""
        sketch = _writing.get()
        return self.function(*args, **kwargs) if sketch is None else sketch.add(self._plan(args, kwargs))

    def map(self, values: Any, *args: Any, **kwargs: Any) -> Any:
        """Once for every value of a list, as the first argument; what they give comes together as a list."""
        sketch = _writing.get()
        if sketch is None:
            return [self.function(value, *args, **kwargs) for value in values]
        first = next(iter(_inspect().signature(self.function).parameters), "")
        if not first:
            raise Invalid(f"{self.name} takes nothing to go through", "give the function a parameter")
        plan = self._plan((values, *args), kwargs, over=first)
        return sketch.add({**plan, "over": first})

    def options(self, **options: Any) -> "Step":
        """The same function under another name, or with other needs."""
        return Step(self.function, {**self._options, **_checked(options)})

    def _plan(self, args: tuple[Any, ...], kwargs: Plain, over: str = "") -> Plain:
        signature = _inspect().signature(self.function)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Invalid(f"{self.name}: {error}", f"it is {self.name}{signature}") from None
        if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in signature.parameters.values()):
            raise Invalid(f"{self.name} takes any arguments", "name every parameter: they are what is recorded")
        hints = _hints(self.function)
        takes = {
            name: self._taken(name, value, hints.get(name), name == over) for name, value in bound.arguments.items()
        }
        file = Path(_inspect().getfile(self.function)).name
        plan = step_plan(self.name, FUNCTION, self._options)
        return {**plan, "entry": f"{file}:{self.function.__name__}", "takes": takes}

    def _taken(self, name: str, value: Any, hint: Any, over: bool) -> Any:
        marks = [mark for mark in get_args(hint)[1:] if mark in KINDS]
        kind = value.whole().kind if isinstance(value, Outcome) else value.kind if isinstance(value, Handle) else ""
        kind = kind or kind_of(value)
        if marks and kind and kind != marks[0] and not over:
            said = value.what if isinstance(value, Handle) else value
            raise Invalid(f"{self.name} wants a {marks[0]} as {name}, and {said} is a {kind}", "give it another")
        source = source_of(value)
        # A text stays a text where the function says that it wants one.
        return {**source, "text": True} if hint is str and isinstance(source, dict) else source


class _Step:
    """`@step` and `@step(cpus=2, outputs={…})`; `step.output("name")` is the folder to write an output to."""

    def __call__(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Mark a function as a step."""
        if function is not None:
            return Step(function, _checked(options))
        return lambda marked: Step(marked, _checked(options))

    @staticmethod
    def output(name: str) -> Path:
        """Where the files of an output go."""
        folder = (_local.get() or {}).get(name) or os.environ.get(f"{_OUTPUT}{name.upper()}", "")
        if not folder:
            known = [one[len(_OUTPUT) :].lower() for one in os.environ if one.startswith(_OUTPUT)]
            if known or "FALAJ_ATTEMPT" in os.environ:
                raise Invalid(f"this step has no output {name!r:.60}", f"it has: {', '.join(known) or 'none'}")
            import tempfile  # in an attempt nobody needs it, and every step would wait for it

            folder = tempfile.mkdtemp(prefix=f"falaj-{name}-")
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        return path


class Flow:
    """A flow that was written down: its name, and how to read it."""

    def __init__(self, name: str, function: Callable[..., Any], options: Plain) -> None:
        self.name, self.function, self._options = name, function, options
        self.__doc__ = function.__doc__

    @property
    def ref(self) -> Ref:
        """What it is called."""
        project, slash, name = self.name.removeprefix("flow:").partition("/")
        if not slash:
            raise Invalid(f"{self.name!r:.80} is no name of a flow", "PROJECT/NAME, for example fraud/retrain")
        return Ref("flow", project, name)

    def plan(self) -> Plain:
        """The flow as data: the function is called once, and steps in it are written down and not run."""
        options = self._options
        params = self._params()
        sketch = Sketch()
        token = _writing.set(sketch)
        try:
            self.function(**{name: Handle({"param": name}, kind_of(value), name) for name, value in params.items()})
        finally:
            _writing.reset(token)
        if not sketch.steps:
            raise Invalid(f"the flow {self.name} has no step", "call a function that is marked with @step in it")
        message = _inspect().getdoc(self.function) or ""
        more = {"queue": options["queue"], "at_once": options["at_once"], "secrets": options["secrets"]}
        return {"steps": sketch.steps, "params": params, **more, "message": message.partition("\n")[0][:300]}

    def _params(self) -> Plain:
        known = _inspect().signature(self.function).parameters
        unknown = sorted(set(self._options["params"]) - set(known))
        if unknown:
            raise Invalid(
                f"the function {self.function.__name__} has no parameter {unknown[0]}", "params= names its own"
            )
        found = {name: None if one.default is one.empty else one.default for name, one in known.items()}
        return found | {
            name: str(one) if isinstance(one, Ref) else one for name, one in self._options["params"].items()
        }


class _Flow:
    """`@flow("project/name")`, and what can stand in a flow beside steps."""

    def __call__(
        self,
        name: str,
        *,
        params: Plain | None = None,
        secrets: Mapping[str, str] | None = None,
        queue: str = "",
        at_once: int = 8,
    ) -> Callable[[Callable[..., Any]], Flow]:
        """Mark the function that says which steps there are and what they give each other."""
        kept = {"params": dict(params or {}), "secrets": dict(secrets or {}), "queue": queue, "at_once": at_once}
        return lambda function: Flow(name, function, kept)

    @contextmanager
    def when(self, *found: Handle) -> Iterator[None]:
        """What stands below runs only if these are true; else it is skipped."""
        yield from _under(found, {})

    @contextmanager
    def unless(self, *found: Handle) -> Iterator[None]:
        """What stands below runs only if these are not true."""
        yield from _under(found, {"not": True})

    @contextmanager
    def after(self, *steps: Outcome) -> Iterator[None]:
        """What stands below begins when these are over, though it takes nothing of them."""
        sketch = _sketch()
        sketch.after += [one.what for one in steps]
        yield
        del sketch.after[len(sketch.after) - len(steps) :]

    def verb(self, verb: str, **arguments: Any) -> Outcome:
        """A verb of the platform (`serve.add`), called in the name of whoever owns the run."""
        takes = {name: source_of(value) for name, value in arguments.items()}
        plan = step_plan(verb.replace(".", "_"), VERB, {})
        return _sketch().add({**plan, "entry": verb, "takes": takes, "cache": False})

    def job(self, command: str, *, inputs: Plain | None = None, params: Plain | None = None, **options: Any) -> Outcome:
        """A command as a job. Inputs are folders in FALAJ_INPUT_<ROLE>, params values in FALAJ_PARAM_<NAME>."""
        given = {**(inputs or {}), **(params or {})}
        name = Path(next((word for word in command.split() if word.endswith(".py")), command.split(maxsplit=1)[0])).stem
        plan = step_plan(str(options.get("name") or name.replace("-", "_")), JOB, options)
        takes = {role: source_of(value) for role, value in given.items()}
        return _sketch().add({**plan, "words": {**plan["words"], "command": command}, "takes": takes})

    def approval(self, reason: str, *, needs: int = 1, days: int = 7, about: Any = None) -> Outcome:
        """Wait until people approve; refused, the flow fails here."""
        takes = {
            "reason": reason,
            "needs": needs,
            "days": days,
            **({} if about is None else {"about": source_of(about)}),
        }
        return _sketch().add({**step_plan("approval", GATE, {}), "entry": "approval", "takes": takes, "cache": False})

    def event(self, verb: str, subject: Any, *, timeout: str | int = "1d") -> Outcome:
        """Wait until this happened to something (`catalog.promote`, a reference) after the flow came here."""
        takes = {"verb": verb, "subject": source_of(subject)}
        return _sketch().add(
            {**step_plan("event", GATE, {"timeout": timeout}), "entry": "event", "takes": takes, "cache": False}
        )


flow = _Flow()
step = _Step()


@contextmanager
def writing_to(outputs: Mapping[str, str]) -> Iterator[None]:
    """While entered, `step.output` gives these folders: a step runs beside its writer."""
    token = _local.set(outputs)
    try:
        yield
    finally:
        _local.reset(token)


def _under(found: tuple[Handle, ...], more: Plain) -> Iterator[None]:
    sketch = _sketch()
    if not found or not all("step" in getattr(one, "source", {}) for one in found):
        raise Invalid("a condition is what a step gives", 'for example flow.when(checked["better"])')
    sketch.conditions += [{**one.source, **more} for one in found]
    yield
    del sketch.conditions[len(sketch.conditions) - len(found) :]


def _sketch() -> Sketch:
    found = _writing.get()
    if found is None:
        raise Invalid("this stands outside a flow", 'write it in a function marked with @flow("project/name")')
    return found


def _checked(options: Plain) -> Plain:
    bad = next((name for name, value in options.items() if isinstance(value, Handle)), None)
    if bad is not None:
        raise Invalid(f"{bad} of a step is fixed when the flow is saved", "give what changes as an argument")
    return options


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}
