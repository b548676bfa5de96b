"""Files of a run: folders, a look into what is safe to look at, and everything else to be saved."""

import csv
import io
import json
from contextlib import suppress
from itertools import islice

from falaj.console import components
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import FileDownload, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.track.note_markup import render_note
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.track.records import Artifact

MAX_DOWNLOAD_BYTES, MAX_PREVIEW_BYTES, MAX_PREVIEW_LINES = 64 * 2**20, 65_536, 200
_PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def render_files(view: PageView, ref: Ref) -> Html:
    """One folder, and the file that is looked at."""
    t, path = view.t, view.query("path")
    artifacts = view.here.track.artifacts(ref, path)
    chosen_artifact = next(
        (artifact for artifact in view.here.track.artifacts(ref, path, deep=True) if artifact.path == path), None
    )
    folder = path.rpartition("/")[0] if chosen_artifact else path
    if chosen_artifact and folder != path:
        artifacts = view.here.track.artifacts(ref, folder)
    if not artifacts:
        return components.empty_state(
            view, t("track.no_files"), t("track.no_files_hint"), f"falaj track attach {ref} report.md ./report.md"
        )
    rows = [
        components.TableRow(
            (
                _render_name_link(view, artifact),
                "" if artifact.folder else view.when(artifact.made_at),
                view.bytes(artifact.size_bytes),
                "" if artifact.folder else _render_download_link(view, ref, artifact),
            ),
            f"file-{artifact.path}",
        )
        for artifact in artifacts
    ]
    headers = (
        t("console.file"),
        t("console.made"),
        components.ColumnHeader(t("console.size"), "n"),
        t("console.actions"),
    )
    preview_card = (
        view.part(
            lambda: components.card(
                h.bdi(chosen_artifact.path), _render_preview(view, ref, chosen_artifact), id="preview"
            )
        )
        if chosen_artifact
        else EMPTY
    )
    return join_html(
        _render_folder_trail(view, folder), components.table(view, headers, rows, t("console.files")), preview_card
    )


def download_file(view: PageView, ref: Ref) -> FileDownload:
    """The bytes of one file."""
    path = view.query("path")
    stream = view.here.track.fetch(ref, path)
    if (stream.size or 0) > MAX_DOWNLOAD_BYTES:
        raise Invalid(f"{path[:80]} is too large for a browser", f"falaj track fetch {ref} {path[:80]} --out FILE")
    return FileDownload(path.rpartition("/")[2], stream.read(), shown=view.query("show") == "1")


def _render_download_link(view: PageView, ref: Ref, artifact: Artifact) -> Html:
    return h.a(view.t("console.download"), href=build_url(f"track/{ref}/file", {"path": artifact.path}), download=True)


def _render_name_link(view: PageView, artifact: Artifact) -> Html:
    name = h.bdi(artifact.path.rpartition("/")[2], "/" if artifact.folder else "")
    return h.a(
        name, href=view.link(path=artifact.path), aria_current="true" if artifact.path == view.query("path") else None
    )


def _render_folder_trail(view: PageView, folder: str) -> Html:
    if not folder:
        return EMPTY
    folder_names = folder.split("/")
    folder_links = [
        h.a(h.bdi(folder_name), href=view.link(path="/".join(folder_names[: depth + 1])))
        for depth, folder_name in enumerate(folder_names)
    ]
    return h.p(
        h.a(view.t("console.files"), href=view.link(path="")),
        [(" / ", folder_link) for folder_link in folder_links],
        dir="auto",
    )


def _render_preview(view: PageView, ref: Ref, artifact: Artifact) -> Html:
    """Pictures by a door that looks at their first bytes; text as text. Nothing that came from elsewhere is run."""
    name = artifact.path.lower()
    if name.endswith(_PICTURE_SUFFIXES):
        return h.img(
            src=build_url(f"track/{ref}/file", {"path": artifact.path, "show": "1"}),
            alt=artifact.path,
            class_="picture",
        )
    first_bytes = view.here.track.fetch(ref, artifact.path, 0, MAX_PREVIEW_BYTES).read()
    try:
        file_text = (
            first_bytes.decode("utf-8")
            if len(first_bytes) == artifact.size_bytes
            else first_bytes[:-4].decode("utf-8", "ignore")
        )
    except UnicodeDecodeError:
        file_text = "\0"
    if "\0" in file_text:
        return h.p(view.t("track.no_preview"), class_="soft")
    truncation_note = (
        h.p(view.t("track.cut", shown=view.bytes(len(first_bytes))), class_="soft")
        if len(first_bytes) < artifact.size_bytes
        else None
    )
    return join_html(render_text(view, name, file_text), truncation_note)


def render_text(view: PageView, name: str, file_text: str) -> Html:
    """A text by what its name says it is."""
    if name.endswith((".md", ".markdown")):
        return render_note(file_text)
    if name.endswith((".csv", ".tsv")):
        csv_rows = _parse_csv(file_text, "\t" if name.endswith(".tsv") else ",")
        num_columns = max(map(len, csv_rows), default=0)
        if csv_rows and 0 < num_columns <= 100:
            padded_rows = [[h.bdi(cell) for cell in row] + [EMPTY] * (num_columns - len(row)) for row in csv_rows]
            return components.table(view, padded_rows[0], padded_rows[1:], view.t("console.file"))
    if name.endswith(".json"):
        with suppress(ValueError, RecursionError):  # else as it is
            file_text = json.dumps(json.loads(file_text), indent=2, ensure_ascii=False)
    return h.pre(h.code(file_text), tabindex="0", class_="log")


def _parse_csv(file_text: str, delimiter: str) -> list[list[str]]:
    try:
        return list(islice(csv.reader(io.StringIO(file_text), delimiter=delimiter), MAX_PREVIEW_LINES + 1))
    except csv.Error:
        return []
