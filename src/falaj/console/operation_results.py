"""Outcome: what a verb gave back, shown once, such as a new token."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from falaj.console.components import fact_list
from falaj.console.markup import Html, h
from falaj.console.page import Page
from falaj.console.page_view import PageView
from falaj.console.pages import find_result_renderer


def render_result_page(view: PageView, title: str, value: Any, back: str) -> Page:
    """The result as a page: as the desk's own pages tell it, or field by field."""
    render_result = find_result_renderer(*title.split(" ", 1))
    if render_result is not None:
        return render_result(view, value, back)
    back_link = h.p(h.a(view.t("console.go_back"), href=back, class_="button"))
    return Page(title, h.div(render_value(value), back_link))


def render_value(value: Any, depth: int = 0) -> Html:
    """Records as names and values, lists as lists, all else as machine text."""
    if is_dataclass(value) and not isinstance(value, type):
        return fact_list([(item.name, render_value(getattr(value, item.name), depth + 1)) for item in fields(value)])
    if isinstance(value, Mapping):
        return fact_list([(str(key), render_value(item, depth + 1)) for key, item in value.items()])
    if isinstance(value, (tuple, list, set, frozenset)) and depth < 6:
        return h.ul([h.li(render_value(item, depth + 1)) for item in list(value)[:200]])
    return h.code(value, dir="ltr")
