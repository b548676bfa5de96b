"""What operations show of labelled things: every answer declares its structure, or is refused as a whole."""

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from falaj.core.label import Label
from falaj.core.operation import list_operations
from falaj.core.ref import Ref
from falaj.core.withholding import AnswerWithheld, withhold_items, withhold_texts, withhold_values
from falaj.govern.roles import find_family
from falaj.govern.value_access import CONTAINER_KINDS, STRUCTURAL_ACTIONS
from falaj.services import SERVICES, load_service_class

VALUES_ALONE = {
    "track.table", "track.history", "track.curves", "track.compare", "track.artifacts",
    "jobs.figures", "features.about", "monitor.challenge", "flows.deliveries",
}  # fmt: skip
"""Operations that name a thing and have no structure to show: refused where it is labelled and may not be read. A table
of runs names experiments only, and leaves out what its caller may not read."""
UNNAMED = {
    "catalog.rules", "jobs.usage", "features.plan", "flows.hear", "store.usage", "audit.verifier",
}  # fmt: skip
"""Operations that name no thing, and answer with rules, sums and counts."""
NAME = Ref.parse("dataset:a/b")


def holds_structure(kind: Any) -> bool:
    """Whether an answer of this type has something to show once its values are withheld."""
    if kind is Ref:
        return True
    if dataclasses.is_dataclass(kind):
        return getattr(kind, "STRUCTURE", None) is not None
    return any(holds_structure(part) for part in typing.get_args(kind))


def test_every_answer_about_work_declares_its_structure_or_is_refused() -> None:
    undeclared = {
        f"{desk}.{verb.name}"
        for desk, known in SERVICES.items()
        if known.verbs and (find_family(desk) == "work" or desk in ("audit", "store"))
        for verb in list_operations(load_service_class(desk)).values()
        if verb.group == "see" and not holds_structure(verb.result)
    }
    assert undeclared - STRUCTURAL_ACTIONS == VALUES_ALONE | UNNAMED


def test_structures_name_fields_and_blanks_exist() -> None:
    for desk, known in SERVICES.items():
        for verb in list_operations(load_service_class(desk)).values() if known.verbs else ():
            for cls in classes_in(verb.result, set()):
                names = {field.name for field in dataclasses.fields(cls)}
                declared = getattr(cls, "STRUCTURE", ())
                assert set(declared) <= names, cls
                marks = {getattr(cls, name) for name in ("MARKER", "ABOUT") if hasattr(cls, name)}
                assert marks <= names, cls


def classes_in(kind: Any, seen: set[Any]) -> set[Any]:
    if dataclasses.is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        for part in typing.get_type_hints(kind).values():
            classes_in(part, seen)
    for part in typing.get_args(kind):
        classes_in(part, seen)
    return seen


@dataclass(frozen=True)
class Part:
    STRUCTURE: ClassVar = ("name",)

    name: str
    low: str = ""


@dataclass(frozen=True)
class Shown:
    STRUCTURE: ClassVar = ("ref", "count", "parts")
    MARKER: ClassVar = "note"

    ref: Ref
    count: int
    mean: float
    texts: dict[str, str]
    parts: tuple[Part, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Page:
    items: tuple[Shown, ...]
    next: str = ""


class Withholding:
    """Withholds all but the names it is given."""

    def __init__(self, *readable: Ref) -> None:
        self._readable = readable

    def __call__(self, ref: Ref, item: Any) -> str:
        return "" if ref in self._readable else f"withheld: {ref}"

    def is_labelled(self, kind: str) -> bool:
        return True


SHOWN = Shown(NAME, 3, 1.5, {"a": "b"}, (Part("iban", "AE07"),), "seen AE07")


def test_values_are_blanked_and_structure_stays() -> None:
    assert withhold_values(SHOWN, "withheld: x") == Shown(NAME, 3, 0.0, {}, (Part("iban"),), "withheld: x")


def test_an_answer_without_structure_is_refused() -> None:
    for answer in ("AE07", 784.0, {"iban": "AE07"}, Page((SHOWN,)), ("AE07",)):
        with pytest.raises(AnswerWithheld):
            withhold_values(answer, "withheld: x")
    assert withhold_values((NAME, Label(), None), "withheld: x") == (NAME, Label(), None)


def test_a_page_is_judged_record_by_record_and_not_copied_where_nothing_is_withheld() -> None:
    other = dataclasses.replace(SHOWN, ref=Ref.parse("dataset:a/c"))
    page = Page((SHOWN, other))
    assert withhold_items(page, Withholding(NAME, other.ref)) is page
    shown = withhold_items(page, Withholding(other.ref))
    assert shown.items[0].note == f"withheld: {NAME}"
    assert shown.items[1] is other


def test_events_about_labelled_records_keep_the_reasons_of_people_alone() -> None:
    body = {"note": "AE07", "message": "AE07", "reason": "too old", "state": "failed", "value": 7.0, "outcome": ""}
    kept = {"note": "withheld", "message": "withheld", "state": "failed", "value": "withheld", "outcome": ""}
    assert withhold_texts(body, by_person=True) == {**kept, "reason": "too old"}
    assert withhold_texts(body, by_person=False) == {**kept, "reason": "withheld"}


def test_a_label_carries_another_in_all_that_protects_values() -> None:
    strict = Label.parse("AE-PDPL,sensitive,purpose=fraud,category=health")
    assert strict.carries(Label.parse("AE-PDPL,confidential,hold=case-7"))
    assert not strict.carries(Label.parse("AE-PDPL,EU-GDPR,open"))
    assert not strict.carries(Label.parse("AE-PDPL,sensitive,purpose=risk"))
    assert not Label.parse("AE-PDPL,sensitive").carries(strict)
    assert {"experiment"} == CONTAINER_KINDS
