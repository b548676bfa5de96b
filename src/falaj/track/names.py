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

MAIN = "main"
"""The project of plain names."""
LONGEST = 500
_PROJECT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DIGESTED = re.compile(r".*--[0-9a-f]{20}")
_OTHER = re.compile(r"[^A-Za-z0-9._]+")


def full_name(text: str, workspace: str) -> str:
    """A client's text as every client knows it: plain names in a workspace belong to that project."""
    if not text.strip():
        raise Invalid("a name is empty", "give one")
    if len(text) > LONGEST:
        raise Invalid(f"a name of {len(text)} letters", f"stay below {LONGEST}")
    return text if workspace == MAIN or "/" in text else f"{workspace}/{text}"


def shown_name(full: str, workspace: str) -> str:
    """What a client in that workspace calls it, so that it finds it again."""
    project, _, rest = full.partition("/")
    return rest if project == workspace != MAIN and rest.strip() and "/" not in rest else full


def project_of(header: str) -> str:
    """The project that a client's workspace names; MLflow's own default is our main one."""
    if header in ("", "default"):
        return MAIN
    if not _PROJECT.fullmatch(header):
        raise Invalid(f"the workspace {header[:80]!r} is no project", "small letters, digits and ._- make one")
    return header


def ref_of(kind: str, full: str) -> Ref:
    """The reference of a text; the same for ever."""
    project, slash, name = full.partition("/")
    if not slash:
        project, name = MAIN, full
    elif not _PROJECT.fullmatch(project) or "/" in name or project == MAIN:
        project, name = MAIN, ""
    if _NAME.fullmatch(name) and not _DIGESTED.fullmatch(name):
        return Ref(kind, project, name)
    return Ref(kind, project, f"{_slug(full)}--{hashlib.sha256(full.encode()).hexdigest()[:20]}")


def name_of(ref: Ref) -> str:
    """The text of a reference that keeps no other."""
    return ref.name if ref.project == MAIN else f"{ref.project}/{ref.name}"


def is_digested(ref: Ref) -> bool:
    """True when only its record knows the text it stands for."""
    return _DIGESTED.fullmatch(ref.name) is not None


def check_model_name(text: str) -> None:
    """What MLflow asks of a model's name: clients write it into addresses. Only a project may stand before it."""
    project, slash, name = text.partition("/")
    rest = name if slash and _PROJECT.fullmatch(project) else text
    if "/" in rest or ":" in text or rest in ("", ".", "..") or any(ord(letter) < 32 for letter in text):
        raise Invalid(f"{text[:80]!r} is no name of a model", "no slash or colon; project/name names a project")


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return _OTHER.sub("-", plain).strip("-._")[:60].rstrip("-._") or "x"
