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
from falaj.core.executor import KIND_BATCH, KIND_JOB, REPLICA_KINDS
from falaj.core.online_rows import READER_PASSWORD_VARIABLE
from falaj.core.ref import Ref
from falaj.fleet.amounts import parse_amount, parse_band, parse_mapping, parse_mebibytes, parse_seconds
from falaj.govern.secret_service import looks_like_secret
from falaj.jobs.records import JobSpec, RoleSpec
from falaj.schedule.model import MILLI_PER_UNIT, JobShape, Role, SlotRequest
from falaj.store.codec import from_plain

FRAMEWORKS = ("plain", "torch", "tensorflow", "jax", "mpi", "horovod")
ISOLATION_LEVELS = ("none", "soft", "hard")
MAX_SLOTS, MAX_ROLES, MAX_WORDS, MAX_RETRIES = 10_000, 16, 1_000, 1_000
_MAX_VALUES = dict.fromkeys(("limit_s", "every_s", "save_s", "restart_s"), 10 * 366 * 86_400) | {
    "retries": MAX_RETRIES,
    "grace_s": 86_400,
    "steps": 1 << 53,
    "deadline": 1 << 40,
}
"""The most that numbers of a job may be; all of them from 0."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ROLE = re.compile(r"[a-z][a-z0-9-]{0,31}")
_LEVEL = re.compile(r"[a-z][a-z0-9._/-]{0,62}")
T = TypeVar("T")
REFERENCES = ("inputs", "outputs", "after", "code")
_RESERVED_PREFIX = "FALAJ_"
_SUBMITTER_PREFIXES = ("FALAJ_PARAM", "FALAJ_TRAIN", "FALAJ_PROFILE")
"""Variables of ours that whoever submits may set: parameters, and how a training runs."""
_PLATFORM_VARIABLES = {
    "FALAJ_PARAM_SERVE": REPLICA_KINDS,
    "FALAJ_PARAM_HOP_KEY": REPLICA_KINDS,
    "FALAJ_PARAM_HOP_CERT": REPLICA_KINDS,
    "FALAJ_PARAM_HOP_PRIVATE": REPLICA_KINDS,
    READER_PASSWORD_VARIABLE: REPLICA_KINDS,
    "FALAJ_PARAM_BULK": (KIND_BATCH,),
}
"""Those among them that a service of the platform sets, and the kinds of attempts for which it does."""


def read_spec_file(path: str) -> dict[str, Any]:
    """A spec file as plain values: YAML, TOML or JSON, by its ending."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".toml":
            values: Any = tomllib.loads(text)
        elif file.suffix == ".json":
            values = json.loads(text)
        else:
            values = _parse_yaml(text)
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except ValueError as error:
        raise Invalid(
            f"{path} is not {file.suffix[1:].upper()}: {str(error)[:200]}", "see: falaj jobs submit --help"
        ) from error
    if not isinstance(values, dict):
        raise Invalid(f"{path} holds no job", "names and values, for example command: python train.py")
    return {str(name): value for name, value in values.items()}


def is_spec_file(path: str) -> bool:
    """True when this names a spec file and not a program or a command line."""
    file = Path(path)
    return file.suffix in (".yaml", ".yml", ".toml", ".json") and (file.is_file() or len(path.split()) == 1)


def parse_spec(spec_values: Mapping[str, Any]) -> JobSpec:
    """A spec from the words of flags or of a file; words of one role may stand beside the others."""
    spec_values = {name: value for name, value in spec_values.items() if value is not None and name not in REFERENCES}
    roles = spec_values.pop("roles", None)
    single_role = {name: spec_values.pop(name) for name in _ROLE_WORDS if name in spec_values}
    if roles is not None and single_role:
        raise Invalid(f"{next(iter(single_role))} stands beside roles", "say it in one of the roles")
    if roles is not None and not isinstance(roles, list | tuple):
        raise Invalid(f"roles is {roles!r:.60}", "write a list of them, each with name, count and what a slot needs")
    role_words = (
        [{_ROLE_WORDS[flag]: flag_value for flag, flag_value in single_role.items()}]
        if roles is None
        else _extract_widths(roles, spec_values)
    )
    role_specs = [_parse_role(role) for role in role_words]
    plain = {**spec_values, "roles": role_specs, "command": _parse_command(spec_values.get("command", ()))}
    _parse_checkpoint(plain)
    for name in ("limit", "grace", "every", "save", "restart"):
        if name in plain:
            field_value = plain.pop(name)
            plain[f"{name}_s"] = parse_seconds(field_value)
            if name in ("limit", "every") and not plain[f"{name}_s"]:
                raise Invalid(
                    f"{name} is {field_value!s:.40}, which is no time at all", "1s or longer; or leave it out"
                )
    field_names = {field.name for field in fields(JobSpec)}
    unknown = sorted(set(plain) - field_names)
    if unknown:
        raise Invalid(
            f"a job has no {', '.join(unknown)[:200]}", f"it has: {', '.join(sorted(field_names | set(REFERENCES)))}"
        )
    for name in ("env", "secrets", "labels", "options"):
        field_value = parse_mapping(name, plain.get(name) or {}, "NAME=value")
        plain[name] = {key: str(value) for key, value in field_value.items()}
    return validate_spec(_convert_plain(JobSpec, plain))


