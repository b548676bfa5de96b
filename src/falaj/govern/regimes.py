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
    DutyDeadline,
    LegalCitation,
    RegimeExemption,
    RetentionPeriod,
)
from falaj.govern.records import LegalRegime, TransferBasis

REGIME_ID_PATTERN = re.compile(r"[A-Z][A-Z0-9-]{1,31}")
JURISDICTION_PATTERN = re.compile(r"[A-Z]{2}(-[A-Z0-9]{2,8})?")
KNOWN_OBLIGATIONS = frozenset({"encrypt", "notify_dpo", "retain_copy_in", "pseudonymise", "anonymise"})
FIELD_CHOICES = {
    "status": frozenset({"in-force", "pending", "retired"}),
    "checked": frozenset(CHECK_LEVELS),
    "localisation": frozenset({"conditional", "deny-abroad"}),
}
BASIS_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}")
CITED_FIELDS = ("effective_from", "localisation", "home", "lawful_bases", "special_categories", "record_contents")
"""Fields of a profile whose sources are under `citations`, since their values are plain words."""


def load_regimes(extra_folder: str = "", now: float | None = None) -> dict[str, LegalRegime]:
    """Every regime in effect, by id and by alias: the shipped profiles, then those of the folder `extra_folder`."""
    today = (datetime.now(UTC) if now is None else datetime.fromtimestamp(now, UTC)).date().isoformat()
    if not extra_folder:
        return _index_by_name(_select_newest(_load_shipped_regimes(), today))
    own_files = _list_profile_files(extra_folder)
    calendars = load_calendars(extra_folder)
    regimes = [
        read_regime(_read_profile_text(path), path.name, calendars) for path in (*_list_shipped_files(), *own_files)
    ]
    return _index_by_name(_select_newest(regimes, today))


class LazyRegimes(Mapping[str, LegalRegime]):
    """Every regime in effect. The shipped profiles are read when one is first asked for: most data has no regime.

    A folder of one's own is read at once, so that a mistake in it shows when the house is opened.
    """

    def __init__(self, extra_folder: str = "") -> None:
        self.loaded_regimes: dict[str, LegalRegime] | None = load_regimes(extra_folder) if extra_folder else None

    def __getitem__(self, name: str) -> LegalRegime:
        return self.load_all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.load_all())

    def __len__(self) -> int:
        return len(self.load_all())

    def load_all(self) -> dict[str, LegalRegime]:
        if self.loaded_regimes is None:
            self.loaded_regimes = load_regimes()
        return self.loaded_regimes


def read_regime(text: str, name: str = "profile", calendars: Mapping[str, Calendar] | None = None) -> LegalRegime:
    """Read one profile from its TOML and check every field; raise Invalid naming the wrong one."""
    import tomllib

    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the regime profile {name} is not TOML: {error}", "correct that line") from error
    for basis, body in _require_tables(tree, "bases").items():
        body.setdefault("id", basis)
    unknown_fields = _list_unknown_fields(tree)
    _resolve_calendar(tree, load_calendars() if calendars is None else calendars, name)
    _complete_citations(tree)
    try:
        regime = msgspec.convert(tree, LegalRegime, strict=True)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"the regime profile {name} does not fit: {error}", "compare it with a shipped profile"
        ) from error
    problems = [*unknown_fields, *_list_problems(regime)]
    if problems:
        raise Invalid(f"the regime profile {name} is wrong: {'; '.join(problems)}", "compare it with a shipped profile")
    return regime


def resolve_regime_ids(names: Iterable[str], regimes: Mapping[str, LegalRegime]) -> tuple[str, ...]:
    """The ids behind names and aliases, sorted, or Invalid for one that no profile describes."""
    regime_ids = set()
    for name in names:
        regime = regimes.get(name)
        if regime is None:
            known_ids = sorted({known_regime.id for known_regime in regimes.values()})
            raise Invalid(f"no profile describes the regime {name!r:.60}", f"known: {', '.join(known_ids)}")
        regime_ids.add(regime.id)
    return tuple(sorted(regime_ids))


@cache
def _load_shipped_regimes() -> tuple[LegalRegime, ...]:
    return tuple(read_regime(_read_profile_text(path), path.name) for path in _list_shipped_files())


