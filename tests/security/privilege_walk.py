"""Random walks through every operation by people of three tenants, judged by a model that shares no code with policy.

`plant` fills one installation with canaries: texts that only some people may learn. A `Walk` opens a copy of it,
performs steps of (principal, operation, arguments) and searches every byte a principal receives for canaries that the
model says this principal may not learn. Identifiers seen in any answer are tried as arguments by everybody else.
"""

import contextlib
import dataclasses
import json
import random
import shutil
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from falaj.core.byte_stream import ByteStream
from falaj.core.errors import FalajError
from falaj.core.label import Label
from falaj.core.operation import list_operations
from falaj.core.ref import Ref
from falaj.server import LocalClient, Server, load_settings
from falaj.services import SERVICES, load_service_class
from falaj.store.codec import from_plain, to_json
from falaj.track.records import Metric
from tests.people import enroll, enroll_tenant

TENANTS = ("bank", "clinic", "shop")
ROLE_OF = {
    "admin": "tenant-admin",
    "steward": "data-steward",
    "scientist": "data-scientist",
    "engineer": "ml-engineer",
    "approver": "approver",
    "operator": "operator",
    "dpo": "dpo",
    "security": "security-officer",
    "auditor": "auditor",
    "abroad": "data-scientist",
    "visitor": "data-scientist",
}
"""The people of each tenant. `abroad` looks from the US; `visitor` belongs to another project than the data."""
READERS = {"data-steward", "data-scientist", "ml-engineer"}
PURPOSES = ("fraud", "marketing", "")
LABEL = "AE-PDPL,sensitive,purpose=fraud"
EXCLUDED = {"audit.watch", "people.exchange", "people.enroll", "agents.join"}
"""Operations that never return, or that are open to callers who have no account."""


@dataclasses.dataclass(frozen=True)
class Principal:
    """A person of a tenant, using the platform for a purpose."""

    tenant: str
    name: str
    purpose: str


@dataclasses.dataclass(frozen=True)
class Canary:
    """A text planted in one tenant, and the rule that says who may learn it."""

    tenant: str
    kind: str
    rule: str

    @property
    def text(self) -> str:
        return f"cnry{self.tenant}{self.kind}zq"


class LearningModel:
    """Who may learn which canary, kept up to date from the operations that succeeded."""

    def __init__(self) -> None:
        self._roles = {(tenant, name): {role} for tenant in TENANTS for name, role in ROLE_OF.items()}
        self._projects = {person: {"other"} if person[1] == "visitor" else {"*"} for person in self._roles}
        self._places = {person: "US" if person[1] == "abroad" else "AE" for person in self._roles}
        self._suspended: set[tuple[str, str]] = set()

    def may_learn(self, principal: Principal, canary: Canary) -> bool:
        """Whether this person may receive this text now."""
        person = (principal.tenant, principal.name)
        if principal.tenant != canary.tenant or person in self._suspended:
            return False
        roles = self._roles[person]
        in_project = bool(self._projects[person] & {"*", "fraud"})
        reads = bool(roles & READERS) and in_project
        if canary.rule == "labelled":
            return reads and self._places[person] == "AE" and principal.purpose == "fraud"
        if canary.rule == "values":
            return reads
        if canary.rule == "secret":
            return "security-officer" in roles
        return in_project if canary.rule == "metadata" else True

    def apply(self, principal: Principal, action: str, arguments: Mapping[str, Any]) -> None:
        """Follow an operation that succeeded."""
        person = (principal.tenant, str(arguments.get("name", "")))
        if person not in self._roles or not action.startswith("people."):
            return
        if action == "people.change":
            if arguments.get("roles") is not None:
                self._roles[person] = set(arguments["roles"])
            if arguments.get("projects") is not None:
                self._projects[person] = set(arguments["projects"])
            if arguments.get("jurisdiction") is not None:
                self._places[person] = arguments["jurisdiction"]
        elif action in ("people.suspend", "people.remove"):
            self._suspended.add(person)
        elif action == "people.resume":
            self._suspended.discard(person)


