"""A folder of checkpoints."""

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from falaj.core.errors import CorruptData, FalajError, Invalid, Unavailable
from falaj.state.checkpoint_folder import CheckpointFolder, SaveId
from falaj.state.host_snapshot import HostSnapshot
from falaj.state.manifest import CheckpointManifest, parse_manifest
from falaj.state.piece_reader import fill_tensors, find_damaged_piece, list_needs
from falaj.state.piece_writer import PieceWriter
from falaj.state.publisher import CheckpointCleaner, StepPublisher

if TYPE_CHECKING:
    from falaj.state.node_memory import NodeMemory

DURABLE_TIMEOUT_S = 600.0
_POLL_INTERVAL_S = 0.02


class FoundCheckpoint(NamedTuple):
    """A whole checkpoint."""

    step: int
    meta: Mapping[str, Any]
    path: str = ""
    digest: str = ""
    """Of its manifest: those who are told of it read the same, or fail."""
    passed_over: tuple[str, ...] = ()
    """Newer ones that were not taken, and why."""


class CheckpointStore:
    """Those of one job, as one of its ranks sees them. Ranks meet in the folder only: no method speaks to others.

    `peers` are the ranks that hold the same plain tensors as this one: all, unless the model is cut into stages.
    `attempt` is the same for all ranks that run together, and another for those that ran before.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int = 0,
        world: int = 1,
        keep: int = 3,
        keep_every: int = 0,
        peers: Sequence[int] = (),
        attempt: str = "",
    ) -> None:
        self.folder, self.rank, self.world = folder, rank, world
        self._checkpoint_folder = CheckpointFolder(folder, attempt or _find_attempt_id(world))
        self._io_pool = ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1)), "falaj-state")
        self._save_executor = ThreadPoolExecutor(1, "falaj-save")
        self._snapshot = HostSnapshot(rank, peers or range(world))
        self._writer = PieceWriter(self._checkpoint_folder, rank, world, self._io_pool)
        self._cleaner = CheckpointCleaner(self._checkpoint_folder, keep, keep_every)
        self._publisher = StepPublisher(self._checkpoint_folder, world, self._cleaner, self._add_problem)
        self._problems: list[str] = []
        self._writing: Future[None] | None = None
        self._save_id = SaveId(-1, -1)
        self.memory: NodeMemory | None = None
        """Set it to keep the newest snapshot on two nodes."""

    def warm(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Get the memory that saves of these tensors need, before the first step rather than in the first save."""
        self._snapshot.plan(tensors)

    def save(
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor],
        meta: Mapping[str, Any],
        *,
        late_names: Collection[str] = (),
        durable: bool = True,
    ) -> float:
        """Begin to save; gives how long the caller stood still. The tensors may change as soon as it returns, but for
        those named in `late_names`: these, after `fence`. One that is not `durable` goes to the memory of the nodes
        only.

        Tensors may be DTensors: each rank writes the pieces it has, and of copies one rank writes one. A save while the
        last one still writes waits for it: all ranks save the same steps, and the newest must not be lost.
        """
        started_at = time.perf_counter()
        plain_meta = _copy_as_json(meta)
        self._finish_writing()
        self._snapshot.take(tensors, late_names)
        self._save_id = SaveId(step, self._save_id.number + 1)
        durable = durable or self.memory is None
        if self.rank == 0 and durable:
            self._publisher.expect(self._save_id)
        self._writing = self._save_executor.submit(self._write_save, self._save_id, plain_meta, durable=durable)
        return time.perf_counter() - started_at

    def fence(self) -> None:
        """Let what follows, on the device too, come after the copy of tensors that were named in `later`."""
        self._snapshot.fence()

    def busy(self) -> bool:
        """Whether a save would have to wait for the last one."""
        return self._writing is not None and not self._writing.done()

    def settle(self, timeout_s: float = DURABLE_TIMEOUT_S) -> int:
        """Wait until what was begun is durable on all ranks; gives the newest step that is, -1 when none."""
        deadline = time.monotonic() + timeout_s
        if self._writing is not None:
            wait([self._writing], timeout_s)
        self._wait_for_publishing(deadline)
        return next(iter(self._checkpoint_folder.steps()), -1)

    def problems(self) -> list[str]:
        """What went wrong behind the training since the last call. It goes on, and the next save tries again."""
        if self._writing is not None and self._writing.done():
            self._finish_writing()
        problems, self._problems = self._problems, []
        return problems

    def newest(self, *, verify: bool = True, before: int | None = None) -> FoundCheckpoint | None:
        """The newest whole checkpoint whose bytes are what they were. Rank 0 asks, before anybody saves, and tells all.

        Without `verify` its pieces are there, but not read: for when every rank makes its `check` of those it needs.
        """
        if self.rank == 0 and self._save_id.number < 0:
            self._cleaner.clear()
        passed_over: list[str] = []
        for step in self._checkpoint_folder.steps():
            if before is not None and step >= before:
                continue
            path = self._checkpoint_folder.manifest(step)
            try:
                manifest = self._read_complete(path, verify=verify)
            except (FalajError, OSError) as error:
                passed_over.append(f"step {step}: {getattr(error, 'message', error)}")
                if isinstance(error, CorruptData):
                    self._rename_broken(path)
                continue
            return FoundCheckpoint(step, manifest.meta, str(path), manifest.digest, tuple(passed_over))
        return None

    def check(
        self, checkpoint: FoundCheckpoint, targets: Mapping[str, torch.Tensor] | None = None, *, strict: bool = True
    ) -> bool:
        """Whether the bytes that this rank needs (all, when it does not say for what) are what they were."""
        try:
            manifest = self._read_manifest(checkpoint)
            files = (
                manifest.files
                if targets is None
                else {need.piece.file for need in list_needs(manifest, targets, strict=strict)}
            )
            return not find_damaged_piece(self._checkpoint_folder.pieces, files, self._io_pool, self._writer.known)
        except (CorruptData, Unavailable, OSError):
            return False

    def reject(self, checkpoint: FoundCheckpoint) -> None:
        """A rank found it broken: nobody is to find it again."""
        self._rename_broken(Path(checkpoint.path))

    def load(self, checkpoint: FoundCheckpoint, targets: Mapping[str, torch.Tensor], *, strict: bool = True) -> None:
        """Fill tensors with what was saved under their names, each rank the part it holds, however it was cut then.

        Nothing is touched before all that this rank needs is found right. Not `strict`: tensors that were not saved
        stay as they are, and those of another dtype are cast.
        """
        needed = list_needs(self._read_manifest(checkpoint), targets, strict=strict)
        if fault := find_damaged_piece(
            self._checkpoint_folder.pieces, {need.piece.file for need in needed}, self._io_pool, self._writer.known
        ):
            raise CorruptData(f"the checkpoint of step {checkpoint.step} is broken: {fault}", "take the one before it")
        fill_tensors(self._checkpoint_folder.pieces, needed, self._io_pool)

    def restore(
        self,
        targets: Mapping[str, torch.Tensor],
        broadcast: Callable[[FoundCheckpoint | None], FoundCheckpoint | None] = lambda checkpoint: checkpoint,
        all_agree: Callable[[bool], bool] = lambda is_fine: is_fine,
    ) -> FoundCheckpoint | None:
        """Load the newest that is right on all ranks: `broadcast` gives all what rank 0 says, `all_agree` if all say
        yes."""
        passed_over: tuple[str, ...] = ()
        in_memory = self.memory.newest() if self.memory else None
        while True:
            checkpoint = broadcast(self.newest(verify=False) if self.rank == 0 else None)
            if self.memory and in_memory and in_memory.manifest.step > (checkpoint.step if checkpoint else -1):
                needed = self.memory.fetch(in_memory, targets)
                if all_agree(needed is not None):
                    self.memory.load(needed or ())
                    return FoundCheckpoint(in_memory.manifest.step, in_memory.manifest.meta, passed_over=passed_over)
                passed_over += (f"step {in_memory.manifest.step}, in memory: its bytes are not what was written",)
                in_memory = None
            if checkpoint is None:
                return None
            passed_over += checkpoint.passed_over
            if all_agree(self.check(checkpoint, targets)):
                self.load(checkpoint, targets)
                return checkpoint._replace(passed_over=passed_over)
            passed_over += (f"step {checkpoint.step}: its bytes are not what was written",)
            if self.rank == 0:
                self.reject(checkpoint)

    def close(self, timeout_s: float = 120.0, *, job_done: bool = False) -> None:
        """Settle, and let go of buffers; of what is in the memory of nodes, too, when the job is done."""
        self.settle(timeout_s)
        self._publisher.close()
        self._save_executor.shutdown()
        if self.memory:
            self.memory.close(job_done=job_done)
        self._io_pool.shutdown()
        self._snapshot.close()

    def _write_save(self, save_id: SaveId, meta: dict[str, Any], *, durable: bool) -> None:
        if durable:
            self._writer.write(save_id, self._snapshot, meta)
        if self.memory:
            try:
                self.memory.keep(save_id, self._snapshot, meta)
            except (OSError, RuntimeError, FalajError) as error:
                # Who is lost does not come back to this group: the next attempt makes another.
                self.memory = None
                self._add_problem(f"snapshots are no longer kept in memory: {error}")

    def _add_problem(self, text: str) -> None:
        self._problems.append(text)

    def _finish_writing(self) -> None:
        """Wait for the pieces of the last save, so that its buffers are free; what went wrong with it is told once."""
        if self._writing is not None:
            if error := self._writing.exception():
                self._add_problem(f"step {self._save_id.step} was not saved: {error}")
            self._writing = None

    def _wait_for_publishing(self, deadline: float) -> None:
        if self.rank == 0:
            self._publisher.settled(max(0.0, deadline - time.monotonic()))
            return
        part_path = self._checkpoint_folder.part(self._save_id)
        # Rank 0 takes it away when the step is published, perhaps while we look.
        with contextlib.suppress(FileNotFoundError):
            while not any(name.endswith(".failed") for name in os.listdir(part_path)) and time.monotonic() < deadline:  # noqa: PTH208 - names alone
                time.sleep(_POLL_INTERVAL_S)

    def _read_manifest(self, checkpoint: FoundCheckpoint) -> CheckpointManifest:
        manifest = parse_manifest(Path(checkpoint.path).read_bytes())
        if checkpoint.digest and manifest.digest != checkpoint.digest:
            raise Unavailable(f"the checkpoint of step {checkpoint.step} is another now", "choose again")
        return manifest

    def _read_complete(self, path: Path, *, verify: bool) -> CheckpointManifest:
        manifest = parse_manifest(path.read_bytes())
        fault = self._checkpoint_folder.lacking(manifest.files)
        if not fault and verify:
            fault = find_damaged_piece(
                self._checkpoint_folder.pieces, manifest.files, self._io_pool, self._writer.known
            )
        if fault:
            raise CorruptData(fault, "the one before it is taken")
        return manifest

    def _rename_broken(self, path: Path) -> None:
        if self.rank == 0:
            with contextlib.suppress(OSError):
                path.rename(path.with_name(f"{path.name}.bad"))


def _copy_as_json(meta: Mapping[str, Any]) -> dict[str, Any]:
    """A copy, as it will be read."""
    try:
        return dict(json.loads(json.dumps(dict(meta))))
    except (TypeError, ValueError) as error:
        raise Invalid(
            f"the meta of a checkpoint is not JSON: {error}", "numbers, texts, lists and mappings are"
        ) from None


def _find_attempt_id(world: int) -> str:
    """What tells the ranks that run together from those that ran before."""
    id_parts = [
        os.environ.get(name, "") for name in ("FALAJ_ATTEMPT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    ]
    if world == 1:
        return uuid.uuid4().hex[:12]
    return "".join(letter if letter.isalnum() else "-" for letter in "-".join(filter(None, id_parts))) or "0"
