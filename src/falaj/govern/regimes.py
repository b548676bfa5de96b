"""Regimes: laws as versioned data files, read strictly. Nothing about a law is a constant in code.

The shipped files are beside this module in `profiles/`. A folder of one's own (the setting `regimes`) may add a regime
or a newer version of one; the newest version already in effect counts. What no file describes is unknown, and unknown
is denied.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from falaj.core.errors import Invalid
from falaj.govern.legal_calendars import Calendar, load_calendars
from falaj.govern.legal_periods import (
    AT_ONCE,
    CHECK_LEVELS,
    DEADLINE_UNITS,
    DUTIES,
    RETENTION_UNITS,
    START_EVENTS,
    STOP_REASONS,
    Citation,
    Deadline,
    Exemption,
    Retention,
)
from falaj.govern.records import Basis, Regime

ID = re.compile(r"[A-Z][A-Z0-9-]{1,31}")
JURISDICTION = re.compile(r"[A-Z]{2}(-[A-Z0-9]{2,8})?")
OBLIGATIONS = frozenset({"encrypt", "notify_dpo", "retain_copy_in", "pseudonymise", "anonymise"})
CHOICES = {
    "status": frozenset({"in-force", "pending", "retired"}),
    "checked": frozenset(CHECK_LEVELS),
    "localisation": frozenset({"conditional", "deny-abroad"}),
}
BASIS = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}")
CITED_FIELDS = ("effective_from", "localisation", "home", "lawful_bases", "special_categories", "record_contents")
"""Fields of a profile whose sources are under `citations`, since their values are plain words."""


def load_regimes(extra: str = "", now: float | None = None) -> dict[str, Regime]:
    """Every regime in effect, by id and by alias: the shipped profiles, then those of the folder `extra`."""
    today = (datetime.now(UTC) if now is None else datetime.fromtimestamp(now, UTC)).date().isoformat()
    if not extra:
        return _by_name(_newest(_shipped(), today))
    own = _folder(extra)
    calendars = load_calendars(extra)
    regimes = [read_regime(_text(path), path.name, calendars) for path in (*_shipped_files(), *own)]
    return _by_name(_newest(regimes, today))


class Regimes(Mapping[str, Regime]):
    """Every regime in effect. The shipped profiles are read when one is first asked for: most data has no regime.

    A folder of one's own is read at once, so that a mistake in it shows when the house is opened.
    """

    def __init__(self, extra: str = "") -> None:
        self._found: dict[str, Regime] | None = load_regimes(extra) if extra else None

    def __getitem__(self, name: str) -> Regime:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, Regime]:
        if self._found is None:
            self._found = load_regimes()
        return self._found


def read_regime(text: str, name: str = "profile", calendars: Mapping[str, Calendar] | None = None) -> Regime:
    """Read one profile from its TOML and check every field; raise Invalid naming the wrong one."""
    import tomllib

    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the regime profile {name} is not TOML: {error}", "correct that line") from error
    for basis, body in _table(tree, "bases").items():
        body.setdefault("id", basis)
    unknown = _unknown(tree)
    _resolve_calendar(tree, load_calendars() if calendars is None else calendars, name)
    _complete_citations(tree)
    try:
        regime = msgspec.convert(tree, Regime, strict=True)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"the regime profile {name} does not fit: {error}", "compare it with a shipped profile"
        ) from error
    problems = [*unknown, *_problems(regime)]
    if problems:
        raise Invalid(f"the regime profile {name} is wrong: {'; '.join(problems)}", "compare it with a shipped profile")
    return regime


def canonical(names: Iterable[str], regimes: Mapping[str, Regime]) -> tuple[str, ...]:
    """The ids behind names and aliases, sorted, or Invalid for one that no profile describes."""
    found = set()
    for name in names:
        regime = regimes.get(name)
        if regime is None:
            known = sorted({r.id for r in regimes.values()})
            raise Invalid(f"no profile describes the regime {name!r:.60}", f"known: {', '.join(known)}")
        found.add(regime.id)
    return tuple(sorted(found))


@cache
def _shipped() -> tuple[Regime, ...]:
    return tuple(read_regime(_text(path), path.name) for path in _shipped_files())


def _shipped_files() -> list[Path]:
    return sorted((Path(__file__).parent / "profiles").glob("*.toml"))


def _resolve_calendar(tree: dict[str, Any], calendars: Mapping[str, Calendar], profile: str) -> None:
    """Replace the id of the profile's calendar by that calendar."""
    calendar_id = tree.get("calendar", "UTC")
    if calendar_id not in calendars:
        raise Invalid(
            f"the regime profile {profile} names the calendar {calendar_id!r:.40}, which does not exist",
            f"one of {', '.join(sorted(calendars))}, or add it in the folder `calendars` beside your profiles",
        )
    tree["calendar"] = msgspec.to_builtins(calendars[calendar_id])


