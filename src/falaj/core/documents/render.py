"""Renders documents to one self-contained HTML page for screen and print.

Running headers and page numbers are CSS page margin boxes, one named page per document, so a browser's "print" or
"save as PDF" gives a paged document. The page has no script and no external resource; its policy forbids both.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path

from falaj.core.documents.records import (
    BulletList,
    ContactPerson,
    Document,
    DocumentBlock,
    KeyValues,
    Paragraph,
    PeopleList,
    Section,
    SignatureLines,
    Table,
    TableCell,
)

_WORDS = {
    "en": {"number": "Document no.", "period": "Period", "contents": "Contents", "page": "Page", "of": "of",
           "name": "Name", "role": "Role", "contact": "Contact", "signature": "Signature", "date": "Date"},
    "ar": {"number": "رقم الوثيقة", "period": "الفترة", "contents": "المحتويات", "page": "صفحة", "of": "من",
           "name": "الاسم", "role": "الصفة", "contact": "وسيلة الاتصال", "signature": "التوقيع", "date": "التاريخ"},
}  # fmt: skip
_ARABIC = re.compile("[\u0600-\u06ff]")
_LONG_WORD = re.compile(r"[!-~]{20,}")  # an identifier or digest: may break anywhere, so that a column stays narrow
_SHORT_NAME = re.compile(r"[!-~]{1,19}")  # AE-PDPL, +04:00: never broken at its hyphen or sign
# A run of Latin words, numbers and identifiers inside right-to-left text: isolated, so that its parts keep their order.
_LATIN_RUN = re.compile(r"[A-Za-z0-9+@/][!-~]*(?:[ ](?:\N{RIGHTWARDS ARROW} )?[(]?[A-Za-z0-9+@/][!-~]*)*")
_EMPTY = "\N{EN DASH}"
_TRAILING = ".,;:!?)"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_document(document: Document) -> str:
    """Return one document as a complete HTML page."""
    return render_documents((document,))


def render_documents(documents: Sequence[Document]) -> str:
    """Return several documents, such as one in two languages, as one HTML page; each begins on a new sheet."""
    first = documents[0]
    pages = "".join(_page_rules(f"d{index}", document) for index, document in enumerate(documents))
    articles = "\n".join(_render_article(f"d{index}", document) for index, document in enumerate(documents))
    return (
        f'<!doctype html>\n<html lang="{first.language}" dir="{_text_direction(first.language)}">\n<head>\n'
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(first.title)} {escape(first.number)}</title>\n<style>\n{_read_style()}{pages}</style>\n"
        f"</head>\n<body>\n{articles}\n</body>\n</html>\n"
    )


@cache
def _read_style() -> str:
    return Path(__file__).with_name("style.css").read_text(encoding="utf-8")


def _text_direction(language: str) -> str:
    return "rtl" if language == "ar" else "ltr"


def _page_rules(page: str, document: Document) -> str:
    """Return the margin boxes of one document: organisation and title above, number and page below."""
    words = _WORDS[document.language]
    direction = _text_direction(document.language)
    start, end = ("right", "left") if direction == "rtl" else ("left", "right")
    organisation = document.organisation.name_in(document.language)
    counter = f'"{words["page"]} " counter(page) " {words["of"]} " counter(pages)'
    boxes = [
        (f"top-{start}", _quote_css(organisation), start),
        (f"top-{end}", _quote_css(document.title), end),
        (f"bottom-{start}", _quote_css(document.number), start),
        (f"bottom-{end}", counter, end),
    ]
    rules = "".join(f"@{box}{{content:{text};text-align:{side};direction:{direction}}}\n" for box, text, side in boxes)
    return f"@page {page}{{\n{rules}}}\n#{page}{{page:{page}}}\n"


def _quote_css(text: str) -> str:
    """Return a CSS string; everything in ASCII that is no letter, digit or space becomes an escape."""
    safe = "".join(char if char.isalnum() or char == " " or ord(char) > 0xA0 else f"\\{ord(char):x} " for char in text)
    return f'"{safe}"'


def _render_article(page: str, document: Document) -> str:
    language = document.language
    head = [
        f'<p class="organisation">{_render_text(document.organisation.name_in(language), language)}</p>',
        f"<h1>{_render_text(document.title, language)}</h1>",
    ]
    if document.subtitle:
        head.append(f'<p class="subtitle">{_render_text(document.subtitle, language)}</p>')
    words = _WORDS[language]
    facts = [(words["number"], document.number), (words["period"], document.period), *document.facts]
    head.append(_render_pairs(tuple((label, text) for label, text in facts if text), language))
    if document.notice:
        head.append(f'<p class="box warning">{_render_text(document.notice, language)}</p>')
    contents = _render_contents(page, document) if document.contents and len(document.sections) > 1 else ""
    sections = "\n".join(
        _render_section(f"{page}-s{number}", number, section, language)
        for number, section in enumerate(document.sections, start=1)
    )
    return (
        f'<article id="{page}" lang="{language}" dir="{_text_direction(language)}">\n'
        f"<header>{''.join(head)}</header>\n{contents}{sections}\n</article>"
    )


def _render_contents(page: str, document: Document) -> str:
    items = "".join(
        f'<li><a href="#{page}-s{number}">{_render_text(section.title, document.language)}</a></li>'
        for number, section in enumerate(document.sections, start=1)
    )
    title = _WORDS[document.language]["contents"]
    return f'<nav aria-label="{title}"><p class="contents">{title}</p><ol>{items}</ol></nav>\n'


def _render_section(anchor: str, number: int, section: Section, language: str) -> str:
    blocks = "\n".join(_render_block(block, language) for block in section.blocks)
    return (
        f'<section id="{anchor}"><h2><span class="number">{number}.</span> '
        f"{_render_text(section.title, language)}</h2>\n{blocks}</section>"
    )


def _render_block(block: DocumentBlock, language: str) -> str:
    match block:
        case Paragraph():
            css = f' class="box {block.tone}"' if block.tone else ""
            lines = [line for line in block.text.splitlines() if line.strip()]
            return "".join(
                f"<p{css}{_direction_in(line, language)}>{_render_text(line, language)}</p>" for line in lines
            )
        case BulletList():
            if not block.items:
                return _render_empty(block.empty, language)
            return f"<ul>{''.join(f'<li>{_render_text(item, language)}</li>' for item in block.items)}</ul>"
        case KeyValues():
            return _render_pairs(block.pairs, language)
        case Table():
            return _render_table(block, language)
        case PeopleList():
            return _render_people(block, language)
        case SignatureLines():
            return f'<div class="signatures">{"".join(_render_signer(s, language) for s in block.signers)}</div>'


def _direction_in(text: str, language: str) -> str:
    """A paragraph without an Arabic letter in an Arabic document reads, and is aligned, from left to right."""
    is_foreign = language == "ar" and not _ARABIC.search(text) and any(char.isalpha() for char in text)
    return ' dir="ltr" lang="en"' if is_foreign else ""


def _render_empty(text: str, language: str) -> str:
    return f'<p class="empty">{_render_text(text, language)}</p>' if text else ""


def _render_pairs(pairs: Iterable[tuple[str, str]], language: str) -> str:
    rows = "".join(
        f"<tr><th scope='row'>{_render_text(label, language)}</th><td>{_render_text(text, language)}</td></tr>"
        for label, text in pairs
    )
    return f'<table class="pairs"><tbody>{rows}</tbody></table>' if rows else ""


def _render_table(table: Table, language: str) -> str:
    if not table.rows:
        return _render_empty(table.empty, language)
    caption = f"<caption>{_render_text(table.caption, language)}</caption>" if table.caption else ""
    head = "".join(f'<th scope="col">{_render_text(column, language)}</th>' for column in table.columns)
    rows = "".join(f"<tr>{''.join(_render_cell(cell, language) for cell in row)}</tr>\n" for row in table.rows)
    css = ' class="compact"' if table.compact else ""
    return f"<table{css}>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _render_cell(cell: str | TableCell, language: str) -> str:
    if isinstance(cell, str):
        return f"<td>{_render_text(cell, language)}</td>" if cell else f'<td class="muted">{_EMPTY}</td>'
    css = f' class="{cell.tone}"' if cell.tone else ""
    return f"<td{css}>{_render_text(cell.text, language)}</td>"


def _render_people(block: PeopleList, language: str) -> str:
    words = _WORDS[language]
    columns = (words["role"], words["name"], words["contact"])
    rows = tuple((person.role, person.name or _EMPTY, person.contact or _EMPTY) for person in block.people)
    return _render_table(Table(columns, rows, empty=block.empty), language)


def _render_signer(signer: ContactPerson, language: str) -> str:
    words = _WORDS[language]
    lines = "".join(
        f'<tr><th scope="row">{words[name]}</th><td class="line">{_render_text(text, language)}</td></tr>'
        for name, text in (("name", signer.name), ("signature", ""), ("date", ""))
    )
    return (
        f'<table class="signer"><caption>{_render_text(signer.role, language)}</caption><tbody>{lines}</tbody></table>'
    )


def _render_text(text: str, language: str) -> str:
    """Escape a text; in Arabic, isolate each run of Latin words so that punctuation stays on its own side."""
    clean = "".join(char for char in text if char.isprintable() or char in "\n\t")
    if language != "ar":
        return _escape_words(clean)
    if not _ARABIC.search(clean):  # also its last full stop belongs to the left-to-right text
        return f'<bdi dir="ltr">{_escape_words(clean)}</bdi>' if clean.strip() else escape(clean)
    parts, position = [], 0
    for run in _LATIN_RUN.finditer(clean):
        latin = run.group().rstrip("(")  # an opening bracket belongs to the Arabic text that follows it
        latin = latin.rstrip(_TRAILING if "(" not in latin else _TRAILING.replace(")", ""))
        if not latin:
            continue
        end = run.start() + len(latin)
        css = ' class="name"' if _SHORT_NAME.fullmatch(latin) else ""
        parts += [escape(clean[position : run.start()]), f'<bdi dir="ltr"{css}>{_escape_words(latin)}</bdi>']
        position = end
    return "".join([*parts, escape(clean[position:])])


def _escape_words(text: str) -> str:
    """Escape a text; a word too long for a column, such as a digest, may break anywhere."""
    parts, position = [], 0
    for word in _LONG_WORD.finditer(text):
        parts += [escape(text[position : word.start()]), f'<span class="long">{escape(word.group())}</span>']
        position = word.end()
    return "".join([*parts, escape(text[position:])])