def _list_shipped_files() -> list[Path]:
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
    for citation in _iterate_citations(tree):
        for name in ("reviewed_by", "reviewed_on", "review_by"):
            citation.setdefault(name, tree.get(name, ""))


def _iterate_citations(tree: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, value in tree.items():
        for table in value if isinstance(value, list) else (value,):
            if name == "citations" and isinstance(table, Mapping):
                yield from (citation for citation in table.values() if isinstance(citation, dict))
            elif isinstance(table, Mapping) and name != "calendar":
                if isinstance(table.get("source"), dict):
                    yield table["source"]
                yield from _iterate_citations(table)


def _list_profile_files(extra_folder: str) -> list[Path]:
    folder = Path(extra_folder).expanduser()
    if not folder.is_dir():
        raise Invalid("the folder of regime profiles in the setting `regimes` is absent", "make it, or unset it")
    return sorted(folder.glob("*.toml"))


def _read_profile_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"the regime profile {path.name} cannot be read", "check its permissions and encoding") from error


def _require_tables(tree: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    value = tree.get(name, {})
    if not isinstance(value, dict) or not all(isinstance(item, dict) for item in value.values()):
        raise Invalid(f"{name} of a regime profile must be tables", "compare it with a shipped profile")
    return value


def _list_unknown_fields(tree: Mapping[str, Any]) -> list[str]:
    fields_of_part = {"bases": TransferBasis.__slots__, "deadlines": DutyDeadline.__slots__}
    problems = [f"there is no field {name}" for name in tree if name not in LegalRegime.__slots__]
    for section, fields in fields_of_part.items():
        for name, body in _require_tables(tree, section).items():
            problems += [f"there is no field {section}.{name}.{field}" for field in body if field not in fields]
    retention = _read_mapping(tree, "retention")
    problems += [f"there is no field retention.{name}" for name in retention if name not in RetentionPeriod.__slots__]
    for exemption in tree.get("exemptions", ()):
        problems += [
            f"there is no field exemptions.{name}" for name in exemption if name not in RegimeExemption.__slots__
        ]
    for citation in _iterate_citations(tree):
        problems += [f"there is no field source.{name}" for name in citation if name not in LegalCitation.__slots__]
    return problems


def _read_mapping(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = tree.get(name, {})
    return value if isinstance(value, Mapping) else {}


def _list_problems(regime: LegalRegime) -> list[str]:
    """Everything that is wrong with a profile that has the right shape."""
    problems = [
        f"{name} {getattr(regime, name)!r}"
        for name, allowed in FIELD_CHOICES.items()
        if getattr(regime, name) not in allowed
    ]
    problems += [f"the name {name!r}" for name in (regime.id, *regime.aliases) if not REGIME_ID_PATTERN.fullmatch(name)]
    problems += [f"the day {day!r}" for day in (regime.effective_from, regime.review_by) if not _is_iso_date(day)]
    jurisdictions = (*regime.home, *regime.clearable, *regime.adequate)
    problems += [
        f"the jurisdiction {jurisdiction!r}"
        for jurisdiction in jurisdictions
        if not JURISDICTION_PATTERN.fullmatch(jurisdiction) and jurisdiction != "*"
    ]
    if (
        "*" in (*regime.clearable, *regime.adequate)
        or not regime.home
        or (("*" in regime.home) and len(regime.home) > 1)
    ):
        problems.append("home must be a list of jurisdictions, or `*` alone")
    if regime.localisation == "deny-abroad" and (regime.adequate or regime.clearable or "*" in regime.home):
        problems.append("a deny-abroad regime opens by its own grants only: no adequate, clearable or `*`")
    if not regime.sources or regime.version < 1:
        problems.append("sources and a version from 1 are needed")
    problems += _list_basis_problems(regime)
    problems += _list_retention_problems(regime.retention) if regime.retention else []
    for duty, deadline in regime.deadlines.items():
        problems += _list_deadline_problems(duty, deadline)
    for name, citation in regime.citations.items():
        problems += [] if name in CITED_FIELDS else [f"citations.{name}: expected one of {', '.join(CITED_FIELDS)}"]
        problems += _list_citation_problems(f"citations.{name}", citation)
    for exemption in regime.exemptions:
        problems += _list_citation_problems(f"exemptions.{exemption.id}", exemption.source)
        if not (exemption.regimes or exemption.categories or exemption.controllers):
            problems.append(f"exemptions.{exemption.id}: expected regimes, categories or controllers it holds for")
    return problems


def _list_deadline_problems(duty: str, deadline: DutyDeadline) -> list[str]:
    owner = f"deadlines.{duty}"
    problems = [] if duty in DUTIES else [f"{owner}: expected a duty, one of {', '.join(DUTIES)}"]
    if deadline.unit not in DEADLINE_UNITS:
        problems.append(f"{owner}.unit {deadline.unit!r}: expected {', '.join(DEADLINE_UNITS)}")
    needs_count = deadline.unit != AT_ONCE
    if (deadline.count > 0) != needs_count or deadline.extension < 0 or (deadline.extension and not needs_count):
        problems.append(f"{owner}.count {deadline.count}: expected a number above 0, or none with unit at-once")
    if not set(deadline.stops_for) <= set(STOP_REASONS):
        problems.append(f"{owner}.stops_for: expected {', '.join(STOP_REASONS)}")
    return problems + _list_citation_problems(owner, deadline.source)


def _list_retention_problems(retention: RetentionPeriod) -> list[str]:
    problems = [] if retention.count > 0 else [f"retention.count {retention.count}: expected a number above 0"]
    if retention.unit not in RETENTION_UNITS:
        problems.append(f"retention.unit {retention.unit!r}: expected {', '.join(RETENTION_UNITS)}")
    if retention.starts not in START_EVENTS:
        problems.append(f"retention.starts {retention.starts!r}: expected {', '.join(START_EVENTS)}")
    return problems + _list_citation_problems("retention", retention.source)


def _list_citation_problems(owner: str, citation: LegalCitation) -> list[str]:
    problems = [] if citation.checked in CHECK_LEVELS else [f"{owner}.source.checked {citation.checked!r}"]
    days = ((name, getattr(citation, name)) for name in ("reviewed_on", "review_by"))
    problems += [f"{owner}.source.{name}: the day {day!r}" for name, day in days if day and not _is_iso_date(day)]
    if citation.url and not citation.url.startswith("https://"):
        problems.append(f"{owner}.source.url {citation.url!r:.80}: expected an https address")
    return problems


def _list_basis_problems(regime: LegalRegime) -> list[str]:
    problems = [f"usual {regime.usual!r}"] if regime.usual and regime.usual not in regime.bases else []
    for name, basis in regime.bases.items():
        if basis.id != name or not BASIS_ID_PATTERN.fullmatch(name):
            problems.append(f"the basis {name!r}")
        problems += _list_citation_problems(f"bases.{name}", basis.source)
        if not basis.documents:
            problems.append(f"the basis {name!r} demands no document")
        problems += [
            f"the obligation {obligation!r} of {name!r}"
            for obligation in basis.obligations
            if obligation not in KNOWN_OBLIGATIONS
        ]
    return problems


def _is_iso_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _select_newest(regimes: Iterable[LegalRegime], today: str) -> list[LegalRegime]:
    newest_by_id: dict[str, LegalRegime] = {}
    seen_versions: set[tuple[str, int]] = set()
    for regime in regimes:
        if (regime.id, regime.version) in seen_versions:
            raise Invalid(f"version {regime.version} of the regime {regime.id} is described twice", "raise the version")
        seen_versions.add((regime.id, regime.version))
        if regime.effective_from <= today and regime.version > getattr(newest_by_id.get(regime.id), "version", 0):
            newest_by_id[regime.id] = regime
    return [regime for regime in newest_by_id.values() if regime.status != "retired"]


def _index_by_name(regimes: Iterable[LegalRegime]) -> dict[str, LegalRegime]:
    regimes_by_name: dict[str, LegalRegime] = {}
    for regime in regimes:
        for name in (regime.id, *regime.aliases):
            if name in regimes_by_name:
                raise Invalid(f"two regimes are called {name}", "an alias belongs to one regime")
            regimes_by_name[name] = regime
    return regimes_by_name
