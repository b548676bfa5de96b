"""Printing for tests: HTML to PDF in the real Chromium, and the PDF's text and pictures page by page."""

import subprocess
import unicodedata
from pathlib import Path

import pytest

from tests.servers.browser import program
from tests.servers.process import Missing

_ARGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", "--disable-background-networking")


def print_pdf(html: Path, pdf: Path) -> Path:
    """Print a page as the browser's "save as PDF" does; skip where there is no Chromium."""
    try:
        chromium = program()
    except Missing as reason:
        pytest.skip(str(reason))
    profile = pdf.with_suffix(".profile")
    command = [chromium, *_ARGS, f"--user-data-dir={profile}", f"--print-to-pdf={pdf}", html.as_uri()]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=90)
    assert pdf.is_file(), result.stderr[-2000:]
    return pdf


def read_pages(pdf: Path) -> list[str]:
    """Return the text of each page; Arabic presentation forms are folded to letters."""
    document = pytest.importorskip("pypdfium2").PdfDocument(pdf)
    try:
        texts = [page.get_textpage().get_text_bounded() for page in document]
    finally:
        document.close()
    return [unicodedata.normalize("NFKC", text) for text in texts]


def shows_words(page: str, text: str) -> bool:
    """Tell whether a page has each word of a text. PDFium gives an Arabic word as it is read or as it is drawn."""
    return all(word in page or word[::-1] in page for word in text.split())


def draw_pages(pdf: Path, folder: Path, scale: float = 1.3) -> list[Path]:
    """Write each page as a PNG, to look at."""
    folder.mkdir(parents=True, exist_ok=True)
    document = pytest.importorskip("pypdfium2").PdfDocument(pdf)
    pictures = []
    for number, page in enumerate(document, start=1):
        picture = folder / f"{pdf.stem}-{number:02d}.png"
        page.render(scale=scale).to_pil().save(picture)
        pictures.append(picture)
    document.close()
    return pictures
