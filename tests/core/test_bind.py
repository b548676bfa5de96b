"""What a person writes in a call becomes what the verb asks for, records within records too."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import pytest

from falaj.core.argument_binding import bind_arguments
from falaj.core.context import CallContext
from falaj.core.errors import Invalid
from falaj.core.operation import Operation, list_operations, operation
from falaj.core.ref import Ref


@dataclass(frozen=True, slots=True)
class Inner:
    share: float = 0.5
    flow: Ref | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)


class Desk:
    @operation()
    def add(self, ctx: CallContext, plan: Plan | None = None) -> str:
        """Add.

        Example:
            falaj desk add
        """
        return ""

    @operation()
    def wait(
        self,
        ctx: CallContext,
        jobs: Annotated[tuple[Ref, ...], "which jobs"],
        words: Annotated[tuple[str, ...], "which words"] = (),
        env: Annotated[dict[str, str] | None, "variables"] = None,
    ) -> str:
        """Wait.

        Example:
            falaj desk wait job:a/b
        """
        return ""


ADD, WAIT = (cast(Operation, list_operations(Desk)[name]) for name in ("add", "wait"))


def test_records_within_records() -> None:
    given = {"name": "a", "inner": {"share": 1, "flow": "flow:a/b"}, "many": [{"share": 0.25}], "words": {"x": "y"}}
    made = bind_arguments(ADD, (), {"plan": given})["plan"]
    assert made == Plan("a", Inner(1.0, Ref.parse("flow:a/b")), (Inner(0.25),), {"x": "y"})
    assert bind_arguments(ADD, (made,), {})["plan"] is made


@pytest.mark.parametrize("given", [{}, {"name": 3}, {"name": "a", "inner": {"flow": 5}}, {"name": "a", "other": 1}])
def test_what_does_not_fit_is_said(given: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="plan: expected a Plan, got an object"):
        bind_arguments(ADD, (), {"plan": given})


def test_one_reference_is_a_list_of_one_and_what_must_be_a_list_is_said_to_be() -> None:
    job = Ref.parse("job:a/b")
    assert all(bind_arguments(WAIT, (given,), {})["jobs"] == (job,) for given in ("job:a/b", job, ["job:a/b"]))
    for name, value, message in (
        ("words", "first", "words: expected a list, got text 'first'"),
        ("env", {"A": 1}, "env: expected texts by name, got an object {'A': 1}"),
    ):
        with pytest.raises(Invalid) as refused:
            bind_arguments(WAIT, (job,), {name: value})
        assert str(refused.value).startswith(message)
