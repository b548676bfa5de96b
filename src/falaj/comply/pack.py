"""Evidence packs by regime: the log's own pack, and beside it what the desks know, judged control by control.

The log's part is made and signed by the platform (audit/pack.py) and goes through here unchanged. What is put beside it
is listed in `evidence.json`, bound to that part, and its digest is put into the log by `audit attest`: the proof of
that event, under a checkpoint the log signed, is the signature. So nobody has the log's key sign what it cannot know,
and whoever put it together stands in the log with their name.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from falaj.comply import summary
from falaj.comply.figures import figures_of, sources
from falaj.comply.gather import MISSING, SOURCES, Ground, Rows, plain
from falaj.comply.mapping import control_map, judge
from falaj.comply.records import ABSENT, NOT_APPLICABLE, PRESENT, ControlMap, Evidence, Judged
from falaj.comply.tally import Tally, unzipped, zip_stream
from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.errors import FalajError, Invalid
from falaj.desks import actions
from falaj.store.codec import to_plain, to_stable_json

FORMAT = "falaj-regime/1"
TRANSFERS = ("store.copy", "catalog.copy", "catalog.carry", "serve.pack", "zones.lower", "zones.revoke")
MOST_ENCLOSED = 16 << 20
NEVER = "9999-12-31T00:00:00+00:00"


@dataclass
class Case:
    """One pack on its way."""

    here: Here
    asked: ControlMap
    since: float
    until: float
    zone: str = ""
    enclosed: Mapping[str, bytes] = field(default_factory=dict)
    checkpoints: int = 0
    log_digest: str = ""
    origin: str = ""
    digest: str = ""
    controls: tuple[Judged, ...] = ()
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(self.since, self.until)


def build(
    here: Here,
    regime: str,
    out: Path,
    since: float = 0.0,
    until: float = 0.0,
    zone: str = "",
    enclose: Iterable[Path] = (),
) -> Evidence:
    """Make the pack of a period; `until` 0 is now. The same period of the same platform gives the same bytes."""
    asked = control_map(regime)
    case = Case(here, asked, since, _end(here, until, zone), zone, _read(enclose))
    size, partial = 0, out.with_name(out.name + ".part")
    with partial.open("wb") as file:
        for chunk in zip_stream(_entries(case)):
            size += file.write(chunk)
    partial.replace(out)
    by = {status: tuple(one.id for one in case.controls if one.status == status) for status in _STATUSES}
    return Evidence(
        asked.id, str(out), size, case.digest, case.tally.events, since, case.until,
        by[PRESENT], by[ABSENT], by[NOT_APPLICABLE], case.controls,
    )  # fmt: skip


_STATUSES = (PRESENT, ABSENT, NOT_APPLICABLE)


def _end(here: Here, until: float, zone: str) -> float:
    """A moment that is over: the asked one, or the newest checkpoint when the asked one is still to come."""
    newest = here.audit.seal(zone=zone)
    return min(until, float(newest.at)) if until else float(newest.at)


def _read(paths: Iterable[Path]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in paths:
        name = "enclosed-" + "".join(
            c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.name.lower()
        )
        if not path.is_file() or path.stat().st_size > MOST_ENCLOSED or len(name) > 64 or name in found:
            raise Invalid(f"{path.name[:60]} cannot be enclosed", "files of other names, at most 16 MiB each")
        found[name] = path.read_bytes()
    return found


def _entries(case: Case) -> Iterator[tuple[str, bytes]]:
    """The log's part as it comes, then the evidence, which has by then seen every event of it."""
    stream = case.here.audit.export(since=case.since, until=case.until, zone=case.zone)
    for name, data in unzipped(stream):
        if name.startswith("events/") and name.endswith(".jsonl"):
            case.tally.take(data)
        elif name == "checkpoints.jsonl":
            case.checkpoints = data.count(b"\n")
        elif name == "manifest.json":
            case.log_digest, case.origin = hashlib.sha256(data).hexdigest(), json.loads(data)["origin"]
        yield name, data
    made: dict[str, dict[str, str | int]] = {}
    for name, data in _evidence(case):
        made[f"evidence/{name}"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        yield f"evidence/{name}", data
    about = f"{case.asked.id}, {summary.day(case.since)} to {summary.day(case.until)}"
    told = _json({"about": about, "files": made, "format": FORMAT, "log": case.log_digest, "regime": case.asked.id})
    yield "evidence.json", told
    case.digest = f"sha256:{hashlib.sha256(told).hexdigest()}"
    proof = case.here.audit.attest(case.digest, f"evidence: {about}", zone=case.zone)
    yield "evidence.proof.json", _json(to_plain(proof))


def _evidence(case: Case) -> Iterator[tuple[str, bytes]]:
    ground = Ground(case.here)
    files: dict[str, Rows | None] = {name: ground.rows(name) for name in SOURCES} | _logged(case.tally)
    files["ropa.json"] = _ropa(case, ground)
    files["access.jsonl"] = _access(files, case.tally)
    figures = figures_of(files, case.tally, case.checkpoints, case.enclosed, case.until)
    why = {name: ground.missing[file] for name, file in sources().items() if file in ground.missing}
    case.controls = judge(case.asked, figures, why)
    yield "controls.json", to_stable_json({"controls": case.controls, "figures": figures, "map": case.asked})
    yield "acts.json", _json({"acts": case.tally.acts(), "events": case.tally.events})
    for name, rows in sorted(files.items()):
        if rows is not None:
            yield name, _written(name, rows)
    yield "missing.json", _json(ground.missing)
    yield from sorted(case.enclosed.items())
    yield from _summaries(case, ground)


def _logged(tally: Tally) -> dict[str, Rows | None]:
    """The files that are readings of the log."""
    groups, denied = actions(), tally.rows("guard.deny")
    for row in denied:
        row["transfer"] = groups.get(str(row["body"].get("action"))) == "move"
    moved = [row for row in tally.rows(*TRANSFERS) if row["body"].get("phase", "done") == "done"]
    return {
        "transfers.jsonl": moved,
        "denied.jsonl": denied,
        "promotions.jsonl": tally.rows("catalog.promote", "catalog.rollback"),
        "rotations.jsonl": tally.rows("keys.rotate", "keys.retire", "keys.end"),
        "drills.jsonl": [row for row in tally.rows("store.drill") if "phase" not in row["body"]],
        "accounts.jsonl": tally.rows(
            *("people.add", "people.change", "people.suspend", "people.remove", "people.revoke", "audit.answer"),
            *("people.code", "people.enroll", "people.enroll-again", "people.reset", "people.trust"),
        ),
    }


def _access(files: Mapping[str, Rows | None], tally: Tally) -> Rows | None:
    """Who has what, when they were last seen in the period, which roles opened no door, and what a review said."""
    people, answers = files.get("people.jsonl"), {row["person"]: row for row in files.get("answers.jsonl") or ()}
    if people is None:
        return None
    seen, used = tally.last_seen(), tally.roles_used()
    return [
        row
        | {"last_used": seen.get(row["name"], 0.0), "answer": answers.get(row["name"])}
        | {"unused_roles": sorted(set(row["roles"]) - used.get(row["name"], set()))}
        for row in people
    ]


def _ropa(case: Case, ground: Ground) -> Rows | None:
    """The record of processing. What was done stands in the log's own part and in acts.json, so it is not asked for."""
    try:
        found: dict[str, Any] = dict(case.here.privacy.ropa(case.asked.id, since=NEVER).record)
    except MISSING as error:
        ground.missing["ropa.json"] = error.message if isinstance(error, FalajError) else "no errand makes one"
        return None
    found.pop("activity", None)
    for name, passing in (("transfers", "state"), ("breaches", "overdue")):
        found[name] = [{key: value for key, value in row.items() if key != passing} for row in found[name]]
    return [found]


def _summaries(case: Case, ground: Ground) -> Iterator[tuple[str, bytes]]:
    try:
        regime = next((one for one in case.here.zones.regimes() if one.id == case.asked.id), None)
    except MISSING:
        regime = None
    facts = {"period": f"{summary.day(case.since)} … {summary.day(case.until)}", "log": case.origin}
    loose = summary.unverified(case.asked, regime, ground.missing)
    for language in ("ar", "en"):
        text = summary.markdown(language, case.asked, facts, case.controls, loose)
        yield f"summary.{language}.md", text.encode()
    yield "summary.html", summary.page(case.asked, facts, case.controls, loose).encode()


def _written(name: str, rows: Rows) -> bytes:
    lines = [_json(plain(row)) for row in rows]
    if name.endswith(".json"):
        return b"[" + b",\n".join(lines) + b"]\n"
    return b"".join(line + b"\n" for line in sorted(lines))


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
