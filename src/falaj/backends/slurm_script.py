"""What the Slurm executor writes for an attempt: the words of sbatch, and the two scripts that Slurm runs.

Nothing of the job's own is in a script: its command and its environment are in the context document. So no `#SBATCH`
line and no shell word can come from a user.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from falaj.backends.slurm_commands import COMMENT_PREFIX
from falaj.core.errors import Invalid
from falaj.core.executor import Attempt, Slot, build_launcher_environment

SBATCH_OPTIONS = ("partition", "account", "qos", "reservation", "constraint", "licenses", "exclude", "nice", "tmp")
DEFAULT_VARIABLES = ("PATH", "LC_ALL", "HOME", "USER", "LOGNAME")
"""What every job's environment has beside what it asks for."""
_OWN_OPTIONS = ("array", "exclusive", "mpi")
_VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED_VARIABLE_PATTERN = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|SPANK)_")
_SINGLE_LINE_PATTERN = re.compile(r"[^\x00-\x1f\x7f]{1,200}")

_BATCH_TEMPLATE = """\
#!/bin/sh
# {id}: one launcher for every slot.
cd {folder} || exit 75
me="${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}"
# One attempt is one try: what Slurm puts back into its queue, and a second job of the same attempt, go away.
[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || exit 75
echo "$me" > "slurm.claim.$SLURM_JOB_ID" && ln "slurm.claim.$SLURM_JOB_ID" slurm.started 2>/dev/null
rm -f "slurm.claim.$SLURM_JOB_ID"
[ "$(cat slurm.started)" = "$me" ] || exit 75
# A signal from Slurm reaches every process and ends those that do not expect it; this way the launchers alone hear it.
tell() {{ srun --overlap --mem=0 --gres=none {told} sh slurm-slot.sh "$1"; }}
code=127 again=yes
trap 'again=yes; tell USR1' USR1
trap 'again=yes; tell TERM' TERM
srun {step} &
step=$!
# A wait that a signal breaks off says nothing of the step, and a step that was waited for is not known any more (127).
while [ $again = yes ]; do again=no; wait $step; got=$?; [ $got = 127 ] || code=$got; done
exit $code
"""

_SLOT_TEMPLATE = """\
#!/bin/sh
cd {folder} || exit 75
case "$SLURMD_NODENAME" in
{cases}*) exit 75;;
esac
shift_by="${{SLURM_ARRAY_TASK_ID:-$SLURM_LOCALID}}"
slot="$(echo $slots | cut -d ' ' -f $((shift_by + 1)))"
[ -n "$slot" ] || exit 75
if [ -n "$1" ]; then
    # A slot of a busy node may begin after another has failed already.
    tries=0
    until [ -s "slot-$slot.pid" ] || [ $tries = 100 ]; do tries=$((tries + 1)); sleep 0.3; done
    kill "-$1" "$(grep -o '"pid": *[0-9]*' "slot-$slot.pid" | grep -o '[0-9]*$')"
    exit 0
fi
# Slurm shows all GPUs of the job on this node; each slot takes its own.
case "$slot" in
{gpus}esac
[ -z "$CUDA_VISIBLE_DEVICES" ] || export CUDA_VISIBLE_DEVICES="$(echo "$CUDA_VISIBLE_DEVICES" | cut -d , -f "$gpus")"
# Where only a group joins the user to the platform, that group reads the log.
(umask 027; : >> "slot-$slot.log")
trap : TERM USR1
export FALAJ_HOST={host}
{launcher} context.json "$slot"
code=$?
# One that fails ends the others, as politely as we would; the tasks of an array go their own ways.
[ $code = 0 ] || [ -n "$SLURM_ARRAY_JOB_ID" ] || scancel --batch --signal=TERM "$(cat slurm.started)"
exit $code
"""


