"""A page as a tree, for tests that need no browser: strict about tags, small in what it can find."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta", "wbr"})
_PIECE = re.compile(r"([\w-]*)((?:[.#][\w:-]+|\[[\w-]+(?:=[^\]]*)?\])*)")


@dataclass
class Node:
    """An element: `node.all("td.n")`, `node.one("#main h2")`, `node.text`, `node["href"]`."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list["Node | str"] = field(default_factory=list)

    def __getitem__(self, name: str) -> str:
        return self.attributes.get(name, "")

    @property
    def text(self) -> str:
        """All its text, white space drawn together."""
        return " ".join("".join(self._texts()).split())

    def walk(self) -> Iterator["Node"]:
        """Itself and everything inside."""
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def all(self, selector: str) -> list["Node"]:
        """What fits: tag, .class, #id, [attribute=value], and descendants by a space."""
        found = [self]
        for piece in selector.split():
            found = list(
                {id(one): one for node in found for one in list(node.walk())[1:] if _fits(one, piece)}.values()
            )
        return found

    def one(self, selector: str) -> "Node":
        """The only one that fits."""
        found = self.all(selector)
        assert len(found) == 1, f"{len(found)} of {selector} in {self.text[:400]!r}"
        return found[0]

    def _texts(self) -> Iterator[str]:
        for child in self.children:
            if isinstance(child, str):
                yield child
            else:
                yield from child._texts()
                yield " " if child.tag in ("p", "td", "th", "tr", "li", "div", "dt", "dd", "h1", "h2", "h3") else ""


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("")
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Node(tag, {name: value or "" for name, value in attrs})
        assert len(made.attributes) == len(attrs), f"an attribute twice in <{tag}>: {attrs}"
        self._open[-1].children.append(made)
        if tag not in _VOID:
            self._open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def read(html: str) -> Node:
    """The tree of a page; that its tags do not fit together is a failure."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert len(reader._open) == 1, f"never closed: {[one.tag for one in reader._open[1:]]}"
    return reader.root


def _fits(node: Node, piece: str) -> bool:
    match = _PIECE.fullmatch(piece)
    assert match is not None, f"{piece} is too much for tests/console/dom.py"
    if match[1] and node.tag != match[1]:
        return False
    return all(_has(node, mark) for mark in re.findall(r"[.#][\w:-]+|\[[^\]]+\]", match[2]))


def _has(node: Node, mark: str) -> bool:
    if mark[0] == ".":
        return mark[1:] in node["class"].split()
    if mark[0] == "#":
        return node["id"] == mark[1:]
    name, equals, value = mark[1:-1].partition("=")
    return node[name] == value.strip("'\"") if equals else name in node.attributes
