"""How processes of one attempt find each other: a pure function from document, slot and local rank to environment.

PyTorch and TensorFlow get what their own launchers would have set, so `torch.distributed.init_process_group()` and
`tf.distribute.MultiWorkerMirroredStrategy()` work without arguments. JAX reads only the coordinator's address itself:
`worker.attempt().join_jax()` hands it the rest. MPI and Horovod bring a launcher, which slot 0 starts once for all.
"""

import json
import os
from collections.abc import Mapping

from falaj.core.errors import Invalid
from falaj.worker.context import Context

MPI = ("mpi", "horovod")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_STARTED_BY_CLUSTER = ("PMIX_RANK", "PMI_RANK")


def environment(context: Context, slot: int, local: int, given: Mapping[str, str]) -> dict[str, str]:
    """What one process finds in its environment, beside what its launcher was `given`."""
    place = context.slots[slot]
    rank = context.first_rank(slot) + local
    named = {f"FALAJ_INPUT_{_upper(name)}": path for name, path in context.inputs.items()}
    named |= {f"FALAJ_OUTPUT_{_upper(name)}": path for name, path in context.outputs.items()}
    whole = {
        **context.env,
        **named,
        "FALAJ_JOB": context.job,
        "FALAJ_RUN": context.run,
        "FALAJ_ATTEMPT": context.attempt,
        "FALAJ_SLOT": str(slot),
        "FALAJ_WORLD": str(context.world),
        "FALAJ_CHECKPOINTS": context.checkpoints,
        **_devices(context, slot, local, given),
        **_threads(context, slot, given),
    }
    if context.framework not in MPI:
        whole |= {"FALAJ_RANK": str(rank), "FALAJ_LOCAL_RANK": str(local)}
    if context.framework == "torch":
        whole |= _torch(context, slot, local, rank, given)
    elif context.framework == "jax" and context.world > 1:
        whole |= _jax(context, rank, given)
    elif context.framework == "tensorflow" and context.world > 1:
        whole["TF_CONFIG"] = _tensorflow(context, slot, local, given)
    elif context.framework in MPI:
        whole |= _mpi()
    return whole | ({"FALAJ_GPU_MILLI": str(place.milli)} if place.devices and place.milli < 1000 else {})


def command(context: Context, slot: int, given: Mapping[str, str]) -> tuple[str, ...]:
    """What a slot's processes run; nothing where another slot's launcher starts them."""
    if context.framework not in MPI or any(name in given for name in _STARTED_BY_CLUSTER):
        return context.command
    if len(context.slots) > 1 and host(context, given) not in _LOOPBACK:
        raise Invalid(
            "MPI over several nodes needs a cluster that starts its processes",
            "on Slurm use srun's own (mpi=pmix); elsewhere ask for one slot with more processes",
        )
    return ("mpirun", "-n", str(context.world), *context.command) if slot == 0 else ()


def processes(context: Context, slot: int, given: Mapping[str, str]) -> int:
    """How many processes the launcher of a slot starts itself."""
    started = any(name in given for name in _STARTED_BY_CLUSTER)
    if context.framework in MPI and not started:
        return 1 if slot == 0 else 0
    return context.slots[slot].processes


def host(context: Context, given: Mapping[str, str]) -> str:
    """Where rank 0 waits."""
    return context.host or given.get("FALAJ_HOST", "") or ("127.0.0.1" if len(context.slots) == 1 else "")


def needs_port(context: Context) -> bool:
    """Whether rank 0 will listen."""
    return context.framework in ("torch", "jax", "tensorflow") and context.world > 1


def _torch(context: Context, slot: int, local: int, rank: int, given: Mapping[str, str]) -> dict[str, str]:
    return {
        "MASTER_ADDR": host(context, given),
        "MASTER_PORT": str(context.port),
        "RANK": str(rank),
        "WORLD_SIZE": str(context.world),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(context.slots[slot].processes),
        "GROUP_RANK": str(slot),
        "GROUP_WORLD_SIZE": str(len(context.slots)),
        "TORCHELASTIC_RUN_ID": context.attempt,
    }


def _jax(context: Context, rank: int, given: Mapping[str, str]) -> dict[str, str]:
    return {
        "JAX_COORDINATOR_ADDRESS": f"{host(context, given)}:{context.port}",
        "JAX_NUM_PROCESSES": str(context.world),
        "JAX_PROCESS_ID": str(rank),
    }


def _tensorflow(context: Context, slot: int, local: int, given: Mapping[str, str]) -> str:
    """Every process listens: on the rendezvous' port plus its rank."""
    cluster: dict[str, list[str]] = {}
    task = {"type": context.slots[slot].role, "index": 0}
    for place in context.slots:
        for number in range(place.processes):
            if (place.slot, number) == (slot, local):
                task["index"] = len(cluster.get(place.role, []))
            port = context.port + context.first_rank(place.slot) + number
            cluster.setdefault(place.role, []).append(f"{_reach(context, place.slot, given)}:{port}")
    return json.dumps({"cluster": cluster, "task": task})


def _mpi() -> dict[str, str]:
    """Open MPI counts slots and refuses root by itself; both were decided before us. MPICH does not look."""
    known = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return known | (root if os.geteuid() == 0 else {})


def _reach(context: Context, slot: int, given: Mapping[str, str]) -> str:
    place, first = context.slots[slot], host(context, given)
    return place.host or (first if first in _LOOPBACK or slot == 0 else place.node)


def _devices(context: Context, slot: int, local: int, given: Mapping[str, str]) -> dict[str, str]:
    """Where the cluster has chosen devices already, its word stands. Processes of PyTorch choose by LOCAL_RANK among
    all of the slot's; JAX and TensorFlow take all they see, so each of theirs sees its part only."""
    place = context.slots[slot]
    chosen = given.get("CUDA_VISIBLE_DEVICES")
    seen = [one for one in chosen.split(",") if one] if chosen is not None else [str(one) for one in place.devices]
    if context.framework in ("jax", "tensorflow") and place.processes > 1 and len(seen) % place.processes == 0:
        share = len(seen) // place.processes
        seen = seen[local * share : (local + 1) * share]
    return {"CUDA_VISIBLE_DEVICES": ",".join(seen)} if seen or chosen is not None else {}


def _threads(context: Context, slot: int, given: Mapping[str, str]) -> dict[str, str]:
    place = context.slots[slot]
    if not place.cpus or "OMP_NUM_THREADS" in given or "OMP_NUM_THREADS" in context.env:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, place.cpus // 1000 // place.processes))}


def _upper(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name).upper()
