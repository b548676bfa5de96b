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
from falaj.govern.records import Regime

ID = re.compile(r"[A-Z][A-Z0-9-]{1,31}")
JURISDICTION = re.compile(r"[A-Z]{2}(-[A-Z0-9]{2,8})?")
OBLIGATIONS = frozenset({"encrypt", "notify_dpo", "retain_copy_in", "pseudonymise", "anonymise"})
CHOICES = {
    "status": frozenset({"in-force", "pending", "retired"}),
    "checked": frozenset({"primary", "secondary", "general"}),
    "localisation": frozenset({"conditional", "deny-abroad"}),
    "retain_from": frozenset({"creation", "end"}),
}
TIMER_STATUS = frozenset({"verified", "assumed", "pending"})
BASIS = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}")


def load_regimes(extra: str = "", now: float | None = None) -> dict[str, Regime]:
    """Every regime in effect, by id and by alias: the shipped profiles, then those of the folder `extra`."""
    today = (datetime.now(UTC) if now is None else datetime.fromtimestamp(now, UTC)).date().isoformat()
    found = [*_shipped()]
    if extra:
        found += [read_regime(_text(path), path.name) for path in _folder(extra)]
    return _by_name(_newest(found, today))


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


def read_regime(text: str, name: str = "profile") -> Regime:
    """One profile from its TOML, every field checked, or Invalid saying which one is wrong."""
    import tomllib

    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the regime profile {name} is not TOML: {error}", "correct that line") from error
    for basis, body in _table(tree, "bases").items():
        body.setdefault("id", basis)
    try:
        regime = msgspec.convert(tree, Regime, strict=True)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"the regime profile {name} does not fit: {error}", "compare it with a shipped profile"
        ) from error
    problems = [*_unknown(tree), *_problems(regime)]
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
    folder = Path(__file__).parent / "profiles"
    return tuple(read_regime(_text(item), item.name) for item in sorted(folder.glob("*.toml")))


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
    known = {"": Regime.__slots__, "bases": ("id", "title", "documents", "obligations", "checked")}
    known["timers"] = ("hours", "status", "extend_hours", "note")
    extra = [f"there is no field {name}" for name in tree if name not in known[""]]
    for part in ("bases", "timers"):
        for name, body in _table(tree, part).items():
            extra += [f"there is no field {part}.{name}.{field}" for field in body if field not in known[part]]
    return extra


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
    if not regime.sources or regime.version < 1 or regime.min_retain_s < 0:
        found.append("sources, a version from 1 and a retention from 0 are needed")
    found += _basis_problems(regime)
    found += [
        f"the timer {name}"
        for name, t in regime.timers.items()
        if t.hours <= 0 or t.extend_hours < 0 or t.status not in TIMER_STATUS
    ]
    return found


def _basis_problems(regime: Regime) -> list[str]:
    found = [f"usual {regime.usual!r}"] if regime.usual and regime.usual not in regime.bases else []
    for name, basis in regime.bases.items():
        if basis.id != name or not BASIS.fullmatch(name) or basis.checked not in CHOICES["checked"]:
            found.append(f"the basis {name!r}")
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
