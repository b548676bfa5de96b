"""How processes of one attempt find each other: a pure function from document, slot and local rank to environment.

PyTorch and TensorFlow get what their own launchers would have set, so `torch.distributed.init_process_group()` and
`tf.distribute.MultiWorkerMirroredStrategy()` work without arguments. JAX reads only the coordinator's address itself:
`worker.attempt().join_jax()` hands it the rest. MPI and Horovod bring a launcher, which slot 0 starts once for all.
"""

import json
import os
from collections.abc import Mapping

from falaj.core.errors import Invalid
from falaj.worker.attempt_context import AttemptContext

MPI_FRAMEWORKS = ("mpi", "horovod")
_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
_CLUSTER_RANK_VARIABLES = ("PMIX_RANK", "PMI_RANK")


def make_rank_environment(
    context: AttemptContext, slot: int, local_rank: int, launcher_environment: Mapping[str, str]
) -> dict[str, str]:
    """What one process finds in its environment, beside what its launcher was `launcher_environment`."""
    slot_spec = context.slots[slot]
    rank = context.first_rank(slot) + local_rank
    path_variables = {f"FALAJ_INPUT_{_to_variable_name(name)}": path for name, path in context.inputs.items()}
    path_variables |= {f"FALAJ_OUTPUT_{_to_variable_name(name)}": path for name, path in context.outputs.items()}
    variables = {
        **context.env,
        **path_variables,
        "FALAJ_JOB": context.job,
        "FALAJ_RUN": context.run,
        "FALAJ_ATTEMPT": context.attempt,
        "FALAJ_SLOT": str(slot),
        "FALAJ_WORLD": str(context.world),
        "FALAJ_CHECKPOINTS": context.checkpoints,
        **_make_device_environment(context, slot, local_rank, launcher_environment),
        **_make_thread_environment(context, slot, launcher_environment),
    }
    if context.framework not in MPI_FRAMEWORKS:
        variables |= {"FALAJ_RANK": str(rank), "FALAJ_LOCAL_RANK": str(local_rank)}
    if context.framework == "torch":
        variables |= _make_torch_environment(context, slot, local_rank, rank, launcher_environment)
    elif context.framework == "jax" and context.world > 1:
        variables |= _make_jax_environment(context, rank, launcher_environment)
    elif context.framework == "tensorflow" and context.world > 1:
        variables["TF_CONFIG"] = _make_tensorflow_config(context, slot, local_rank, launcher_environment)
    elif context.framework in MPI_FRAMEWORKS:
        variables |= _make_mpi_environment()
    return variables | (
        {"FALAJ_GPU_MILLI": str(slot_spec.milli)} if slot_spec.devices and slot_spec.milli < 1000 else {}
    )


def get_slot_command(context: AttemptContext, slot: int, launcher_environment: Mapping[str, str]) -> tuple[str, ...]:
    """What a slot's processes run; nothing where another slot's launcher starts them."""
    if context.framework not in MPI_FRAMEWORKS or any(name in launcher_environment for name in _CLUSTER_RANK_VARIABLES):
        return context.command
    if len(context.slots) > 1 and get_rendezvous_host(context, launcher_environment) not in _LOOPBACK_HOSTS:
        raise Invalid(
            "MPI over several nodes needs a cluster that starts its processes",
            "on Slurm use srun's own (mpi=pmix); elsewhere ask for one slot with more processes",
        )
    return ("mpirun", "-n", str(context.world), *context.command) if slot == 0 else ()


def count_slot_processes(context: AttemptContext, slot: int, launcher_environment: Mapping[str, str]) -> int:
    """How many processes the launcher of a slot starts itself."""
    is_started_by_cluster = any(name in launcher_environment for name in _CLUSTER_RANK_VARIABLES)
    if context.framework in MPI_FRAMEWORKS and not is_started_by_cluster:
        return 1 if slot == 0 else 0
    return context.slots[slot].processes


def get_rendezvous_host(context: AttemptContext, launcher_environment: Mapping[str, str]) -> str:
    """Where rank 0 waits."""
    return (
        context.host or launcher_environment.get("FALAJ_HOST", "") or ("127.0.0.1" if len(context.slots) == 1 else "")
    )


