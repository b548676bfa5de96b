"""Specs: how a job is asked for, in flags or in a file, checked before anything is written."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast

from falaj.core.errors import Invalid
from falaj.core.execute import BATCH, JOB, REPLICAS
from falaj.core.online import READER_PASSWORD
from falaj.core.ref import Ref
from falaj.fleet.amounts import amount, band, by_name, mebibytes, seconds
from falaj.govern.secrets import contains_secret
from falaj.jobs.records import JobSpec, RoleSpec
from falaj.schedule.model import WHOLE, Ask, Role, Shape
from falaj.store.codec import from_plain

FRAMEWORKS = ("plain", "torch", "tensorflow", "jax", "mpi", "horovod")
ISOLATION = ("none", "soft", "hard")
MOST_SLOTS, MOST_ROLES, MOST_WORDS, MOST_RETRIES = 10_000, 16, 1_000, 1_000
_RANGES = dict.fromkeys(("limit_s", "every_s", "save_s", "restart_s"), 10 * 366 * 86_400) | {
    "retries": MOST_RETRIES, "grace_s": 86_400, "steps": 1 << 53, "deadline": 1 << 40,
}  # fmt: skip
"""The most that numbers of a job may be; all of them from 0."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ROLE = re.compile(r"[a-z][a-z0-9-]{0,31}")
_LEVEL = re.compile(r"[a-z][a-z0-9._/-]{0,62}")
T = TypeVar("T")
REFERENCES = ("inputs", "outputs", "after", "code")
_RESERVED = "FALAJ_"
_GIVEN = ("FALAJ_PARAM", "FALAJ_TRAIN", "FALAJ_PROFILE")
"""Variables of ours that whoever submits may set: parameters, and how a training runs."""
_PLATFORM_VARIABLES = {
    "FALAJ_PARAM_SERVE": REPLICAS, "FALAJ_PARAM_HOP_KEY": REPLICAS, "FALAJ_PARAM_HOP_CERT": REPLICAS,
    "FALAJ_PARAM_HOP_PRIVATE": REPLICAS, READER_PASSWORD: REPLICAS, "FALAJ_PARAM_BULK": (BATCH,),
}  # fmt: skip
"""Those among them that a service of the platform sets, and the kinds of attempts for which it does."""


