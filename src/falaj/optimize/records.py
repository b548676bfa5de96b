"""What an optimisation is told, and what it says of every variant it tried."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from falaj.core.errors import Invalid

AIMS = ("cpu", "any-cpu", "cuda")
"""cpu: this machine's. any-cpu: also those without VNNI, where weights of 8 bits saturate."""
METHODS = ("fuse", "int8-dynamic", "int8-static", "fp16", "bf16", "sparse", "prune", "distil")
WITHIN_BOUND, REFUSED, SKIPPED, FAILED = "within bound", "refused", "skipped", "failed"
ORIGINAL_NAME = "as it is"
EXPORT_NAME = "export"


@dataclass(frozen=True, slots=True)
class OptimizePlan:
    """One optimisation. Folders are of the machine it runs on."""

    model: str
    out: str
    """Where the chosen variant is written; an empty or new folder."""
    code: str = ""
    data: str = ""
    """Rows to learn and calibrate from; a fifth is held out to judge by where `evaluate` is empty."""
    evaluate: str = ""
    target: str = ""
    """The column that holds the right answer."""
    student: str = ""
    """`module:name` in the code: what builds the student, where the model's own builder takes no width."""
    methods: tuple[str, ...] = ()
    """Some of METHODS; all when empty."""
    aim: str = "cpu"
    max_loss: float = 0.005
    """Of accuracy, AUC and agreement: points at most. Of an error: its growth at most, as a share of it."""
    seed: int = 7
    threads: int = 1
    epochs: int = 30
    share: float = 0.5
    """The share of weights or units that pruning takes away."""
    width: float = 0.5
    """Of the student, beside the teacher."""
    rounds: int = 5
    round_ms: float = 20.0
    """Time of each measurement in a round."""
    most_rows: int = 20_000
    names: Mapping[str, str] = field(default_factory=dict)
    """What the folders are called in the catalog, for the evidence."""


@dataclass(frozen=True, slots=True)
class VariantResult:
    """One variant. Times are of one thread, sizes are in bytes; 0 where nothing was measured."""

    name: str
    verdict: str = ""
    note: str = ""
    quality: float = 0.0
    loss: float = 0.0
    p50_us: float = 0.0
    p95_us: float = 0.0
    cpu_us: float = 0.0
    """CPU time of one row alone, the median."""
    row_cpu_us: float = 0.0
    """CPU time of a row in the best batch, the median."""
    rows_s: float = 0.0
    batch: int = 0
    """Rows of a run at which `rows_s` was the highest."""
    size_bytes: int = 0
    packed_bytes: int = 0
    """The same compressed, as it travels."""
    memory_bytes: int = 0
    """What loading and running it took at the most."""
    speed: float = 0.0
    """How many times as fast as the model as it is: the geometric mean of one row alone and the best batch."""
    frontier: bool = False
    """Nothing else is at least as good, fast and small."""
    sha256: str = ""


def parse_plan(values: Any) -> OptimizePlan:
    """A plan from plain values; Invalid, saying why, for anything else."""
    if not isinstance(values, Mapping) or not {"model", "out"} <= set(values):
        raise Invalid("that is no plan", '{"model": "FOLDER", "out": "FOLDER", …}')
    plan_fields = {plan_field.name: plan_field for plan_field in fields(OptimizePlan)}
    if unknown := sorted(set(values) - set(plan_fields)):
        raise Invalid(f"a plan has no {unknown[0][:60]!r}", f"it has: {', '.join(plan_fields)}")
    plan = OptimizePlan(**{**values, "methods": tuple(values.get("methods") or ())})
    for name, plan_field in plan_fields.items():
        expected_type = (
            float
            if plan_field.type is float
            else type(plan_field.default)
            if isinstance(plan_field.default, (str, int))
            else object
        )
        if not isinstance(getattr(plan, name), (int, float) if expected_type is float else expected_type):
            raise Invalid(f"{name} of the plan is no {expected_type.__name__}", "see docs/optimize.md")
    _check_plan(plan)
    return plan


def _check_plan(plan: OptimizePlan) -> None:
    if unknown := sorted(set(plan.methods) - set(METHODS)):
        raise Invalid(f"there is no method {str(unknown[0])[:40]!r}", f"there are: {', '.join(METHODS)}")
    if plan.aim not in AIMS:
        raise Invalid(f"nothing can be optimised for {plan.aim[:40]!r}", f"for one of: {', '.join(AIMS)}")
    for name, low, high in (("max_loss", 0, 1), ("share", 0.01, 0.99), ("width", 0.05, 1)):
        if not low <= getattr(plan, name) <= high:
            raise Invalid(f"{name} is {getattr(plan, name)}", f"from {low} to {high}")
    for name, highest in (("threads", 1024), ("epochs", 100_000), ("rounds", 1000), ("most_rows", 10_000_000)):
        if not 0 < getattr(plan, name) <= highest:
            raise Invalid(f"{name} is {getattr(plan, name)}", f"from 1 to {highest}")
    if plan.target and not (plan.data or plan.evaluate):
        raise Invalid(f"the column {plan.target[:60]!r} is in no data", "name the data, too")