def require_valid_attempt(attempt: Attempt) -> None:
    """Invalid when something in the attempt cannot be said to Slurm."""
    if not re.fullmatch(r"[A-Za-z0-9-]{1,50}", attempt.id):
        raise Invalid(f"{attempt.id[:60]!r} is no id of an attempt", "letters, digits and dashes, at most 50")
    if not attempt.slots or any(not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", slot.node) for slot in attempt.slots):
        raise Invalid("a slot has no node, or one with a name that no host has", "name nodes as `capacity` does")
    if not _SINGLE_LINE_PATTERN.fullmatch(attempt.folder) or not Path(attempt.folder).is_absolute():
        raise Invalid("slurm: needs a folder of the attempt that the nodes share", "see docs/clusters.md")
    if any(slot.devices and slot.milli < 1000 for slot in attempt.slots):
        raise Invalid("slurm: gives whole GPUs", "ask for one GPU, or for a MIG slice as a model of its own")
    for name in (*attempt.env, *attempt.secret_env):
        if not _VARIABLE_PATTERN.fullmatch(name) or _RESERVED_VARIABLE_PATTERN.match(name):
            raise Invalid(f"a job may not set the variable {name[:60]!r} here", "choose another name")
    for name, value in attempt.options.items():
        if name not in (*SBATCH_OPTIONS, *_OWN_OPTIONS):
            raise Invalid(
                f"slurm: does not know the option {name[:40]!r}",
                f"one of {', '.join((*SBATCH_OPTIONS, *_OWN_OPTIONS))}",
            )
        if not _SINGLE_LINE_PATTERN.fullmatch(value):
            raise Invalid(f"the option {name} has a value that is no single line", "see `sbatch --help`")


def make_sbatch_options(attempt: Attempt, models: Mapping[str, str]) -> list[str]:
    """What sbatch is told. Nodes that are asked for different amounts are parts of one heterogeneous job. `models` are
    the GPU models of nodes, "" where the site names none."""
    shared_options = list(_make_shared_options(attempt))
    if attempt.options.get("array"):
        slot = attempt.slots[0]
        tasks = f"--array=0-{len(attempt.slots) - 1}"
        return [
            *shared_options,
            tasks,
            "--nodes=1",
            "--ntasks=1",
            *_make_resource_options([slot], models.get(slot.node, "")),
        ]
    job_parts = [
        [*shared_options, *_make_node_options(nodes), *resource_options]
        for resource_options, nodes in _group_nodes(attempt, models)
    ]
    return [
        option for number, job_part in enumerate(job_parts) for option in ([":", *job_part] if number else job_part)
    ]


def make_batch_script(attempt: Attempt, models: Mapping[str, str]) -> str:
    """The script of the job."""
    node_groups = _group_nodes(attempt, models)
    if attempt.options.get("array"):
        node_groups = node_groups[:1]
    mpi_options = [f"--mpi={attempt.options['mpi']}"] if "mpi" in attempt.options else []
    # srun does not take the CPUs of a task over from sbatch by itself.
    cpu_options = [
        next(option for option in resource_options if option.startswith("--cpus-per-task"))
        for resource_options, _ in node_groups
    ]
    step_parts = (
        [[f"--het-group={number}", cpu_option] for number, cpu_option in enumerate(cpu_options)]
        if len(node_groups) > 1
        else [cpu_options]
    )
    command = ["--kill-on-bad-exit=0", *mpi_options, "sh", "slurm-slot.sh"]
    return _BATCH_TEMPLATE.format(
        id=attempt.id,
        folder=shlex.quote(attempt.folder),
        told=f"--het-group=0-{len(node_groups) - 1}" if len(node_groups) > 1 else "",
        step=" : ".join(shlex.join([*step_part, *command]) for step_part in step_parts),
    )


def make_slot_script(attempt: Attempt, launcher: Sequence[str], host: str) -> str:
    """The script that each task runs: finds out which slot it is, and becomes its launcher."""
    slots_by_node = {"": list(attempt.slots)} if attempt.options.get("array") else _group_slots_by_node(attempt)
    node_cases, gpu_cases = [], []
    for node, slots in slots_by_node.items():
        node_cases.append(
            f"{shlex.quote(node) if node else '?*'}) slots='{' '.join(str(slot.index) for slot in slots)}';;\n"
        )
        first_gpu = 1
        for slot in slots:
            gpu_count = len(slot.devices)
            # Further than any list goes, for a slot that has none.
            gpu_cases.append(
                f"{slot.index}) gpus={first_gpu}-{first_gpu + gpu_count - 1};;\n"
                if gpu_count
                else f"{slot.index}) gpus=9999;;\n"
            )
            first_gpu += gpu_count if node else 0
    return _SLOT_TEMPLATE.format(
        folder=shlex.quote(attempt.folder),
        cases="".join(node_cases),
        gpus="".join(gpu_cases),
        host=shlex.quote(host),
        launcher=shlex.join(launcher),
    )


def _make_shared_options(attempt: Attempt) -> Iterator[str]:
    yield from (
        f"--job-name={attempt.id}",
        f"--comment={COMMENT_PREFIX}{attempt.id}",
        "--no-requeue",
        "--open-mode=append",
    )
    yield from (f"--chdir={attempt.folder}", f"--output={attempt.folder}/slurm.log".replace("%", "%%"))
    yield f"--export={','.join((*DEFAULT_VARIABLES, *build_launcher_environment(attempt)))}"
    if attempt.limit_s:
        # The launcher ends the slot at the limit itself; this is for one that hangs.
        yield f"--time={-(-(attempt.limit_s + attempt.grace_s) // 60)}"
        yield f"--signal=B:USR1@{max(attempt.grace_s, 30)}"
    if attempt.options.get("exclusive"):
        yield "--exclusive"
    yield from (f"--{name}={attempt.options[name]}" for name in SBATCH_OPTIONS if name in attempt.options)


def _group_nodes(attempt: Attempt, models: Mapping[str, str]) -> list[tuple[tuple[str, ...], list[str]]]:
    """Nodes with what is asked of each, those that are asked for the same together."""
    nodes_by_options: dict[tuple[str, ...], list[str]] = {}
    for node, slots in _group_slots_by_node(attempt).items():
        resource_options = (f"--ntasks-per-node={len(slots)}", *_make_resource_options(slots, models.get(node, "")))
        nodes_by_options.setdefault(resource_options, []).append(node)
    return list(nodes_by_options.items())


def _make_resource_options(slots: Sequence[Slot], model: str) -> Iterator[str]:
    yield f"--cpus-per-task={max(1, *(-(-slot.amounts.get('cpu', 0) // 1000) for slot in slots))}"
    if memory := sum(slot.amounts.get("memory", 0) for slot in slots):
        yield f"--mem={memory}M"
    count_by_resource = {"gpu" + (f":{model}" if model else ""): sum(len(slot.devices) for slot in slots)}
    for slot in slots:
        for name in set(slot.amounts) - {"cpu", "memory"}:
            count_by_resource[name] = count_by_resource.get(name, 0) + slot.amounts[name]
    if gres_parts := [f"{name}:{count}" for name, count in sorted(count_by_resource.items()) if count]:
        yield f"--gres={','.join(gres_parts)}"


def _group_slots_by_node(attempt: Attempt) -> dict[str, list[Slot]]:
    slots_by_node: dict[str, list[Slot]] = {}
    for slot in attempt.slots:
        slots_by_node.setdefault(slot.node, []).append(slot)
    return slots_by_node


def _make_node_options(names: Sequence[str]) -> list[str]:
    return [f"--nodes={len(names)}", f"--nodelist={','.join(names)}"]