CANARIES = tuple(
    Canary(tenant, kind, rule)
    for tenant in TENANTS
    for kind, rule in (
        ("labelledblob", "labelled"),
        ("plainblob", "values"),
        ("labelledcell", "labelled"),
        ("plaincell", "metadata"),
        ("labelledparam", "labelled"),
        ("labelledtag", "labelled"),
        ("labelledmetric", "labelled"),
        ("plainparam", "metadata"),
        ("trace", "values"),
        ("secret", "secret"),
        ("description", "metadata"),
        ("reason", "tenant"),
        ("subject", "tenant"),
    )
)


@dataclasses.dataclass
class Planted:
    """The folder of an installation full of canaries, its people's tokens and the identifiers they may try."""

    home: Path
    tokens: dict[tuple[str, str], str]
    identifiers: list[str]
    settings: dict[str, str] = dataclasses.field(default_factory=lambda: {"zone": "ae-dubai"})

    def open(self, home: Path) -> Server:
        """The installation at `home`: this one, or a copy of its folder."""
        return Server(load_settings(str(home), self.settings))

    def copy_to(self, folder: Path) -> Path:
        """A copy of the installation's folder, which is closed and therefore consistent."""
        shutil.copytree(self.home, folder)
        return folder


def plant(home: Path, work: Path, **settings: str) -> Planted:
    """Make an installation with three tenants of the same shape, whose names collide and whose texts are canaries."""
    planted = Planted(home, {}, [])
    planted.settings.update(settings)
    house = planted.open(home)
    try:
        root = LocalClient(house, house.authenticate(house.bootstrap()))
        root.zones.add("eu-west", "IE-D", "IE", regimes=("EU-GDPR",), max_class=2, store=f"dir:{work}/eu-west")
        for tenant in TENANTS:
            planted.tokens[tenant, "admin"] = enroll_tenant(root, tenant, "admin")
            _add_people(house, tenant, planted)
            _plant_tenant(house, tenant, planted, work)
    finally:
        house.close()
    return planted


def _add_people(house: Server, tenant: str, planted: Planted) -> None:
    admin = LocalClient(house, house.authenticate(planted.tokens[tenant, "admin"]))
    for name, role in ROLE_OF.items():
        if name != "admin":
            place = "US" if name == "abroad" else "AE"
            projects = ("other",) if name == "visitor" else ("*",)
            planted.tokens[tenant, name] = enroll(admin, name, (role,), jurisdiction=place, projects=projects)


def _plant_tenant(house: Server, tenant: str, planted: Planted, work: Path) -> None:
    text_of = {canary.kind: canary.text for canary in CANARIES if canary.tenant == tenant}
    people = {
        name: LocalClient(house, house.authenticate(planted.tokens[tenant, name]), "fraud")
        for name in ("scientist", "engineer", "security", "dpo")
    }
    scientist = people["scientist"]
    scientist.store.put("blob:fraud/passport", text_of["labelledblob"].encode(), label=LABEL)
    scientist.store.put("blob:fraud/readme", text_of["plainblob"].encode())
    for name, kind, label in (("customers", "labelledcell", LABEL), ("shops", "plaincell", "")):
        table = work / f"{tenant}-{name}.csv"
        table.write_text(f"id,name\n1,{text_of[kind]}\n2,zz\n")
        scientist.catalog.publish(f"dataset:fraud/{name}", str(table), **({"label": label} if label else {}))
    scientist.catalog.describe("dataset:fraud/shops", about=text_of["description"])
    scientist.track.create("experiment:fraud/scoring", title="Scoring")
    labelled = scientist.track.start(
        "experiment:fraud/scoring",
        inputs={"data": Ref.parse("dataset:fraud/customers@v1")},
        params={"first": text_of["labelledparam"]},
        tags={"note": text_of["labelledtag"]},
    )
    scientist.track.log(labelled.ref, metrics=(Metric(text_of["labelledmetric"], 1.0),))
    plain = scientist.track.start("experiment:fraud/scoring", params={"depth": text_of["plainparam"]})
    trace_id = f"tr-{TENANTS.index(tenant):032x}"
    scientist.traces.record("experiment:fraud/scoring", trace_id, facts={"request": text_of["trace"]})
    people["security"].secrets.put("secret:fraud/password", text_of["secret"])
    scientist.approvals.ask("catalog.promote", "b3:" + "0" * 64, text_of["reason"])
    people["dpo"].privacy.ask("access", text_of["subject"])
    planted.identifiers += [str(labelled.ref), str(plain.ref), trace_id, f"trace:fraud/{trace_id}"]


