"""Withholding: an answer about labelled data without the values in it.

A class that answers can be made of declares what of it is structure and may be shown to a caller who may see that the
thing exists. Every field it does not name is a value, and is blanked for a caller who may not read the thing.

    STRUCTURE   the fields that are structure: names, states, times, counts; without it, answers are refused as a whole
    MARKER      the text field that says so when values are withheld
    ABOUT       the field that names the record whose label counts; `ref` where left out
    KIND        the kind of that record, where it is always the same: a page of them is then judged at once
    structure   a property that narrows STRUCTURE for one object

Nothing here decides who may read; govern/value_access.py does.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple, Protocol, get_args, get_type_hints

from falaj.core.errors import Denied
from falaj.core.label import Label
from falaj.core.ref import Ref

PERSON_TEXT_FIELDS = frozenset({"message", "note", "outcome", "title", "value"})
"""Fields of events that repeat what a person, or the code of a job, wrote about a thing."""
REASON_FIELDS = frozenset({"reason", "why"})
"""Fields of events in which people justify what they did; written by a loop, they repeat what code said."""
WITHHELD_TEXT = "withheld"
_ALWAYS_SHOWN_TYPES = (Ref, Label, type(None))


class AnswerWithheld(Denied):
    """An answer that has nothing but values, for a caller who may not read them."""


class _WithholdingShape(NamedTuple):
    """What withholding has to know of a class."""

    structure: frozenset[str] | None
    """None where the class declares nothing."""
    marker: str
    about: str
    """The field that names the record an object of this class shows; empty where it is part of another's."""
    fields: tuple[Field[Any], ...]
    holds_items: bool
    """Whether objects of this class can hold others that show a record."""


@cache
def _get_shape(cls: type) -> _WithholdingShape:
    names = {field.name for field in fields(cls)}
    declared_structure = getattr(cls, "STRUCTURE", None)
    ref_field = getattr(cls, "ABOUT", "ref" if declared_structure is not None and "ref" in names else "")
    structure = None if declared_structure is None else frozenset(declared_structure)
    return _WithholdingShape(structure, getattr(cls, "MARKER", ""), ref_field, fields(cls), _can_hold_items(cls, set()))


def _can_hold_items(annotation: Any, visited: set[Any]) -> bool:
    if isinstance(annotation, type) and is_dataclass(annotation) and annotation not in visited:
        visited.add(annotation)
        if getattr(annotation, "STRUCTURE", None) is not None:
            return True
        return any(_can_hold_items(member, visited) for member in get_type_hints(annotation).values())
    return any(_can_hold_items(member, visited) for member in get_args(annotation))


def withhold_values(answer: Any, marker: str) -> Any:
    """The structure of an answer: what its classes declare as such, and no value. Denied where there is none."""
    if isinstance(answer, _ALWAYS_SHOWN_TYPES):
        return answer
    if isinstance(answer, tuple):
        return tuple([withhold_values(element, marker) for element in answer])
    if not is_dataclass(answer) or isinstance(answer, type):
        raise AnswerWithheld(marker, "ask for the right to read it, or ask a person who has it")
    shape = _get_shape(type(answer))
    if shape.structure is None:
        raise AnswerWithheld(marker, "ask for the right to read it, or ask a person who has it")
    structure = answer.structure if hasattr(answer, "structure") else shape.structure
    changes: dict[str, Any] = {}
    for field in shape.fields:
        value = getattr(answer, field.name)
        if field.name == shape.marker:
            changes[field.name] = marker
        elif field.name not in structure:
            changes[field.name] = _blank_value(field, value)
        elif isinstance(value, tuple) or (is_dataclass(value) and not isinstance(value, _ALWAYS_SHOWN_TYPES)):
            changes[field.name] = _show_structure(value, marker)
    return replace(answer, **changes)


class WithholdingPolicy(Protocol):
    """Says which records of an answer are withheld."""

    def __call__(self, ref: Ref, item: Any) -> str:
        """The marker for one record of an answer, or nothing."""

    def is_labelled(self, kind: str) -> bool:
        """True when a record of this kind may carry a label, so that it could be withheld."""


def withhold_items(answer: Any, policy: WithholdingPolicy) -> Any:
    """The answer with the values of every record in it withheld for which `policy` gives a marker.

    An answer in which nothing is withheld is returned as it is, not copied.
    """
    if isinstance(answer, tuple):
        kind = getattr(answer[0], "KIND", "") if answer else ""
        if kind and not policy.is_labelled(kind):
            return answer
        shown_items = [withhold_items(item, policy) for item in answer]
        return answer if all(map(_is_same_object, shown_items, answer)) else tuple(shown_items)
    if not is_dataclass(answer) or isinstance(answer, (type, *_ALWAYS_SHOWN_TYPES)):
        return answer
    shape = _get_shape(type(answer))
    if shape.about:
        marker = policy(getattr(answer, shape.about), answer)
        return withhold_values(answer, marker) if marker else answer
    if not shape.holds_items:
        return answer
    changes: dict[str, Any] = {}
    for field in shape.fields:
        value = getattr(answer, field.name)
        if isinstance(value, tuple) or is_dataclass(value):
            shown = withhold_items(value, policy)
            if shown is not value:
                changes[field.name] = shown
    return replace(answer, **changes) if changes else answer


def withhold_texts(body: dict[str, Any], *, by_person: bool) -> dict[str, Any]:
    """The body of an event about a labelled record without texts and measurements of it."""
    withheld_names = PERSON_TEXT_FIELDS if by_person else PERSON_TEXT_FIELDS | REASON_FIELDS
    return {name: WITHHELD_TEXT if name in withheld_names and value else value for name, value in body.items()}


def _is_same_object(left: object, right: object) -> bool:
    return left is right


def _show_structure(value: Any, marker: str) -> Any:
    """A declared field: its texts and numbers are structure, the objects in it say for themselves what is."""
    if isinstance(value, tuple):
        return tuple([_show_structure(item, marker) for item in value])
    if is_dataclass(value) and not isinstance(value, _ALWAYS_SHOWN_TYPES):
        return withhold_values(value, marker)
    return value


def _blank_value(field: Field[Any], value: Any) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    if isinstance(value, Mapping):
        return {}
    if isinstance(value, bool | int | float | str | tuple):
        return type(value)()
    if value is None:
        return None
    raise TypeError(f"{field.name} holds {type(value).__name__}, which has no blank: give it a default")
