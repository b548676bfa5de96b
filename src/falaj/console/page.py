"""Pages: what a page function gives back, where pages are, and which page belongs to a thing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from falaj.console.markup import Html
from falaj.core.errors import FalajError
from falaj.core.ref import Ref

if TYPE_CHECKING:
    from falaj.console.view import View

ROOT = "/console"
_ROOMS = {
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
class Data:
    """An answer for a script of ours: plain values, sent as JSON."""

    value: Any


@dataclass(frozen=True, slots=True)
class File:
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


Made = Page | Data | File


@dataclass(frozen=True, slots=True)
class Route:
    """Where a page is. `<ref>` stands for the two pieces of a reference, another `<name>` for one piece."""

    pattern: str
    make: "Callable[[View], Made]"
    walk: tuple[str, ...] = ()
    """Addresses of it, below /console, that exist on the test ground."""
    takes: bool = False
    """A form may be sent to it: `view.form`, which has passed the check that a page of ours made it."""

    @property
    def room(self) -> str:
        """The room it belongs to."""
        return self.pattern.partition("/")[0] or "home"

    def match(self, pieces: list[str]) -> dict[str, str] | None:
        """What the pieces of a path mean here, or None."""
        wanted = [] if not self.pattern else self.pattern.split("/")
        if len(wanted) + wanted.count("<ref>") != len(pieces):
            return None
        found, at = dict[str, str](), 0
        for part in wanted:
            took = 2 if part == "<ref>" else 1
            given = "/".join(pieces[at : at + took])
            at += took
            if part.startswith("<"):
                if part == "<ref>" and not _is_ref(given):
                    return None
                found[part.strip("<>")] = given
            elif part != given:
                return None
        return found


def address(path: str, query: Mapping[str, object] | None = None) -> str:
    """An address of the console."""
    asked = {key: value for key, value in (query or {}).items() if value not in ("", None)}
    whole = f"{ROOT}/{quote(path, safe='/:@')}" if path else ROOT
    return f"{whole}?{urlencode(asked, doseq=True)}" if asked else whole


def href(ref: Ref | str, **query: object) -> str:
    """The page of a thing; a kind without pages of its own is looked up in the log."""
    known = ref if isinstance(ref, Ref) else Ref.parse(ref)
    room = _ROOMS.get(known.kind)
    return address(f"{room}/{known}", query) if room else address("audit", {"about": str(known)})


def _is_ref(given: str) -> bool:
    try:
        Ref.parse(given)
    except FalajError:
        return False
    return True
