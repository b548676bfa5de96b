"""Files of a run: folders, a look into what is safe to look at, and everything else to be saved."""

import csv
import io
import json
from contextlib import suppress
from itertools import islice

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import File, address
from falaj.console.pages.track.texts import note
from falaj.console.view import View
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.track.records import Artifact

MOST_SAVED, MOST_SHOWN, MOST_LINES = 64 * 2**20, 65_536, 200
_PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def files(view: View, ref: Ref) -> Html:
    """One folder, and the file that is looked at."""
    t, path = view.t, view.query("path")
    found = view.here.track.artifacts(ref, path)
    chosen = next((one for one in view.here.track.artifacts(ref, path, deep=True) if one.path == path), None)
    folder = path.rpartition("/")[0] if chosen else path
    if chosen and folder != path:
        found = view.here.track.artifacts(ref, folder)
    if not found:
        return parts.empty(
            view, t("track.no_files"), t("track.no_files_hint"), f"falaj track attach {ref} report.md ./report.md"
        )
    rows = [parts.Row((_name(view, one), "" if one.folder else view.when(one.made_at), view.bytes(one.size_bytes),
                       "" if one.folder else _save(view, ref, one)), f"file-{one.path}") for one in found]  # fmt: skip
    heads = (t("console.file"), t("console.made"), parts.Column(t("console.size"), "n"), t("console.actions"))
    shown = (
        view.part(lambda: parts.card(h.bdi(chosen.path), _preview(view, ref, chosen), id="preview"))
        if chosen
        else EMPTY
    )
    return join(_trail(view, folder), parts.table(view, heads, rows, t("console.files")), shown)


def file(view: View, ref: Ref) -> File:
    """The bytes of one file."""
    path = view.query("path")
    whole = view.here.track.fetch(ref, path)
    if (whole.size or 0) > MOST_SAVED:
        raise Invalid(f"{path[:80]} is too large for a browser", f"falaj track fetch {ref} {path[:80]} --out FILE")
    return File(path.rpartition("/")[2], whole.read(), shown=view.query("show") == "1")


def _save(view: View, ref: Ref, one: Artifact) -> Html:
    return h.a(view.t("console.download"), href=address(f"track/{ref}/file", {"path": one.path}), download=True)


def _name(view: View, one: Artifact) -> Html:
    name = h.bdi(one.path.rpartition("/")[2], "/" if one.folder else "")
    return h.a(name, href=view.link(path=one.path), aria_current="true" if one.path == view.query("path") else None)


def _trail(view: View, folder: str) -> Html:
    if not folder:
        return EMPTY
    pieces = folder.split("/")
    steps = [h.a(h.bdi(piece), href=view.link(path="/".join(pieces[: n + 1]))) for n, piece in enumerate(pieces)]
    return h.p(h.a(view.t("console.files"), href=view.link(path="")), [(" / ", step) for step in steps], dir="auto")


def _preview(view: View, ref: Ref, one: Artifact) -> Html:
    """Pictures by a door that looks at their first bytes; text as text. Nothing that came from elsewhere is run."""
    name = one.path.lower()
    if name.endswith(_PICTURES):
        return h.img(src=address(f"track/{ref}/file", {"path": one.path, "show": "1"}), alt=one.path, class_="picture")
    head = view.here.track.fetch(ref, one.path, 0, MOST_SHOWN).read()
    try:
        said = head.decode("utf-8") if len(head) == one.size_bytes else head[:-4].decode("utf-8", "ignore")
    except UnicodeDecodeError:
        said = "\0"
    if "\0" in said:
        return h.p(view.t("track.no_preview"), class_="soft")
    cut = h.p(view.t("track.cut", shown=view.bytes(len(head))), class_="soft") if len(head) < one.size_bytes else None
    return join(told(view, name, said), cut)


def told(view: View, name: str, said: str) -> Html:
    """A text by what its name says it is."""
    if name.endswith((".md", ".markdown")):
        return note(said)
    if name.endswith((".csv", ".tsv")):
        rows = _rows(said, "\t" if name.endswith(".tsv") else ",")
        wide = max(map(len, rows), default=0)
        if rows and 0 < wide <= 100:
            full = [[h.bdi(cell) for cell in row] + [EMPTY] * (wide - len(row)) for row in rows]
            return parts.table(view, full[0], full[1:], view.t("console.file"))
    if name.endswith(".json"):
        with suppress(ValueError, RecursionError):  # else as it is
            said = json.dumps(json.loads(said), indent=2, ensure_ascii=False)
    return h.pre(h.code(said), tabindex="0", class_="log")


def _rows(said: str, between: str) -> list[list[str]]:
    try:
        return list(islice(csv.reader(io.StringIO(said), delimiter=between), MOST_LINES + 1))
    except csv.Error:
        return []
