"""What the Slurm executor writes for an attempt: the words of sbatch, and the two scripts that Slurm runs.

Nothing of the job's own is in a script: its command and its environment are in the context document. So no `#SBATCH`
line and no shell word can come from a user.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from falaj.backends.slurm_site import MARK
from falaj.core.errors import Invalid
from falaj.core.execute import Attempt, Slot, launcher_environment

OPTIONS = ("partition", "account", "qos", "reservation", "constraint", "licenses", "exclude", "nice", "tmp")
GIVEN = ("PATH", "LC_ALL", "HOME", "USER", "LOGNAME")
"""What every job's environment has beside what it asks for."""
_OURS = ("array", "exclusive", "mpi")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SITES_OWN = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|SPANK)_")
_WORD = re.compile(r"[^\x00-\x1f\x7f]{1,200}")

_BATCH = """\
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

_SLOT = """\
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


def check(attempt: Attempt) -> None:
    """Invalid when something in the attempt cannot be said to Slurm."""
    if not re.fullmatch(r"[A-Za-z0-9-]{1,50}", attempt.id):
        raise Invalid(f"{attempt.id[:60]!r} is no id of an attempt", "letters, digits and dashes, at most 50")
    if not attempt.slots or any(not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", slot.node) for slot in attempt.slots):
        raise Invalid("a slot has no node, or one with a name that no host has", "name nodes as `capacity` does")
    if not _WORD.fullmatch(attempt.folder) or not Path(attempt.folder).is_absolute():
        raise Invalid("slurm: needs a folder of the attempt that the nodes share", "see docs/clusters.md")
    if any(slot.devices and slot.milli < 1000 for slot in attempt.slots):
        raise Invalid("slurm: gives whole GPUs", "ask for one GPU, or for a MIG slice as a model of its own")
    for name in (*attempt.env, *attempt.secret_env):
        if not _NAME.fullmatch(name) or _SITES_OWN.match(name):
            raise Invalid(f"a job may not set the variable {name[:60]!r} here", "choose another name")
    for name, value in attempt.options.items():
        if name not in (*OPTIONS, *_OURS):
            raise Invalid(f"slurm: does not know the option {name[:40]!r}", f"one of {', '.join((*OPTIONS, *_OURS))}")
        if not _WORD.fullmatch(value):
            raise Invalid(f"the option {name} has a value that is no single line", "see `sbatch --help`")


def words(attempt: Attempt, models: Mapping[str, str]) -> list[str]:
    """What sbatch is told. Nodes that are asked for different amounts are parts of one heterogeneous job. `models` are
    the GPU models of nodes, "" where the site names none."""
    shared = list(_shared(attempt))
    if attempt.options.get("array"):
        slot = attempt.slots[0]
        tasks = f"--array=0-{len(attempt.slots) - 1}"
        return [*shared, tasks, "--nodes=1", "--ntasks=1", *_amounts([slot], models.get(slot.node, ""))]
    parts = [[*shared, *_nodes(nodes), *asked] for asked, nodes in _groups(attempt, models)]
    return [word for number, part in enumerate(parts) for word in ([":", *part] if number else part)]


def batch(attempt: Attempt, models: Mapping[str, str]) -> str:
    """The script of the job."""
    groups = _groups(attempt, models)
    if attempt.options.get("array"):
        groups = groups[:1]
    mpi = [f"--mpi={attempt.options['mpi']}"] if "mpi" in attempt.options else []
    # srun does not take the CPUs of a task over from sbatch by itself.
    cpus = [next(word for word in asked if word.startswith("--cpus-per-task")) for asked, _ in groups]
    parts = [[f"--het-group={number}", one] for number, one in enumerate(cpus)] if len(groups) > 1 else [cpus]
    command = ["--kill-on-bad-exit=0", *mpi, "sh", "slurm-slot.sh"]
    return _BATCH.format(
        id=attempt.id,
        folder=shlex.quote(attempt.folder),
        told=f"--het-group=0-{len(groups) - 1}" if len(groups) > 1 else "",
        step=" : ".join(shlex.join([*part, *command]) for part in parts),
    )


def slot_script(attempt: Attempt, launcher: Sequence[str], host: str) -> str:
    """The script that each task runs: finds out which slot it is, and becomes its launcher."""
    by_node = {"": list(attempt.slots)} if attempt.options.get("array") else _by_node(attempt)
    cases, gpus = [], []
    for node, slots in by_node.items():
        cases.append(
            f"{shlex.quote(node) if node else '?*'}) slots='{' '.join(str(slot.index) for slot in slots)}';;\n"
        )
        first = 1
        for slot in slots:
            num = len(slot.devices)
            # Further than any list goes, for a slot that has none.
            gpus.append(f"{slot.index}) gpus={first}-{first + num - 1};;\n" if num else f"{slot.index}) gpus=9999;;\n")
            first += num if node else 0
    return _SLOT.format(
        folder=shlex.quote(attempt.folder),
        cases="".join(cases),
        gpus="".join(gpus),
        host=shlex.quote(host),
        launcher=shlex.join(launcher),
    )


def _shared(attempt: Attempt) -> Iterator[str]:
    yield from (f"--job-name={attempt.id}", f"--comment={MARK}{attempt.id}", "--no-requeue", "--open-mode=append")
    yield from (f"--chdir={attempt.folder}", f"--output={attempt.folder}/slurm.log".replace("%", "%%"))
    yield f"--export={','.join((*GIVEN, *launcher_environment(attempt)))}"
    if attempt.limit_s:
        # The launcher ends the slot at the limit itself; this is for one that hangs.
        yield f"--time={-(-(attempt.limit_s + attempt.grace_s) // 60)}"
        yield f"--signal=B:USR1@{max(attempt.grace_s, 30)}"
    if attempt.options.get("exclusive"):
        yield "--exclusive"
    yield from (f"--{name}={attempt.options[name]}" for name in OPTIONS if name in attempt.options)


def _groups(attempt: Attempt, models: Mapping[str, str]) -> list[tuple[tuple[str, ...], list[str]]]:
    """Nodes with what is asked of each, those that are asked for the same together."""
    found: dict[tuple[str, ...], list[str]] = {}
    for node, slots in _by_node(attempt).items():
        asked = (f"--ntasks-per-node={len(slots)}", *_amounts(slots, models.get(node, "")))
        found.setdefault(asked, []).append(node)
    return list(found.items())


def _amounts(slots: Sequence[Slot], model: str) -> Iterator[str]:
    yield f"--cpus-per-task={max(1, *(-(-slot.amounts.get('cpu', 0) // 1000) for slot in slots))}"
    if memory := sum(slot.amounts.get("memory", 0) for slot in slots):
        yield f"--mem={memory}M"
    asked = {"gpu" + (f":{model}" if model else ""): sum(len(slot.devices) for slot in slots)}
    for slot in slots:
        for name in set(slot.amounts) - {"cpu", "memory"}:
            asked[name] = asked.get(name, 0) + slot.amounts[name]
    if gres := [f"{name}:{count}" for name, count in sorted(asked.items()) if count]:
        yield f"--gres={','.join(gres)}"


def _by_node(attempt: Attempt) -> dict[str, list[Slot]]:
    found: dict[str, list[Slot]] = {}
    for slot in attempt.slots:
        found.setdefault(slot.node, []).append(slot)
    return found


def _nodes(names: Sequence[str]) -> list[str]:
    return [f"--nodes={len(names)}", f"--nodelist={','.join(names)}"]
