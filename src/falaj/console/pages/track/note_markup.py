"""Texts of people on the pages of experiments: notes in a small part of Markdown, tags, and words of filters."""

import re
from collections.abc import Iterator, Mapping

from falaj.console.components import tag
from falaj.console.markup import Html, h, join_html

NOTE_TAG = "mlflow.note.content"
MAX_NOTE_CHARACTERS = 20_000
_HEADING_PATTERN = re.compile(r"(#{1,6})\s+(.*)")
_ITEM_PATTERN = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)])\s+(.*)")
_INLINE_PATTERN = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*")


def render_note(note_text: str) -> Html:
    """Headings, lists, code and emphasis; everything else, links and markup too, is text."""
    return h.div(list(_render_blocks(note_text[:MAX_NOTE_CHARACTERS].splitlines())), class_="note", dir="auto")


def render_tags(tags: Mapping[str, str], max_tags: int = 4) -> Html:
    """The first few tags that are not a client's own."""
    own_tags = [(key, value) for key, value in tags.items() if not key.startswith("mlflow.")]
    return join_html(
        [tag(f"{key}: {value}"[:60]) for key, value in own_tags[:max_tags]], "…" if len(own_tags) > max_tags else None
    )


def quote_like_pattern(searched_text: str) -> str:
    """A text that a title has in it, as filters write it."""
    escaped = searched_text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'%{escaped}%'"


def _render_blocks(lines: list[str]) -> Iterator[Html]:
    line_index = 0
    while line_index < len(lines):
        block_start = line_index
        if lines[line_index].startswith("```"):
            line_index = next((n for n in range(line_index + 1, len(lines)) if lines[n].startswith("```")), len(lines))
            yield h.pre(h.code("\n".join(lines[block_start + 1 : line_index])), tabindex="0")
            line_index += 1
        elif heading_match := _HEADING_PATTERN.fullmatch(lines[line_index].rstrip()):
            # The page has its own headings above: a note's begin below them.
            yield h.p(h.strong(_render_inline(heading_match[2])), class_=f"note-{min(len(heading_match[1]), 3)}")
            line_index += 1
        elif _ITEM_PATTERN.fullmatch(lines[line_index]):
            line_index = next(
                (n for n in range(line_index, len(lines)) if not _ITEM_PATTERN.fullmatch(lines[n])), len(lines)
            )
            yield h.ul(
                [
                    h.li(_render_inline(item_match[1]))
                    for line in lines[block_start:line_index]
                    if (item_match := _ITEM_PATTERN.fullmatch(line))
                ]
            )
        else:
            line_index = next(
                (n for n in range(line_index, len(lines)) if not lines[n].strip() or _starts_block(lines[n])),
                len(lines),
            )
            if line_index > block_start:
                yield h.p(_render_inline(" ".join(line.strip() for line in lines[block_start:line_index])))
            line_index = max(line_index, block_start + 1) if line_index == block_start else line_index


def _starts_block(line: str) -> bool:
    return bool(line.startswith("```") or _HEADING_PATTERN.fullmatch(line.rstrip()) or _ITEM_PATTERN.fullmatch(line))


def _render_inline(line_text: str) -> Html:
    fragments: list[Html | str] = []
    position = 0
    for inline_match in _INLINE_PATTERN.finditer(line_text):
        code, strong, emphasized = inline_match.groups()
        fragments += [
            line_text[position : inline_match.start()],
            h.code(code) if code else h.strong(strong) if strong else h.em(emphasized),
        ]
        position = inline_match.end()
    return join_html(fragments, line_text[position:])