class Walk:
    """One walk over a copy of a planted installation."""

    def __init__(self, planted: Planted, folder: Path) -> None:
        self._folder, self._tokens = folder, planted.tokens
        planted.copy_to(folder)
        self._house = planted.open(folder)
        self._model = LearningModel()
        self._identifiers = [*planted.identifiers, *NAMES]
        self.accepted = 0

    def close(self) -> None:
        """Close the installation and remove the copy."""
        self._house.close()
        shutil.rmtree(self._folder)

    def take_step(self, principal: Principal, action: str, seed: int) -> list[str]:
        """Perform one operation and return a line for each canary that the principal may not have received."""
        rng = random.Random(f"{action} {seed}")
        service, _, name = action.partition(".")
        arguments = {
            param.name: self._draw(rng, param.name, param.type)
            for param in list_operations(load_service_class(service))[name].params
            if param.required or rng.random() < 0.4
        }
        received, succeeded = self._call(principal, service, name, arguments)
        if succeeded:
            self.accepted += 1
            self._model.apply(principal, action, arguments)
        leaks = [
            f"{principal} received {canary.text} ({canary.rule}) from {action}({arguments})"
            for canary in CANARIES
            if canary.text in received and not self._model.may_learn(principal, canary)
        ]
        self._harvest(received)
        return leaks

    def _call(self, principal: Principal, service: str, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Everything the principal receives, as text, and whether the operation succeeded."""
        try:
            actor = self._house.authenticate(self._tokens[principal.tenant, principal.name])
            platform = LocalClient(self._house, actor, principal.purpose)
            types_of = {param.name: param.type for param in list_operations(load_service_class(service))[name].params}
            typed = {
                key: value if isinstance(value, bytes) else from_plain(types_of[key], value)
                for key, value in arguments.items()
            }
            result = getattr(getattr(platform, service), name)(**typed)
            received = _read_result(result)
            return received + self._follow_tickets(platform, received), True
        except FalajError as error:
            return f"{error.message} {error.hint} {error.ref}", False

    def _follow_tickets(self, platform: LocalClient, received: str) -> str:
        """The bytes that tickets in an answer open."""
        content = []
        for ticket in _find_tickets(received):
            for digest in {word for word in self._identifiers if word.startswith("b3:")}:
                with contextlib.suppress(FalajError):
                    content.append(b"".join(platform.bytes.get(ticket, digest)).decode(errors="replace"))
        return "".join(content)

    def _harvest(self, received: str) -> None:
        """Keep identifiers of an answer, so that others try them; never a canary itself."""
        for word in _words_in(received):
            if 6 <= len(word) <= 400 and "cnry" not in word and word not in self._identifiers:
                self._identifiers.append(word)
        del self._identifiers[: max(0, len(self._identifiers) - 400)]

    def _draw(self, rng: random.Random, name: str, kind: Any) -> Any:
        """A value for a parameter: mostly plausible by its name, sometimes anything of its type."""
        alternatives = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
        kind = next(option for option in alternatives if option is not type(None))
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin is tuple or origin is list:
            return origin(self._draw(rng, name, inner[0]) for _ in range(rng.choice((0, 1, 1, 2))))
        if origin is dict:
            return {rng.choice(WORDS): self._draw(rng, name, inner[1]) for _ in range(rng.choice((0, 1, 1, 2)))}
        if kind is Ref:
            return self._draw_reference(rng)
        if kind is Label:
            return rng.choice(LABELS)
        if kind is ByteStream:
            return b"some bytes"
        if kind in PLAIN_VALUES:
            return rng.choice(PLAIN_VALUES[kind])
        if dataclasses.is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            return {
                field.name: self._draw(rng, field.name, hints[field.name])
                for field in dataclasses.fields(kind)
                if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            }
        return self._draw_text(rng, name)

    def _draw_reference(self, rng: random.Random) -> str:
        pool = REFERENCES if rng.random() < 0.7 else [word for word in self._identifiers if ":" in word]
        return rng.choice(pool or REFERENCES)

    def _draw_text(self, rng: random.Random, name: str) -> str:
        if name in TEXTS and rng.random() < 0.7:
            return rng.choice(TEXTS[name])
        return rng.choice(self._identifiers)


ACTIONS = tuple(
    action
    for service in SERVICES
    for action in (f"{service}.{name}" for name in list_operations(load_service_class(service)))
    if action not in EXCLUDED
)
NAMES = (*ROLE_OF, *TENANTS, "house", "fraud", "other", "*", "ae-dubai", "eu-west", "v1", "")
LABELS = ({}, {"regimes": ["AE-PDPL"]}, {"regimes": ["AE-PDPL"], "classification": 2, "purposes": ["fraud"]})
WORDS = ("note", "depth", "first", "name", "id", "data", "role", "params.first", "x")
REFERENCES = [
    *("blob:fraud/passport", "blob:fraud/readme", "dataset:fraud/customers", "dataset:fraud/customers@v1"),
    *("dataset:fraud/shops", "dataset:fraud/shops@v1", "dataset:other/copy", "model:fraud/scorer"),
    *("experiment:fraud/scoring", "experiment:fraud/Default", "secret:fraud/password", "person:people/scientist"),
    *("view:fraud/visits", "service:fraud/visits", "endpoint:fraud/scorer", "job:fraud/train", "flow:fraud/nightly"),
]
TEXTS: Mapping[str, tuple[str, ...]] = {
    "name": tuple(ROLE_OF),
    "who": tuple(ROLE_OF),
    "project": ("fraud", "other", ""),
    "kind": ("dataset", "model", "blob", "run", "person", "secret", "token"),
    "roles": ("data-scientist", "tenant-admin", "security-officer", "approver", "service", "auditor"),
    "projects": ("*", "fraud", "other"),
    "jurisdiction": ("AE", "US", ""),
    "zone": ("ae-dubai", "eu-west", ""),
    "to": ("ae-dubai", "eu-west"),
    "where": ("params.first != 'x'", "tags.note LIKE '%q%'", "metrics.x > 0", ""),
    "order": ("params.first", "started"),
    "search": ("cn", "zq", "fraud"),
    "columns": ("all", "params", ""),
    "text": ("permit (principal, action, resource);", "forbid (principal, action, resource);"),
    "action": ("store.get", "catalog.open", "secrets.reveal"),
    "after": ("",),
    "since": ("", "1h", "0"),
}
PLAIN_VALUES: Mapping[Any, tuple[Any, ...]] = {
    bool: (True, False),
    int: (0, 1, 2, 10, 1000),
    float: (0.0, 1.0, 24.0),
}


def _read_result(result: Any) -> str:
    if isinstance(result, ByteStream):
        return result.read().decode(errors="replace")
    if isinstance(result, Iterator):
        return "".join(_read_result(item) for item in result)
    return to_json(result).decode() if not isinstance(result, bytes) else result.decode(errors="replace")


def _words_in(received: str) -> Iterable[str]:
    """The texts of an answer: the strings of JSON, at any depth."""
    try:
        pending = [json.loads(received)]
    except ValueError:
        return
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            pending += value


def _find_tickets(received: str) -> Iterable[str]:
    with contextlib.suppress(ValueError):
        answer = json.loads(received)
        if isinstance(answer, dict) and isinstance(answer.get("ticket"), str):
            yield answer["ticket"]
