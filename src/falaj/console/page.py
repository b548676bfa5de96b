"""Pages: what a page function gives back, where pages are, and which page belongs to a thing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from falaj.console.markup import Html
from falaj.core.errors import FalajError
from falaj.core.ref import Ref

if TYPE_CHECKING:
    from falaj.console.page_view import PageView

ROOT_PATH = "/console"
_SECTION_BY_KIND = {
    **dict.fromkeys(("dataset", "model", "code"), "catalog"),
    **dict.fromkeys(("run", "experiment", "output", "trace"), "track"),
    **dict.fromkeys(("entity", "view", "service"), "features"),
    **dict.fromkeys(("flow", "turn", "schedule", "trigger", "hook", "knock"), "flows"),
    "job": "jobs",
    "sweep": "sweeps",
    "endpoint": "serve",
    "watch": "monitor",
    "queue": "queues",
    "cluster": "clusters",
    "person": "people",
    "policy": "policy",
    "zone": "zones",
    "grant": "zones",
    "approval": "approvals",
    **dict.fromkeys(("key", "secret"), "keys"),
    "event": "audit",
    "incident": "monitor",
}
"""The room whose page shows things of a kind."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its title, its body, and what keeps it up to date."""

    title: str | Html
    body: Html
    crumbs: tuple[tuple[str | Html, str], ...] = ()
    """(text, address) of what this page is part of, the room itself left out."""
    live: tuple[str, ...] = ()
    """The desks whose changes change this page."""
    every_s: float = 0.0
    """How often it is looked at again where no event tells: figures, progress. 0 is never."""
    scripts: tuple[str, ...] = ()
    """Files of static/ that this page needs beside the usual ones."""
    status: int = 200
    wide: bool = False


@dataclass(frozen=True, slots=True)
class JsonData:
    """An answer for a script of ours: plain values, sent as JSON."""

    value: Any


@dataclass(frozen=True, slots=True)
class FileDownload:
    """Bytes that a browser saves: nothing that came from elsewhere is ever shown by itself, but for pictures."""

    name: str
    body: bytes
    shown: bool = False
    """Show it where it stands, if it is a picture by its first bytes."""

    @property
    def picture(self) -> str:
        """The kind of picture that may be shown, or nothing. SVG is none: it is a program as well."""
        if self.shown and self.body.startswith(b"\x89PNG\r\n\x1a\n"):
            return "image/png"
        if self.shown and self.body.startswith(b"\xff\xd8\xff"):
            return "image/jpeg"
        return "image/webp" if self.shown and self.body[:4] + self.body[8:12] == b"RIFFWEBP" else ""


RouteResult = Page | JsonData | FileDownload


@dataclass(frozen=True, slots=True)
class PageRoute:
    """Where a page is. `<ref>` stands for the two pieces of a reference, another `<name>` for one piece."""

    pattern: str
    make: "Callable[[PageView], RouteResult]"
    walk: tuple[str, ...] = ()
    """Addresses of it, below /console, that exist on the test ground."""
    takes: bool = False
    """A form may be sent to it: `view.form`, which has passed the check that a page of ours made it."""

    @property
    def room(self) -> str:
        """The room it belongs to."""
        return self.pattern.partition("/")[0] or "home"

    def match(self, path_parts: list[str]) -> dict[str, str] | None:
        """What the pieces of a path mean here, or None."""
        pattern_parts = [] if not self.pattern else self.pattern.split("/")
        if len(pattern_parts) + pattern_parts.count("<ref>") != len(path_parts):
            return None
        path_params, position = dict[str, str](), 0
        for part in pattern_parts:
            part_count = 2 if part == "<ref>" else 1
            path_text = "/".join(path_parts[position : position + part_count])
            position += part_count
            if part.startswith("<"):
                if part == "<ref>" and not _is_ref(path_text):
                    return None
                path_params[part.strip("<>")] = path_text
            elif part != path_text:
                return None
        return path_params


def build_url(path: str, query: Mapping[str, object] | None = None) -> str:
    """An address of the console."""
    query_values = {key: value for key, value in (query or {}).items() if value not in ("", None)}
    full_path = f"{ROOT_PATH}/{quote(path, safe='/:@')}" if path else ROOT_PATH
    return f"{full_path}?{urlencode(query_values, doseq=True)}" if query_values else full_path


def build_resource_url(ref: Ref | str, **query: object) -> str:
    """The page of a thing; a kind without pages of its own is looked up in the log."""
    parsed_ref = ref if isinstance(ref, Ref) else Ref.parse(ref)
    section = _SECTION_BY_KIND.get(parsed_ref.kind)
    return build_url(f"{section}/{parsed_ref}", query) if section else build_url("audit", {"about": str(parsed_ref)})


def _is_ref(text: str) -> bool:
    try:
        Ref.parse(text)
    except FalajError:
        return False
    return True