def read_file(path: str) -> dict[str, Any]:
    """A spec file as plain values: YAML, TOML or JSON, by its ending."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".toml":
            found: Any = tomllib.loads(text)
        elif file.suffix == ".json":
            found = json.loads(text)
        else:
            found = _yaml(text)
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except ValueError as error:
        raise Invalid(
            f"{path} is not {file.suffix[1:].upper()}: {str(error)[:200]}", "see: falaj jobs submit --help"
        ) from error
    if not isinstance(found, dict):
        raise Invalid(f"{path} holds no job", "names and values, for example command: python train.py")
    return {str(name): value for name, value in found.items()}


def is_spec(path: str) -> bool:
    """True when this names a spec file and not a program or a command line."""
    file = Path(path)
    return file.suffix in (".yaml", ".yml", ".toml", ".json") and (file.is_file() or len(path.split()) == 1)


def spec_of(words: Mapping[str, Any]) -> JobSpec:
    """A spec from the words of flags or of a file; words of one role may stand beside the others."""
    words = {name: value for name, value in words.items() if value is not None and name not in REFERENCES}
    roles = words.pop("roles", None)
    one = {name: words.pop(name) for name in _ROLE_WORDS if name in words}
    if roles is not None and one:
        raise Invalid(f"{next(iter(one))} stands beside roles", "say it in one of the roles")
    if roles is not None and not isinstance(roles, list | tuple):
        raise Invalid(f"roles is {roles!r:.60}", "write a list of them, each with name, count and what a slot needs")
    asked = [{_ROLE_WORDS[k]: v for k, v in one.items()}] if roles is None else _widths(roles, words)
    made = [_role(role) for role in asked]
    plain = {**words, "roles": made, "command": _command(words.get("command", ()))}
    _checkpoint(plain)
    for name in ("limit", "grace", "every", "save", "restart"):
        if name in plain:
            given = plain.pop(name)
            plain[f"{name}_s"] = seconds(given)
            if name in ("limit", "every") and not plain[f"{name}_s"]:
                raise Invalid(f"{name} is {given!s:.40}, which is no time at all", "1s or longer; or leave it out")
    known = {field.name for field in fields(JobSpec)}
    unknown = sorted(set(plain) - known)
    if unknown:
        raise Invalid(
            f"a job has no {', '.join(unknown)[:200]}", f"it has: {', '.join(sorted(known | set(REFERENCES)))}"
        )
    for name in ("env", "secrets", "labels", "options"):
        given = by_name(name, plain.get(name) or {}, "NAME=value")
        plain[name] = {key: str(value) for key, value in given.items()}
    return checked(_made(JobSpec, plain))


def checked(spec: JobSpec, kind: str = JOB) -> JobSpec:
    """The spec of a job of this kind (core.execute.ATTEMPT_KINDS), if it can be one; one clear error if not."""
    if not spec.command or len(spec.command) > MOST_WORDS or any("\0" in word for word in spec.command):
        raise Invalid("there is no command", f"1 to {MOST_WORDS} words, for example python train.py")
    if spec.framework not in FRAMEWORKS:
        raise Invalid(f"{spec.framework[:40]!r} is no framework", f"one of {', '.join(FRAMEWORKS)}")
    if spec.isolation not in ISOLATION:
        raise Invalid(f"{spec.isolation[:40]!r} is no isolation", f"one of {', '.join(ISOLATION)}")
    if not 0 < len(spec.roles) <= MOST_ROLES or len({role.name for role in spec.roles}) < len(spec.roles):
        raise Invalid(f"{len(spec.roles)} roles", f"1 to {MOST_ROLES}, each with a name of its own")
    band(spec.band)
    for role in spec.roles:
        _check_role(role, spec)
    _check_numbers(spec)
    check_variables((*spec.env, *spec.secrets), kind)
    _check_env(spec)
    shape_of(spec, band(spec.band))
    return spec


def shape_of(spec: JobSpec, level: int, zones: tuple[str, ...] | None = None, clusters: tuple[str, ...] = ()) -> Shape:
    """The spec as the scheduler sees it, where it may run said from outside."""
    where, _, rule = spec.topology.partition(":")
    if (where and not _LEVEL.fullmatch(where)) or rule not in ("", "required", "preferred"):
        raise Invalid(f"{spec.topology[:60]!r} is no topology", "node, island, rack or cluster; rack:required")
    roles = tuple(Role(role.name, ask_of(role, spec, zones, clusters), role.count) for role in spec.roles)
    low = spec.min_workers or (roles[0].count if spec.max_workers else 0)
    high = spec.max_workers or (roles[0].count if spec.min_workers else 0)
    return Shape(roles, low, high, where, rule == "required", level)


def ask_of(role: RoleSpec, spec: JobSpec, zones: tuple[str, ...] | None, clusters: tuple[str, ...]) -> Ask:
    """What one slot of a role needs."""
    milli = amount("gpu", role.gpus)
    part = 0 < milli < WHOLE
    if milli > WHOLE and milli % WHOLE:
        raise Invalid(f"{role.gpus:g} GPUs for a slot", "whole devices, or a part of one")
    if part and spec.isolation == "hard":
        hint = "ask for a whole device, or for a MIG slice by its model: --gpus 1 --gpu-model MIG-1g.10gb"
        raise Invalid("parts of a GPU are not kept apart by hardware", hint)
    return Ask(
        amounts=tuple(sorted(amounts_of(role).items())),
        gpus=0 if part else milli // WHOLE,
        milli=milli if part else 0,
        device_mib=mebibytes(role.gpu_memory) if role.gpu_memory else 0,
        models=tuple(sorted(role.gpu_models)),
        zones=zones,
        clusters=clusters,
        labels=tuple(sorted(spec.labels.items())),
        spot=spec.spot,
    )


def amounts_of(role: RoleSpec) -> dict[str, int]:
    """What one slot of a role needs beside devices."""
    wanted = {"cpu": amount("cpu", role.cpus), "memory": mebibytes(role.memory or 0)}
    wanted |= {name: amount(name, value) for name, value in role.more.items()}
    return {name: value for name, value in wanted.items() if value}


def processes_of(role: RoleSpec) -> int:
    """How many processes a slot of this role starts."""
    return role.processes or max(1, int(role.gpus))


def params_of(spec: JobSpec) -> dict[str, str]:
    """What the job's run says of itself as parameters."""
    first = spec.roles[0]
    said = {
        "command": shlex.join(spec.command)[:2000], "workers": str(first.count), "gpus": f"{first.gpus:g}",
        "cpus": f"{first.cpus:g}", "memory": first.memory, "framework": spec.framework, "band": spec.band,
    }  # fmt: skip
    return {name: value for name, value in said.items() if value}


