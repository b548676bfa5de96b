"""What stands in a flow while it is written: what is not known yet, and the steps so far, as plain data."""

from collections.abc import Iterator, Mapping
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.ref import Ref

PlainData = dict[str, Any]
RESOURCE_KINDS = ("dataset", "model", "code")
"""What a step is given as a folder."""
STEP_FUNCTION, STEP_JOB, STEP_OPERATION, STEP_GATE = "function", "job", "verb", "gate"
_STEP_OPTIONS = ("name", "outputs", "retries", "timeout", "cache", "always")


def detect_resource_kind(text: object) -> str:
    """The kind of a reference that stands for files; empty for anything else."""
    prefix = text.partition(":")[0] if isinstance(text, str) else ""
    if prefix not in RESOURCE_KINDS:
        return ""
    try:
        return Ref.parse(str(text)).kind
    except Invalid:
        return ""  # a sentence that begins so


class Placeholder:
    """What is not known while a flow is written: a parameter, or what a step will give."""

    def __init__(self, source: PlainData, kind: str = "", description: str = "") -> None:
        self.source, self.kind, self.what = source, kind, description

    def __bool__(self) -> bool:
        raise Invalid(f"{self.what} is not known while the flow is written", "with flow.when(…): decides when it runs")

    def __iter__(self) -> Iterator[Any]:
        raise Invalid(f"{self.what} is not known while the flow is written", "step.map(…) goes through a list")


class StepResult(Placeholder):
    """What a step gives: `outcome["name"]` is one of its outputs, or a field of what it returns."""

    def __init__(self, plan: PlainData) -> None:
        outputs: Mapping[str, str] = plan["outputs"]
        single_output = next(iter(outputs)) if len(outputs) == 1 else ""
        super().__init__(
            {"step": plan["name"], "out": single_output},
            detect_resource_kind(outputs.get(single_output, "")),
            plan["name"],
        )
        self._plan = plan

    def __getitem__(self, name: str) -> Placeholder:
        kind = detect_resource_kind(self._plan["outputs"].get(name, ""))
        return Placeholder({"step": self.what, "out": str(name)}, kind, f"{self.what}[{name!r}]")

    @property
    def value(self) -> Placeholder:
        """All that the step returns, where it has outputs, too."""
        return Placeholder({"step": self.what, "out": "", "value": True}, "", f"{self.what}.value")

    def whole(self) -> Placeholder:
        """What stands for it where no part is named."""
        if len(self._plan["outputs"]) > 1:
            names = ", ".join(self._plan["outputs"])
            raise Invalid(f"{self.what} has several outputs", f"say which: {self.what}[…] of {names}")
        return self


class FlowDraft:
    """A flow while it is written."""

    def __init__(self) -> None:
        self.steps: list[PlainData] = []
        self.conditions: list[PlainData] = []
        self.after: list[str] = []

    def add(self, plan: PlainData) -> StepResult:
        """Write a step down; a second one of the same name is numbered."""
        used_names = {step["name"] for step in self.steps}
        base_name, number = plan["name"], 2
        while plan["name"] in used_names:
            plan["name"], number = f"{base_name}_{number}", number + 1
        conditions = list(self.conditions)
        plan["when"] = {} if not conditions else conditions[0] if len(conditions) == 1 else {"all": conditions}
        plan["after"] = [*plan.get("after", ()), *(name for name in self.after if name not in plan.get("after", ()))]
        self.steps.append(plan)
        return StepResult(plan)


def to_step_source(value: Any) -> Any:
    """What a step is given, as plain data."""
    if isinstance(value, StepResult):
        return value.whole().source
    if isinstance(value, Placeholder):
        return value.source
    if isinstance(value, Ref) or detect_resource_kind(value):
        return {"ref": str(Ref.parse(value))}
    if isinstance(value, (list, tuple)):
        item_sources = [to_step_source(item) for item in value]
        return {"list": item_sources} if any(isinstance(item, dict) for item in item_sources) else list(value)
    if isinstance(value, Mapping):
        sources_by_name = {str(name): to_step_source(item) for name, item in value.items()}
        is_plain = all(isinstance(item, (str, int, float, bool, type(None))) for item in sources_by_name.values())
        return {"value": dict(value)} if is_plain else {"map": sources_by_name}
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    raise Invalid(f"a step cannot be given a {type(value).__name__}", "JSON values, references, and what steps give")


def make_step_plan(name: str, kind: str, options: Mapping[str, Any]) -> PlainData:
    """A step as plain data; what its job needs stays in the words of `falaj jobs submit`."""
    return {
        "name": name, "kind": kind, "after": [], "entry": "", "takes": {}, "over": "", "when": {},
        "outputs": {str(name): str(ref) for name, ref in dict(options.get("outputs") or {}).items()},
        "retries": options.get("retries", 0), "timeout": options.get("timeout", 0),
        "cache": options.get("cache", True), "always": options.get("always", False),
        "words": {name: value for name, value in options.items() if name not in _STEP_OPTIONS},
    }  # fmt: skip
