"""Texts of people on the pages of experiments: notes in a small part of Markdown, tags, and words of filters."""

import re
from collections.abc import Iterator, Mapping

from falaj.console.markup import Html, h, join
from falaj.console.parts import tag

NOTE = "mlflow.note.content"
LONGEST_NOTE = 20_000
_HEAD = re.compile(r"(#{1,6})\s+(.*)")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)])\s+(.*)")
_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*")


def note(text: str) -> Html:
    """Headings, lists, code and emphasis; everything else, links and markup too, is text."""
    return h.div(list(_blocks(text[:LONGEST_NOTE].splitlines())), class_="note", dir="auto")


def tags(given: Mapping[str, str], most: int = 4) -> Html:
    """The first few tags that are not a client's own."""
    own = [(key, value) for key, value in given.items() if not key.startswith("mlflow.")]
    return join([tag(f"{key}: {value}"[:60]) for key, value in own[:most]], "…" if len(own) > most else None)


def like(text: str) -> str:
    """A text that a title has in it, as filters write it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'%{escaped}%'"


def _blocks(lines: list[str]) -> Iterator[Html]:
    at = 0
    while at < len(lines):
        begun = at
        if lines[at].startswith("```"):
            at = next((n for n in range(at + 1, len(lines)) if lines[n].startswith("```")), len(lines))
            yield h.pre(h.code("\n".join(lines[begun + 1 : at])), tabindex="0")
            at += 1
        elif head := _HEAD.fullmatch(lines[at].rstrip()):
            # The page has its own headings above: a note's begin below them.
            yield h.p(h.strong(_inline(head[2])), class_=f"note-{min(len(head[1]), 3)}")
            at += 1
        elif _ITEM.fullmatch(lines[at]):
            at = next((n for n in range(at, len(lines)) if not _ITEM.fullmatch(lines[n])), len(lines))
            yield h.ul([h.li(_inline(found[1])) for line in lines[begun:at] if (found := _ITEM.fullmatch(line))])
        else:
            at = next((n for n in range(at, len(lines)) if not lines[n].strip() or _begins(lines[n])), len(lines))
            if at > begun:
                yield h.p(_inline(" ".join(line.strip() for line in lines[begun:at])))
            at = max(at, begun + 1) if at == begun else at


def _begins(line: str) -> bool:
    return bool(line.startswith("```") or _HEAD.fullmatch(line.rstrip()) or _ITEM.fullmatch(line))


def _inline(text: str) -> Html:
    made: list[Html | str] = []
    at = 0
    for found in _INLINE.finditer(text):
        code, strong, soft = found.groups()
        made += [text[at : found.start()], h.code(code) if code else h.strong(strong) if strong else h.em(soft)]
        at = found.end()
    return join(made, text[at:])
