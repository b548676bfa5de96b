"""Printable documents: typed content, dates in words, and a renderer to one self-contained HTML page.

A document is data (`records.py`); `render_document` turns it into HTML that a browser prints as a paged document with
running headers, page numbers and a table of contents. The renderer reads no clock and fetches nothing, so the same data
gives the same bytes. What a document says about the law or a person is the business of the package that builds it.
"""

from falaj.core.documents.dates import (
    describe_date,
    describe_day,
    describe_duration,
    describe_moment,
    describe_period,
    find_time_zone,
)
from falaj.core.documents.records import (
    BulletList,
    ContactPerson,
    Document,
    IssuingOrganisation,
    KeyValues,
    Paragraph,
    PeopleList,
    Section,
    SignatureLines,
    Table,
    TableCell,
)
from falaj.core.documents.render import render_document, render_documents

__all__ = [
    "BulletList",
    "ContactPerson",
    "Document",
    "IssuingOrganisation",
    "KeyValues",
    "Paragraph",
    "PeopleList",
    "Section",
    "SignatureLines",
    "Table",
    "TableCell",
    "describe_date",
    "describe_day",
    "describe_duration",
    "describe_moment",
    "describe_period",
    "find_time_zone",
    "render_document",
    "render_documents",
]