def validate_spec(spec: JobSpec, kind: str = KIND_JOB) -> JobSpec:
    """The spec of a job of this kind (core.execute.ATTEMPT_KINDS), if it can be one; one clear error if not."""
    if not spec.command or len(spec.command) > MAX_WORDS or any("\0" in argument for argument in spec.command):
        raise Invalid("there is no command", f"1 to {MAX_WORDS} words, for example python train.py")
    if spec.framework not in FRAMEWORKS:
        raise Invalid(f"{spec.framework[:40]!r} is no framework", f"one of {', '.join(FRAMEWORKS)}")
    if spec.isolation not in ISOLATION_LEVELS:
        raise Invalid(f"{spec.isolation[:40]!r} is no isolation", f"one of {', '.join(ISOLATION_LEVELS)}")
    if not 0 < len(spec.roles) <= MAX_ROLES or len({role.name for role in spec.roles}) < len(spec.roles):
        raise Invalid(f"{len(spec.roles)} roles", f"1 to {MAX_ROLES}, each with a name of its own")
    parse_band(spec.band)
    for role in spec.roles:
        _check_role(role, spec)
    _check_numbers(spec)
    check_variables((*spec.env, *spec.secrets), kind)
    _check_env(spec)
    to_job_shape(spec, parse_band(spec.band))
    return spec


def to_job_shape(
    spec: JobSpec, level: int, zones: tuple[str, ...] | None = None, clusters: tuple[str, ...] = ()
) -> JobShape:
    """The spec as the scheduler sees it, where it may run said from outside."""
    level_name, _, requirement = spec.topology.partition(":")
    if (level_name and not _LEVEL.fullmatch(level_name)) or requirement not in ("", "required", "preferred"):
        raise Invalid(f"{spec.topology[:60]!r} is no topology", "node, island, rack or cluster; rack:required")
    roles = tuple(Role(role.name, to_slot_request(role, spec, zones, clusters), role.count) for role in spec.roles)
    low = spec.min_workers or (roles[0].count if spec.max_workers else 0)
    high = spec.max_workers or (roles[0].count if spec.min_workers else 0)
    return JobShape(roles, low, high, level_name, requirement == "required", level)


def to_slot_request(
    role: RoleSpec, spec: JobSpec, zones: tuple[str, ...] | None, clusters: tuple[str, ...]
) -> SlotRequest:
    """What one slot of a role needs."""
    milli = parse_amount("gpu", role.gpus)
    is_part = 0 < milli < MILLI_PER_UNIT
    if milli > MILLI_PER_UNIT and milli % MILLI_PER_UNIT:
        raise Invalid(f"{role.gpus:g} GPUs for a slot", "whole devices, or a part of one")
    if is_part and spec.isolation == "hard":
        hint = "ask for a whole device, or for a MIG slice by its model: --gpus 1 --gpu-model MIG-1g.10gb"
        raise Invalid("parts of a GPU are not kept apart by hardware", hint)
    return SlotRequest(
        amounts=tuple(sorted(compute_role_amounts(role).items())),
        gpus=0 if is_part else milli // MILLI_PER_UNIT,
        milli=milli if is_part else 0,
        device_mib=parse_mebibytes(role.gpu_memory) if role.gpu_memory else 0,
        models=tuple(sorted(role.gpu_models)),
        zones=zones,
        clusters=clusters,
        labels=tuple(sorted(spec.labels.items())),
        spot=spec.spot,
    )


