"""Names: MLflow calls experiments and models by any text, we by references. One text, one reference, both ways.

`fraud/churn` is the name churn in the project fraud, and a plain `churn` lies in the project `main`. A text that is no
name of ours becomes a readable slug and a digest of the whole text; the record keeps the text itself. So two texts
never meet in one reference: what looks like such a slug, and `main/…`, is digested too.
"""

import hashlib
import re
import unicodedata

from falaj.core.errors import Invalid
from falaj.core.ref import Ref

MAIN_PROJECT = "main"
"""The project of plain names."""
MAX_NAME_CHARS = 500
_PROJECT_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DIGESTED_PATTERN = re.compile(r".*--[0-9a-f]{20}")
_OTHER_CHARS = re.compile(r"[^A-Za-z0-9._]+")


def to_full_name(text: str, workspace: str) -> str:
    """A client's text as every client knows it: plain names in a workspace belong to that project."""
    if not text.strip():
        raise Invalid("a name is empty", "give one")
    if len(text) > MAX_NAME_CHARS:
        raise Invalid(f"a name of {len(text)} letters", f"stay below {MAX_NAME_CHARS}")
    return text if workspace == MAIN_PROJECT or "/" in text else f"{workspace}/{text}"


def to_shown_name(full_text: str, workspace: str) -> str:
    """What a client in that workspace calls it, so that it finds it again."""
    project, _, name_part = full_text.partition("/")
    return (
        name_part if project == workspace != MAIN_PROJECT and name_part.strip() and "/" not in name_part else full_text
    )


def parse_workspace(header: str) -> str:
    """The project that a client's workspace names; MLflow's own default is our main one."""
    if header in ("", "default"):
        return MAIN_PROJECT
    if not _PROJECT_PATTERN.fullmatch(header):
        raise Invalid(f"the workspace {header[:80]!r} is no project", "small letters, digits and ._- make one")
    return header


def to_reference(kind: str, full_text: str) -> Ref:
    """The reference of a text; the same for ever."""
    project, slash, name = full_text.partition("/")
    if not slash:
        project, name = MAIN_PROJECT, full_text
    elif not _PROJECT_PATTERN.fullmatch(project) or "/" in name or project == MAIN_PROJECT:
        project, name = MAIN_PROJECT, ""
    if _NAME_PATTERN.fullmatch(name) and not _DIGESTED_PATTERN.fullmatch(name):
        return Ref(kind, project, name)
    return Ref(kind, project, f"{_create_slug(full_text)}--{hashlib.sha256(full_text.encode()).hexdigest()[:20]}")


def to_text_name(ref: Ref) -> str:
    """The text of a reference that keeps no other."""
    return ref.name if ref.project == MAIN_PROJECT else f"{ref.project}/{ref.name}"


def is_digested(ref: Ref) -> bool:
    """True when only its record knows the text it stands for."""
    return _DIGESTED_PATTERN.fullmatch(ref.name) is not None


def check_model_name(text: str) -> None:
    """What MLflow asks of a model's name: clients write it into addresses. Only a project may stand before it."""
    project, slash, name = text.partition("/")
    name_part = name if slash and _PROJECT_PATTERN.fullmatch(project) else text
    if "/" in name_part or ":" in text or name_part in ("", ".", "..") or any(ord(letter) < 32 for letter in text):
        raise Invalid(f"{text[:80]!r} is no name of a model", "no slash or colon; project/name names a project")


def _create_slug(text: str) -> str:
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return _OTHER_CHARS.sub("-", ascii_text).strip("-._")[:60].rstrip("-._") or "x"
