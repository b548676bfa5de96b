"""Verbs: what the mark, the signature and the docstring say together."""

import inspect
from typing import Annotated, Any

import pytest

from falaj.core.argument_binding import bind_arguments
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Denied, Invalid
from falaj.core.label import Label
from falaj.core.operation import PERMISSION_GROUPS, describe_operation, list_operations, operation
from falaj.core.ref import Ref


class Shelf:
    """A room with three verbs and a method of its own."""

    @operation(writes=("name",), reads=("inputs",), zone_param="zone", purpose_param="why")
    def put(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "what it is called"],
        label: Label,
        inputs: tuple[Ref, ...] = (),
        zone: str = "",
        why: str = "",
        limits: Annotated[dict[str, str], "more"] = {},  # noqa: B006 - a verb's default is never changed
        size: float | None = None,
    ) -> Ref:
        """Put a thing on the shelf.

        Example:
            falaj shelf put dataset:a/b
        """
        return name

    @operation()
    def list(self, ctx: CallContext) -> tuple[Ref, ...]:
        """List the shelf."""
        return ()

    @operation(group="erase", has_outside_effects=True)
    def burn(self, ctx: CallContext, name: str) -> None:
        """Burn it."""

    def dust(self, ctx: CallContext) -> None:
        """No mark: nobody outside reaches it."""


VERBS = list_operations(Shelf)


def test_only_what_is_marked_can_be_reached() -> None:
    assert list(VERBS) == ["put", "list", "burn"]


def test_what_the_mark_says() -> None:
    put = VERBS["put"]
    assert (put.group, put.writes, put.reads, put.into, put.purpose) == ("write", ("name",), ("inputs",), "zone", "why")
    assert VERBS["list"].group == "see"
    assert (VERBS["burn"].group, VERBS["burn"].outside) == ("erase", True)


def test_what_signature_and_docstring_say() -> None:
    put = VERBS["put"]
    assert put.summary == "Put a thing on the shelf."
    assert "falaj shelf put" in put.doc
    assert [p.name for p in put.params] == ["name", "label", "inputs", "zone", "why", "limits", "size"]
    name, inputs = put.params[0], put.params[2]
    assert (name.type, name.help, name.required) == (Ref, "what it is called", True)
    assert (inputs.required, inputs.default) == (False, ())
    assert put.result is Ref


def test_a_group_nobody_knows_is_a_bug_at_import() -> None:
    with pytest.raises(ValueError, match="no group"):
        operation(group="whatever")
    assert "see" in PERMISSION_GROUPS


def test_what_people_write_becomes_what_the_verb_asks_for() -> None:
    bound = bind_arguments(VERBS["put"], ("dataset:a/b", "AE-PDPL,secret"), {"inputs": ["dataset:a/c@v1"], "size": 3})
    assert bound["name"] == Ref("dataset", "a", "b")
    assert bound["label"] == Label(regimes=frozenset({"AE-PDPL"}), classification=3)
    assert bound["inputs"] == (Ref("dataset", "a", "c", "v1"),)
    assert (bound["size"], bound["zone"], bound["limits"]) == (3.0, "", {})
    assert (
        bind_arguments(VERBS["put"], ("dataset:a/b", "secret"), {"inputs": "dataset:a/c@v1"})["inputs"]
        == bound["inputs"]
    )


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("dataset:a/b",), {}),
        (("dataset:a/b", "secret"), {"colour": "red"}),
        (("dataset:a/b", "secret"), {"name": "dataset:a/b"}),
        (("dataset:a/b", "secret", (), "", "", {}, 1.0, "more"), {}),
        ((7, "secret"), {}),
        (("no reference", "secret"), {}),
        (("dataset:a/b", "no label"), {}),
        (("dataset:a/b", "secret"), {"inputs": "no reference"}),
        (("dataset:a/b", "secret"), {"inputs": [7]}),
        (("dataset:a/b", "secret"), {"zone": 7}),
        (("dataset:a/b", "secret"), {"limits": "x"}),
        (("dataset:a/b", "secret"), {"size": "big"}),
    ],
)
def test_a_call_that_does_not_fit_is_refused(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        bind_arguments(VERBS["put"], args, kwargs)


def test_nobody_asked_so_nobody_may() -> None:
    ctx = CallContext(Actor("amal", "bank"), "home")
    assert ctx.tenant == "bank"
    with pytest.raises(Denied):
        ctx.permit("write", "dataset:a/b", "home")
    with pytest.raises(Denied):
        ctx.cells("dataset")


def test_a_person_is_known_by_the_providers_name_for_them() -> None:
    assert Actor("amal", "bank").person == "bank/amal"
    assert Actor("amal", "bank", subject="idp|7").person == Actor("other", "bank", subject="idp|7").person


def test_reads_what_a_function_says_of_its_parameters() -> None:
    def plain(here: str, a: int, b: str = "x", *, c: float, d: bool = True) -> None:
        """Say it.

        More of it:
            indented
        """

    def spoken(*args: Any) -> None: ...

    for function in (plain, spoken):
        function.__annotations__ = plain.__annotations__
    spoken.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
    mark = ("see", (), (), "", "", False, False, (), False)
    for function in (plain, spoken):
        found = describe_operation("plain", function, mark)
        assert [(p.name, p.required, p.default) for p in found.params] == [
            ("a", True, None), ("b", False, "x"), ("c", True, None), ("d", False, True)
        ]  # fmt: skip
    assert describe_operation("plain", plain, mark).doc == inspect.getdoc(plain)
    assert describe_operation("spoken", spoken, mark).doc == ""