def _complete_citations(tree: dict[str, Any]) -> None:
    """Give each citation that names no reviewer or review date those of the whole profile."""
    for citation in _citations(tree):
        for name in ("reviewed_by", "reviewed_on", "review_by"):
            citation.setdefault(name, tree.get(name, ""))


def _citations(tree: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, value in tree.items():
        for table in value if isinstance(value, list) else (value,):
            if name == "citations" and isinstance(table, Mapping):
                yield from (citation for citation in table.values() if isinstance(citation, dict))
            elif isinstance(table, Mapping) and name != "calendar":
                if isinstance(table.get("source"), dict):
                    yield table["source"]
                yield from _citations(table)


def _folder(extra: str) -> list[Path]:
    folder = Path(extra).expanduser()
    if not folder.is_dir():
        raise Invalid("the folder of regime profiles in the setting `regimes` is absent", "make it, or unset it")
    return sorted(folder.glob("*.toml"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"the regime profile {path.name} cannot be read", "check its permissions and encoding") from error


def _table(tree: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    value = tree.get(name, {})
    if not isinstance(value, dict) or not all(isinstance(item, dict) for item in value.values()):
        raise Invalid(f"{name} of a regime profile must be tables", "compare it with a shipped profile")
    return value


def _unknown(tree: Mapping[str, Any]) -> list[str]:
    fields_of_part = {"bases": Basis.__slots__, "deadlines": Deadline.__slots__}
    extra = [f"there is no field {name}" for name in tree if name not in Regime.__slots__]
    for part, fields in fields_of_part.items():
        for name, body in _table(tree, part).items():
            extra += [f"there is no field {part}.{name}.{field}" for field in body if field not in fields]
    retention = _tables(tree, "retention")
    extra += [f"there is no field retention.{name}" for name in retention if name not in Retention.__slots__]
    for exemption in tree.get("exemptions", ()):
        extra += [f"there is no field exemptions.{name}" for name in exemption if name not in Exemption.__slots__]
    for citation in _citations(tree):
        extra += [f"there is no field source.{name}" for name in citation if name not in Citation.__slots__]
    return extra


def _tables(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = tree.get(name, {})
    return value if isinstance(value, Mapping) else {}


def _problems(regime: Regime) -> list[str]:
    """Everything that is wrong with a profile that has the right shape."""
    found = [
        f"{name} {getattr(regime, name)!r}" for name, allowed in CHOICES.items() if getattr(regime, name) not in allowed
    ]
    found += [f"the name {name!r}" for name in (regime.id, *regime.aliases) if not ID.fullmatch(name)]
    found += [f"the day {day!r}" for day in (regime.effective_from, regime.review_by) if not _is_day(day)]
    places = (*regime.home, *regime.clearable, *regime.adequate)
    found += [f"the jurisdiction {place!r}" for place in places if not JURISDICTION.fullmatch(place) and place != "*"]
    if (
        "*" in (*regime.clearable, *regime.adequate)
        or not regime.home
        or (("*" in regime.home) and len(regime.home) > 1)
    ):
        found.append("home must be a list of jurisdictions, or `*` alone")
    if regime.localisation == "deny-abroad" and (regime.adequate or regime.clearable or "*" in regime.home):
        found.append("a deny-abroad regime opens by its own grants only: no adequate, clearable or `*`")
    if not regime.sources or regime.version < 1:
        found.append("sources and a version from 1 are needed")
    found += _basis_problems(regime)
    found += _retention_problems(regime.retention) if regime.retention else []
    for duty, deadline in regime.deadlines.items():
        found += _deadline_problems(duty, deadline)
    for name, citation in regime.citations.items():
        found += [] if name in CITED_FIELDS else [f"citations.{name}: expected one of {', '.join(CITED_FIELDS)}"]
        found += _citation_problems(f"citations.{name}", citation)
    for exemption in regime.exemptions:
        found += _citation_problems(f"exemptions.{exemption.id}", exemption.source)
        if not (exemption.regimes or exemption.categories or exemption.controllers):
            found.append(f"exemptions.{exemption.id}: expected regimes, categories or controllers it holds for")
    return found


def _deadline_problems(duty: str, deadline: Deadline) -> list[str]:
    owner = f"deadlines.{duty}"
    problems = [] if duty in DUTIES else [f"{owner}: expected a duty, one of {', '.join(DUTIES)}"]
    if deadline.unit not in DEADLINE_UNITS:
        problems.append(f"{owner}.unit {deadline.unit!r}: expected {', '.join(DEADLINE_UNITS)}")
    counted = deadline.unit != AT_ONCE
    if (deadline.count > 0) != counted or deadline.extension < 0 or (deadline.extension and not counted):
        problems.append(f"{owner}.count {deadline.count}: expected a number above 0, or none with unit at-once")
    if not set(deadline.stops_for) <= set(STOP_REASONS):
        problems.append(f"{owner}.stops_for: expected {', '.join(STOP_REASONS)}")
    return problems + _citation_problems(owner, deadline.source)


def _retention_problems(retention: Retention) -> list[str]:
    problems = [] if retention.count > 0 else [f"retention.count {retention.count}: expected a number above 0"]
    if retention.unit not in RETENTION_UNITS:
        problems.append(f"retention.unit {retention.unit!r}: expected {', '.join(RETENTION_UNITS)}")
    if retention.starts not in START_EVENTS:
        problems.append(f"retention.starts {retention.starts!r}: expected {', '.join(START_EVENTS)}")
    return problems + _citation_problems("retention", retention.source)


def _citation_problems(owner: str, citation: Citation) -> list[str]:
    problems = [] if citation.checked in CHECK_LEVELS else [f"{owner}.source.checked {citation.checked!r}"]
    days = ((name, getattr(citation, name)) for name in ("reviewed_on", "review_by"))
    problems += [f"{owner}.source.{name}: the day {day!r}" for name, day in days if day and not _is_day(day)]
    if citation.url and not citation.url.startswith("https://"):
        problems.append(f"{owner}.source.url {citation.url!r:.80}: expected an https address")
    return problems


def _basis_problems(regime: Regime) -> list[str]:
    found = [f"usual {regime.usual!r}"] if regime.usual and regime.usual not in regime.bases else []
    for name, basis in regime.bases.items():
        if basis.id != name or not BASIS.fullmatch(name):
            found.append(f"the basis {name!r}")
        found += _citation_problems(f"bases.{name}", basis.source)
        if not basis.documents:
            found.append(f"the basis {name!r} demands no document")
        found += [f"the obligation {o!r} of {name!r}" for o in basis.obligations if o not in OBLIGATIONS]
    return found


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _newest(found: Iterable[Regime], today: str) -> list[Regime]:
    chosen: dict[str, Regime] = {}
    seen: set[tuple[str, int]] = set()
    for regime in found:
        if (regime.id, regime.version) in seen:
            raise Invalid(f"version {regime.version} of the regime {regime.id} is described twice", "raise the version")
        seen.add((regime.id, regime.version))
        if regime.effective_from <= today and regime.version > getattr(chosen.get(regime.id), "version", 0):
            chosen[regime.id] = regime
    return [regime for regime in chosen.values() if regime.status != "retired"]


def _by_name(chosen: Iterable[Regime]) -> dict[str, Regime]:
    named: dict[str, Regime] = {}
    for regime in chosen:
        for name in (regime.id, *regime.aliases):
            if name in named:
                raise Invalid(f"two regimes are called {name}", "an alias belongs to one regime")
            named[name] = regime
    return named
