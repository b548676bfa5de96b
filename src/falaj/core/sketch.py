"""What stands in a flow while it is written: what is not known yet, and the steps so far, as plain data."""

from collections.abc import Iterator, Mapping
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.ref import Ref

Plain = dict[str, Any]
KINDS = ("dataset", "model", "code")
"""What a step is given as a folder."""
FUNCTION, JOB, VERB, GATE = "function", "job", "verb", "gate"
_OWN = ("name", "outputs", "retries", "timeout", "cache", "always")


def kind_of(text: object) -> str:
    """The kind of a reference that stands for files; empty for anything else."""
    head = text.partition(":")[0] if isinstance(text, str) else ""
    if head not in KINDS:
        return ""
    try:
        return Ref.parse(str(text)).kind
    except Invalid:
        return ""  # a sentence that begins so


class Handle:
    """What is not known while a flow is written: a parameter, or what a step will give."""

    def __init__(self, source: Plain, kind: str = "", what: str = "") -> None:
        self.source, self.kind, self.what = source, kind, what

    def __bool__(self) -> bool:
        raise Invalid(f"{self.what} is not known while the flow is written", "with flow.when(…): decides when it runs")

    def __iter__(self) -> Iterator[Any]:
        raise Invalid(f"{self.what} is not known while the flow is written", "step.map(…) goes through a list")


class Outcome(Handle):
    """What a step gives: `outcome["name"]` is one of its outputs, or a field of what it returns."""

    def __init__(self, plan: Plain) -> None:
        outputs: Mapping[str, str] = plan["outputs"]
        only = next(iter(outputs)) if len(outputs) == 1 else ""
        super().__init__({"step": plan["name"], "out": only}, kind_of(outputs.get(only, "")), plan["name"])
        self._plan = plan

    def __getitem__(self, name: str) -> Handle:
        kind = kind_of(self._plan["outputs"].get(name, ""))
        return Handle({"step": self.what, "out": str(name)}, kind, f"{self.what}[{name!r}]")

    @property
    def value(self) -> Handle:
        """All that the step returns, where it has outputs, too."""
        return Handle({"step": self.what, "out": "", "value": True}, "", f"{self.what}.value")

    def whole(self) -> Handle:
        """What stands for it where no part is named."""
        if len(self._plan["outputs"]) > 1:
            names = ", ".join(self._plan["outputs"])
            raise Invalid(f"{self.what} has several outputs", f"say which: {self.what}[…] of {names}")
        return self


class Sketch:
    """A flow while it is written."""

    def __init__(self) -> None:
        self.steps: list[Plain] = []
        self.conditions: list[Plain] = []
        self.after: list[str] = []

    def add(self, plan: Plain) -> Outcome:
        """Write a step down; a second one of the same name is numbered."""
        taken = {one["name"] for one in self.steps}
        base, number = plan["name"], 2
        while plan["name"] in taken:
            plan["name"], number = f"{base}_{number}", number + 1
        conditions = list(self.conditions)
        plan["when"] = {} if not conditions else conditions[0] if len(conditions) == 1 else {"all": conditions}
        plan["after"] = [*plan.get("after", ()), *(name for name in self.after if name not in plan.get("after", ()))]
        self.steps.append(plan)
        return Outcome(plan)


def source_of(value: Any) -> Any:
    """What a step is given, as plain data."""
    if isinstance(value, Outcome):
        return value.whole().source
    if isinstance(value, Handle):
        return value.source
    if isinstance(value, Ref) or kind_of(value):
        return {"ref": str(Ref.parse(value))}
    if isinstance(value, (list, tuple)):
        parts = [source_of(one) for one in value]
        return {"list": parts} if any(isinstance(one, dict) for one in parts) else list(value)
    if isinstance(value, Mapping):
        named = {str(name): source_of(one) for name, one in value.items()}
        plain = all(isinstance(one, (str, int, float, bool, type(None))) for one in named.values())
        return {"value": dict(value)} if plain else {"map": named}
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    raise Invalid(f"a step cannot be given a {type(value).__name__}", "JSON values, references, and what steps give")


def step_plan(name: str, kind: str, options: Mapping[str, Any]) -> Plain:
    """A step as plain data; what its job needs stays in the words of `falaj jobs submit`."""
    return {
        "name": name, "kind": kind, "after": [], "entry": "", "takes": {}, "over": "", "when": {},
        "outputs": {str(name): str(ref) for name, ref in dict(options.get("outputs") or {}).items()},
        "retries": options.get("retries", 0), "timeout": options.get("timeout", 0),
        "cache": options.get("cache", True), "always": options.get("always", False),
        "words": {name: value for name, value in options.items() if name not in _OWN},
    }  # fmt: skip