def needs_port(context: AttemptContext) -> bool:
    """Whether rank 0 will listen."""
    return context.framework in ("torch", "jax", "tensorflow") and context.world > 1


def _make_torch_environment(
    context: AttemptContext, slot: int, local_rank: int, rank: int, launcher_environment: Mapping[str, str]
) -> dict[str, str]:
    return {
        "MASTER_ADDR": get_rendezvous_host(context, launcher_environment),
        "MASTER_PORT": str(context.port),
        "RANK": str(rank),
        "WORLD_SIZE": str(context.world),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(context.slots[slot].processes),
        "GROUP_RANK": str(slot),
        "GROUP_WORLD_SIZE": str(len(context.slots)),
        "TORCHELASTIC_RUN_ID": context.attempt,
    }


def _make_jax_environment(
    context: AttemptContext, rank: int, launcher_environment: Mapping[str, str]
) -> dict[str, str]:
    return {
        "JAX_COORDINATOR_ADDRESS": f"{get_rendezvous_host(context, launcher_environment)}:{context.port}",
        "JAX_NUM_PROCESSES": str(context.world),
        "JAX_PROCESS_ID": str(rank),
    }


def _make_tensorflow_config(
    context: AttemptContext, slot: int, local_rank: int, launcher_environment: Mapping[str, str]
) -> str:
    """Every process listens: on the rendezvous' port plus its rank."""
    cluster: dict[str, list[str]] = {}
    task = {"type": context.slots[slot].role, "index": 0}
    for slot_spec in context.slots:
        for local_index in range(slot_spec.processes):
            if (slot_spec.slot, local_index) == (slot, local_rank):
                task["index"] = len(cluster.get(slot_spec.role, []))
            port = context.port + context.first_rank(slot_spec.slot) + local_index
            cluster.setdefault(slot_spec.role, []).append(
                f"{_get_slot_host(context, slot_spec.slot, launcher_environment)}:{port}"
            )
    return json.dumps({"cluster": cluster, "task": task})


def _make_mpi_environment() -> dict[str, str]:
    """Open MPI counts slots and refuses root by itself; both were decided before us. MPICH does not look."""
    mapping_variables = {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    root_variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return mapping_variables | (root_variables if os.geteuid() == 0 else {})


def _get_slot_host(context: AttemptContext, slot: int, launcher_environment: Mapping[str, str]) -> str:
    slot_spec, rendezvous_host = context.slots[slot], get_rendezvous_host(context, launcher_environment)
    return slot_spec.host or (rendezvous_host if rendezvous_host in _LOOPBACK_HOSTS or slot == 0 else slot_spec.node)


def _make_device_environment(
    context: AttemptContext, slot: int, local_rank: int, launcher_environment: Mapping[str, str]
) -> dict[str, str]:
    """Where the cluster has chosen devices already, its word stands. Processes of PyTorch choose by LOCAL_RANK among
    all of the slot's; JAX and TensorFlow take all they see, so each of theirs sees its part only."""
    slot_spec = context.slots[slot]
    cluster_choice = launcher_environment.get("CUDA_VISIBLE_DEVICES")
    device_ids = (
        [device_id for device_id in cluster_choice.split(",") if device_id]
        if cluster_choice is not None
        else [str(device_id) for device_id in slot_spec.devices]
    )
    if (
        context.framework in ("jax", "tensorflow")
        and slot_spec.processes > 1
        and len(device_ids) % slot_spec.processes == 0
    ):
        devices_per_process = len(device_ids) // slot_spec.processes
        device_ids = device_ids[local_rank * devices_per_process : (local_rank + 1) * devices_per_process]
    return {"CUDA_VISIBLE_DEVICES": ",".join(device_ids)} if device_ids or cluster_choice is not None else {}


def _make_thread_environment(
    context: AttemptContext, slot: int, launcher_environment: Mapping[str, str]
) -> dict[str, str]:
    slot_spec = context.slots[slot]
    if not slot_spec.cpus or "OMP_NUM_THREADS" in launcher_environment or "OMP_NUM_THREADS" in context.env:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, slot_spec.cpus // 1000 // slot_spec.processes))}


def _to_variable_name(name: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in name).upper()
