"""Outcome: what a verb gave back, shown once, such as a new token."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from falaj.console.markup import Html, h
from falaj.console.page import Page
from falaj.console.pages import teller
from falaj.console.parts import facts
from falaj.console.view import View


def outcome(view: View, title: str, value: Any, back: str) -> Page:
    """The result as a page: as the desk's own pages tell it, or field by field."""
    tell = teller(*title.split(" ", 1))
    if tell is not None:
        return tell(view, value, back)
    go = h.p(h.a(view.t("console.go_back"), href=back, class_="button"))
    return Page(title, h.div(shown(value), go))


def shown(value: Any, depth: int = 0) -> Html:
    """Records as names and values, lists as lists, all else as machine text."""
    if is_dataclass(value) and not isinstance(value, type):
        return facts([(one.name, shown(getattr(value, one.name), depth + 1)) for one in fields(value)])
    if isinstance(value, Mapping):
        return facts([(str(key), shown(one, depth + 1)) for key, one in value.items()])
    if isinstance(value, (tuple, list, set, frozenset)) and depth < 6:
        return h.ul([h.li(shown(one, depth + 1)) for one in list(value)[:200]])
    return h.code(value, dir="ltr")
