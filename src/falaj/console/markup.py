"""Markup: HTML as values. Text is escaped when it enters, so what a stranger named cannot become part of a page."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from html import escape
from typing import Any, Protocol

_LATE = re.compile(r"<!--late (\d+)-->")
_VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta", "wbr"})
# C0 and C1 controls mean nothing in HTML; the marks that turn the direction of what follows would let one name rewrite
# its neighbours. They are shown as what they are.
_ODD = {code: f"\\x{code:02x}" for code in (*range(9), 11, 12, *range(14, 32), *range(127, 160))} | {
    code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)
}

_NOTED = re.compile(f"[&<>\"'{re.escape(''.join(map(chr, _ODD)))}]")


class Html(str):
    """Markup that is safe to send: made by this module, or out of others of its kind."""

    __slots__ = ()

    def __html__(self) -> "Html":
        return self


EMPTY = Html("")


class Tag(Protocol):
    """`div("text", other, class_="wide")`: children in order, attributes by name."""

    def __call__(self, *children: Any, **attributes: Any) -> Html: ...


def text(value: object) -> Html:
    """A value as text of a page."""
    if isinstance(value, Html):
        return value
    plain = str(value)
    # Most of a page has nothing to escape, and looking costs a quarter of doing.
    return Html(escape(plain.translate(_ODD)) if _NOTED.search(plain) else plain)


def join(*children: Any) -> Html:
    """Children one after the other; None and False are nothing, lists are their items."""
    return Html("".join(_flat(children)))


def el(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element. `class_` and `for_` lose their underscore, `data_live` is `data-live`; True is a bare attribute, and
    None and False are none."""
    head = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _VOID and not children:
        return Html(f"<{name}{head}>")
    return Html(f"<{name}{head}>{''.join(_flat(children))}</{name}>")


def _attribute(key: str, value: Any) -> str:
    name = _name(key)
    if name in ("href", "src", "action", "formaction") and not _goes_home(str(value)):
        raise ValueError(f"{name} leads away from the console: {value!r:.80}")
    # Markup as a value keeps its escapes; its own quotes must not end the attribute.
    return f" {name}" if value is True else f' {name}="{text(value).replace(chr(34), "&quot;")}"'


@cache
def _name(key: str) -> str:
    name = key.rstrip("_").replace("_", "-")
    # A page has no inline style or script (Content-Security-Policy): writing one here would be silently dropped there.
    if name == "style" or name.startswith("on"):
        raise ValueError(f"{name} is not allowed in a page: use a class, or a data- attribute and a script of ours")
    return name


def late(number: int) -> Html:
    """A place in a page for what is known at its end. Text has no bare `<`: nobody else can write this."""
    return Html(f"<!--late {int(number)}-->")


def settled(body: Html, made: Sequence[Html]) -> Html:
    """The page with everything in its place."""
    return Html(_LATE.sub(lambda found: made[int(found[1])], body)) if made else body


def _goes_home(address: str) -> bool:
    return address.startswith(("/", "#", "?")) and not address.startswith(("//", "/\\"))


def _flat(children: Iterable[Any]) -> Iterable[str]:
    for child in children:
        if child is None or child is False:
            continue
        if isinstance(child, (list, tuple)) or hasattr(child, "__next__"):
            yield from _flat(child)
        else:
            yield text(child)


class Tags:
    """`h.div(…)`: an element by its name."""

    def __getattr__(self, name: str) -> Tag:
        made: Callable[..., Html] = partial(el, name)
        setattr(self, name, made)
        return made


h = Tags()
