"""Markup: HTML as values. Text is escaped when it enters, so what a stranger named cannot become part of a page."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from html import escape
from typing import Any, Protocol

_PLACEHOLDER = re.compile(r"<!--late (\d+)-->")
_VOID_ELEMENTS = frozenset({"br", "col", "hr", "img", "input", "link", "meta", "wbr"})
# C0 and C1 controls mean nothing in HTML; the marks that turn the direction of what follows would let one name rewrite
# its neighbours. They are shown as what they are.
_ESCAPED_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), 11, 12, *range(14, 32), *range(127, 160))} | {
    code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)
}

_SPECIAL_CHARACTERS = re.compile(f"[&<>\"'{re.escape(''.join(map(chr, _ESCAPED_CONTROLS)))}]")


class Html(str):
    """Markup that is safe to send: made by this module, or out of others of its kind."""

    __slots__ = ()

    def __html__(self) -> "Html":
        return self


EMPTY = Html("")


class ElementFunction(Protocol):
    """`div("text", other, class_="wide")`: children in order, attributes by name."""

    def __call__(self, *children: Any, **attributes: Any) -> Html: ...


def escape_text(value: object) -> Html:
    """A value as text of a page."""
    if isinstance(value, Html):
        return value
    plain_text = str(value)
    # Most of a page has nothing to escape, and looking costs a quarter of doing.
    return Html(
        escape(plain_text.translate(_ESCAPED_CONTROLS)) if _SPECIAL_CHARACTERS.search(plain_text) else plain_text
    )


def join_html(*children: Any) -> Html:
    """Children one after the other; None and False are nothing, lists are their items."""
    return Html("".join(_flatten_children(children)))


def create_element(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element. `class_` and `for_` lose their underscore, `data_live` is `data-live`; True is a bare attribute, and
    None and False are none."""
    attributes_html = "".join(
        _render_attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _VOID_ELEMENTS and not children:
        return Html(f"<{name}{attributes_html}>")
    return Html(f"<{name}{attributes_html}>{''.join(_flatten_children(children))}</{name}>")


def _render_attribute(key: str, value: Any) -> str:
    name = _to_attribute_name(key)
    if name in ("href", "src", "action", "formaction") and not _is_local_address(str(value)):
        raise ValueError(f"{name} leads away from the console: {value!r:.80}")
    # Markup as a value keeps its escapes; its own quotes must not end the attribute.
    return f" {name}" if value is True else f' {name}="{escape_text(value).replace(chr(34), "&quot;")}"'


@cache
def _to_attribute_name(key: str) -> str:
    name = key.rstrip("_").replace("_", "-")
    # A page has no inline style or script (Content-Security-Policy): writing one here would be silently dropped there.
    if name == "style" or name.startswith("on"):
        raise ValueError(f"{name} is not allowed in a page: use a class, or a data- attribute and a script of ours")
    return name


def make_placeholder(number: int) -> Html:
    """A place in a page for what is known at its end. Text has no bare `<`: nobody else can write this."""
    return Html(f"<!--late {int(number)}-->")


def fill_placeholders(body: Html, replacements: Sequence[Html]) -> Html:
    """The page with everything in its place."""
    return Html(_PLACEHOLDER.sub(lambda match: replacements[int(match[1])], body)) if replacements else body


def _is_local_address(address: str) -> bool:
    return address.startswith(("/", "#", "?")) and not address.startswith(("//", "/\\"))


def _flatten_children(children: Iterable[Any]) -> Iterable[str]:
    for child in children:
        if child is None or child is False:
            continue
        if isinstance(child, (list, tuple)) or hasattr(child, "__next__"):
            yield from _flatten_children(child)
        else:
            yield escape_text(child)


class ElementBuilder:
    """`h.div(…)`: an element by its name."""

    def __getattr__(self, name: str) -> ElementFunction:
        element_function: Callable[..., Html] = partial(create_element, name)
        setattr(self, name, element_function)
        return element_function


h = ElementBuilder()