def name_of(spec: JobSpec) -> str:
    """What to call a job that nobody named, by its program."""
    words = [word for word in spec.command if not word.startswith("-")]
    program = next(
        (Path(word).stem for word in words if Path(word).suffix in (".py", ".sh")),
        Path(words[0]).stem if words else "job",
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", program).strip("-._")[:40] or "job"


_WIDTHS = ("min_workers", "max_workers")
_ROLE_WORDS = {
    "workers": "count", "cpus": "cpus", "memory": "memory", "gpus": "gpus", "gpu_model": "gpu_models",
    "gpu_models": "gpu_models", "gpu_memory": "gpu_memory", "processes": "processes", "more": "more",
}  # fmt: skip


def _widths(roles: Sequence[Any], words: dict[str, Any]) -> list[Any]:
    """The roles without what the first says of its width, which is of the whole job; no other can shrink and grow."""
    bare = []
    for number, role in enumerate(roles):
        own = {name: role[name] for name in _WIDTHS if name in role} if isinstance(role, Mapping) else {}
        if own and (number or set(own) & set(words)):
            said = f"{next(iter(own))} stands in the role {role.get('name', 'worker')!r:.40}"
            hint = "write the role first that shall shrink and grow; rank 0 is then one of its slots"
            raise Invalid(f"{said}, and {'beside the roles' if not number else 'only the first can say it'}", hint)
        words |= own
        bare.append({name: value for name, value in role.items() if name not in own} if own else role)
    return bare


def _role(words: Any) -> RoleSpec:
    if not isinstance(words, Mapping):
        raise Invalid("a role is written as names and values", "for example name: worker, count: 4, gpus: 2")
    plain: dict[str, Any] = {_ROLE_WORDS.get(str(name), str(name)): value for name, value in words.items()}
    models = plain.get("gpu_models", ())
    plain["gpu_models"] = list(models or ()) if isinstance(models, list | tuple) or not models else [str(models)]
    for name in ("memory", "gpu_memory"):
        if name in plain:
            plain[name] = str(plain[name])
    known = {field.name for field in fields(RoleSpec)}
    unknown = sorted(set(plain) - known)
    if unknown:
        raise Invalid(f"a role has no {', '.join(unknown)[:200]}", f"it has: {', '.join(sorted(known))}")
    return _made(RoleSpec, plain)


def _made(kind: type[T], plain: dict[str, Any]) -> T:
    try:
        return cast(T, from_plain(kind, plain))
    except Invalid as error:
        hint = "numbers, true and false stand without quotation marks, several of a thing in a list: [1, 2]"
        raise Invalid(error.message, f"{hint}; see: falaj jobs submit --help") from None


def _command(given: Any) -> list[str]:
    """The words of a command, from a line or a list of them."""
    try:
        words = shlex.split(given) if isinstance(given, str) else given
    except ValueError as error:
        raise Invalid(f"the command {given!r:.100} cannot be read: {error}", "close every quotation mark") from None
    if not isinstance(words, list | tuple):
        raise Invalid(f"command is {given!r:.60}", "write a line, or a list of words: python train.py")
    return [str(word) for word in words]


def _check_role(role: RoleSpec, spec: JobSpec) -> None:
    if not _ROLE.fullmatch(role.name):
        raise Invalid(f"{role.name[:60]!r} is no name of a role", "small letters, digits and dashes")
    if not 0 < role.count <= MOST_SLOTS or not 0 <= role.processes <= 1024:
        raise Invalid(f"{role.count} slots of {role.processes} processes", f"1 to {MOST_SLOTS} slots, of at most 1024")
    if (role.gpu_models or role.gpu_memory) and not role.gpus:
        raise Invalid(f"the role {role.name} says which GPU and asks for none", "say how many: --gpus 1")
    if role.memory and not mebibytes(role.memory):
        raise Invalid(f"the role {role.name} needs no memory", "for example --memory 64MiB")
    if not role.cpus and not role.gpus:
        raise Invalid(f"the role {role.name} needs no CPU and no GPU", "ask for a part of a CPU: --cpus 0.1")


def _check_numbers(spec: JobSpec) -> None:
    count = spec.roles[0].count
    low, high = spec.min_workers or count, spec.max_workers or count
    if not 0 < low <= count <= high <= MOST_SLOTS:
        raise Invalid(f"from {low} over {count} to {high} workers", "min-workers <= workers <= max-workers")
    if len(spec.roles) > 1 and (spec.min_workers or spec.max_workers) and low == high:
        said = f"min_workers and max_workers are of the first role, and {spec.roles[0].name} has {count} either way"
        raise Invalid(said, "write the role first that shall shrink and grow; rank 0 is then one of its slots")
    if any(not 0 < code <= 255 for code in spec.retry_on):
        raise Invalid(f"retry_on is {', '.join(map(str, spec.retry_on)):.60}", "exit codes from 1 to 255: 0 is success")
    if spec.retry_on and not spec.retries:
        raise Invalid("retry_on says when it is tried again, and retries is 0", "say how often: --retries 3")
    for name, most in _RANGES.items():
        if not 0 <= getattr(spec, name) <= most:
            raise Invalid(f"{name} is {getattr(spec, name)}", f"a number from 0 to {most}")


def check_variables(names: Iterable[str], kind: str = JOB) -> None:
    """Invalid where a variable cannot be one, or is one that the platform itself sets."""
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise Invalid(f"{name[:60]!r} cannot be a variable of a job", "letters, digits and _, no digit first")
        reserved = name.startswith(_RESERVED) and not name.startswith(_GIVEN)
        if reserved or kind not in _PLATFORM_VARIABLES.get(name, (kind,)):
            hint = f"choose a name that does not start with {_RESERVED}"
            raise Invalid(f"{name} is reserved: only the platform sets this variable", hint)


def _check_env(spec: JobSpec) -> None:
    for name, value in spec.env.items():
        if contains_secret(f"{name}={value}") or "\0" in value:
            hint = f"put it on the shelf and name it: --secret {name}=secret:project/name"
            raise Invalid(f"{name} looks like a secret, and would be kept in the clear", hint)
    if any(contains_secret(word) for word in spec.command):
        raise Invalid("the command holds a secret", "give it as a variable: --secret NAME=secret:project/name")
    for name, value in spec.secrets.items():
        if not value.startswith("secret://") and Ref.parse(value).kind != "secret":
            raise Invalid(f"{name} names no secret", f"--secret {name}=secret:project/name")


def _checkpoint(plain: dict[str, Any]) -> None:
    """`checkpoint: {every: 5m, save: 10s, restart: 30s}`, or the same as every=5m,save=10s."""
    given = plain.pop("checkpoint", None)
    if not given:
        return
    if isinstance(given, str):
        given = dict(part.partition("=")[::2] for part in given.split(",") if part)
    given = by_name("checkpoint", given, "every=5m,save=10s,restart=30s")
    unknown = sorted(set(given) - {"every", "save", "restart"})
    if unknown:
        raise Invalid(f"a checkpoint has no {unknown[0]}", "every=5m,save=10s,restart=30s")
    plain |= given


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise Invalid(
            "YAML needs the package PyYAML", "pip install 'falaj[exchange]', or write TOML or JSON"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