def compute_role_amounts(role: RoleSpec) -> dict[str, int]:
    """What one slot of a role needs beside devices."""
    amounts = {"cpu": parse_amount("cpu", role.cpus), "memory": parse_mebibytes(role.memory or 0)}
    amounts |= {name: parse_amount(name, value) for name, value in role.more.items()}
    return {name: value for name, value in amounts.items() if value}


def count_processes(role: RoleSpec) -> int:
    """How many processes a slot of this role starts."""
    return role.processes or max(1, int(role.gpus))


def build_run_params(spec: JobSpec) -> dict[str, str]:
    """What the job's run says of itself as parameters."""
    first = spec.roles[0]
    params = {
        "command": shlex.join(spec.command)[:2000],
        "workers": str(first.count),
        "gpus": f"{first.gpus:g}",
        "cpus": f"{first.cpus:g}",
        "memory": first.memory,
        "framework": spec.framework,
        "band": spec.band,
    }
    return {name: value for name, value in params.items() if value}


def derive_job_name(spec: JobSpec) -> str:
    """What to call a job that nobody named, by its program."""
    arguments = [argument for argument in spec.command if not argument.startswith("-")]
    program = next(
        (Path(argument).stem for argument in arguments if Path(argument).suffix in (".py", ".sh")),
        Path(arguments[0]).stem if arguments else "job",
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", program).strip("-._")[:40] or "job"


_WIDTHS = ("min_workers", "max_workers")
_ROLE_WORDS = {
    "workers": "count",
    "cpus": "cpus",
    "memory": "memory",
    "gpus": "gpus",
    "gpu_model": "gpu_models",
    "gpu_models": "gpu_models",
    "gpu_memory": "gpu_memory",
    "processes": "processes",
    "more": "more",
}


def _extract_widths(roles: Sequence[Any], spec_values: dict[str, Any]) -> list[Any]:
    """The roles without what the first says of its width, which is of the whole job; no other can shrink and grow."""
    roles_without_widths = []
    for number, role in enumerate(roles):
        own_widths = {name: role[name] for name in _WIDTHS if name in role} if isinstance(role, Mapping) else {}
        if own_widths and (number or set(own_widths) & set(spec_values)):
            problem = f"{next(iter(own_widths))} stands in the role {role.get('name', 'worker')!r:.40}"
            hint = "write the role first that shall shrink and grow; rank 0 is then one of its slots"
            raise Invalid(f"{problem}, and {'beside the roles' if not number else 'only the first can say it'}", hint)
        spec_values |= own_widths
        roles_without_widths.append(
            {name: value for name, value in role.items() if name not in own_widths} if own_widths else role
        )
    return roles_without_widths


def _parse_role(role_values: Any) -> RoleSpec:
    if not isinstance(role_values, Mapping):
        raise Invalid("a role is written as names and values", "for example name: worker, count: 4, gpus: 2")
    plain: dict[str, Any] = {_ROLE_WORDS.get(str(name), str(name)): value for name, value in role_values.items()}
    models = plain.get("gpu_models", ())
    plain["gpu_models"] = list(models or ()) if isinstance(models, list | tuple) or not models else [str(models)]
    for name in ("memory", "gpu_memory"):
        if name in plain:
            plain[name] = str(plain[name])
    field_names = {field.name for field in fields(RoleSpec)}
    unknown = sorted(set(plain) - field_names)
    if unknown:
        raise Invalid(f"a role has no {', '.join(unknown)[:200]}", f"it has: {', '.join(sorted(field_names))}")
    return _convert_plain(RoleSpec, plain)


def _convert_plain(kind: type[T], plain: dict[str, Any]) -> T:
    try:
        return cast(T, from_plain(kind, plain))
    except Invalid as error:
        hint = "numbers, true and false stand without quotation marks, several of a thing in a list: [1, 2]"
        raise Invalid(error.message, f"{hint}; see: falaj jobs submit --help") from None


def _parse_command(command: Any) -> list[str]:
    """The words of a command, from a line or a list of them."""
    try:
        arguments = shlex.split(command) if isinstance(command, str) else command
    except ValueError as error:
        raise Invalid(f"the command {command!r:.100} cannot be read: {error}", "close every quotation mark") from None
    if not isinstance(arguments, list | tuple):
        raise Invalid(f"command is {command!r:.60}", "write a line, or a list of words: python train.py")
    return [str(argument) for argument in arguments]


def _check_role(role: RoleSpec, spec: JobSpec) -> None:
    if not _ROLE.fullmatch(role.name):
        raise Invalid(f"{role.name[:60]!r} is no name of a role", "small letters, digits and dashes")
    if not 0 < role.count <= MAX_SLOTS or not 0 <= role.processes <= 1024:
        raise Invalid(f"{role.count} slots of {role.processes} processes", f"1 to {MAX_SLOTS} slots, of at most 1024")
    if (role.gpu_models or role.gpu_memory) and not role.gpus:
        raise Invalid(f"the role {role.name} says which GPU and asks for none", "say how many: --gpus 1")
    if role.memory and not parse_mebibytes(role.memory):
        raise Invalid(f"the role {role.name} needs no memory", "for example --memory 64MiB")
    if not role.cpus and not role.gpus:
        raise Invalid(f"the role {role.name} needs no CPU and no GPU", "ask for a part of a CPU: --cpus 0.1")


def _check_numbers(spec: JobSpec) -> None:
    count = spec.roles[0].count
    low, high = spec.min_workers or count, spec.max_workers or count
    if not 0 < low <= count <= high <= MAX_SLOTS:
        raise Invalid(f"from {low} over {count} to {high} workers", "min-workers <= workers <= max-workers")
    if len(spec.roles) > 1 and (spec.min_workers or spec.max_workers) and low == high:
        problem = f"min_workers and max_workers are of the first role, and {spec.roles[0].name} has {count} either way"
        raise Invalid(problem, "write the role first that shall shrink and grow; rank 0 is then one of its slots")
    if any(not 0 < code <= 255 for code in spec.retry_on):
        raise Invalid(f"retry_on is {', '.join(map(str, spec.retry_on)):.60}", "exit codes from 1 to 255: 0 is success")
    if spec.retry_on and not spec.retries:
        raise Invalid("retry_on says when it is tried again, and retries is 0", "say how often: --retries 3")
    for name, max_value in _MAX_VALUES.items():
        if not 0 <= getattr(spec, name) <= max_value:
            raise Invalid(f"{name} is {getattr(spec, name)}", f"a number from 0 to {max_value}")


def check_variables(names: Iterable[str], kind: str = KIND_JOB) -> None:
    """Invalid where a variable cannot be one, or is one that the platform itself sets."""
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise Invalid(f"{name[:60]!r} cannot be a variable of a job", "letters, digits and _, no digit first")
        reserved = name.startswith(_RESERVED_PREFIX) and not name.startswith(_SUBMITTER_PREFIXES)
        if reserved or kind not in _PLATFORM_VARIABLES.get(name, (kind,)):
            hint = f"choose a name that does not start with {_RESERVED_PREFIX}"
            raise Invalid(f"{name} is reserved: only the platform sets this variable", hint)


def _check_env(spec: JobSpec) -> None:
    for name, value in spec.env.items():
        if looks_like_secret(f"{name}={value}") or "\0" in value:
            hint = f"put it on the shelf and name it: --secret {name}=secret:project/name"
            raise Invalid(f"{name} looks like a secret, and would be kept in the clear", hint)
    if any(looks_like_secret(argument) for argument in spec.command):
        raise Invalid("the command holds a secret", "give it as a variable: --secret NAME=secret:project/name")
    for name, value in spec.secrets.items():
        if not value.startswith("secret://") and Ref.parse(value).kind != "secret":
            raise Invalid(f"{name} names no secret", f"--secret {name}=secret:project/name")


def _parse_checkpoint(plain: dict[str, Any]) -> None:
    """`checkpoint: {every: 5m, save: 10s, restart: 30s}`, or the same as every=5m,save=10s."""
    checkpoint = plain.pop("checkpoint", None)
    if not checkpoint:
        return
    if isinstance(checkpoint, str):
        checkpoint = dict(part.partition("=")[::2] for part in checkpoint.split(",") if part)
    checkpoint = parse_mapping("checkpoint", checkpoint, "every=5m,save=10s,restart=30s")
    unknown = sorted(set(checkpoint) - {"every", "save", "restart"})
    if unknown:
        raise Invalid(f"a checkpoint has no {unknown[0]}", "every=5m,save=10s,restart=30s")
    plain |= checkpoint


def _parse_yaml(text: str) -> Any:
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
