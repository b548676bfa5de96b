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

from falaj.core.errors import Corrupt, FalajError, Invalid, Unavailable
from falaj.state.files import Folder, Turn
from falaj.state.format import Manifest, understand
from falaj.state.publishing import Publisher, Sweep
from falaj.state.reading import fill, needs, wrong
from falaj.state.snapshot import Snapshot
from falaj.state.writing import Writer

if TYPE_CHECKING:
    from falaj.state.memory import Memory

SETTLE_S = 600.0
_LOOK_S = 0.02


class Found(NamedTuple):
    """A whole checkpoint."""

    step: int
    meta: Mapping[str, Any]
    path: str = ""
    digest: str = ""
    """Of its manifest: those who are told of it read the same, or fail."""
    passed_over: tuple[str, ...] = ()
    """Newer ones that were not taken, and why."""


class Checkpoints:
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
        self._place = Folder(folder, attempt or _attempt(world))
        self._hands = ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1)), "falaj-state")
        self._lane = ThreadPoolExecutor(1, "falaj-save")
        self._snapshot = Snapshot(rank, peers or range(world))
        self._writer = Writer(self._place, rank, world, self._hands)
        self._sweep = Sweep(self._place, keep, keep_every)
        self._publisher = Publisher(self._place, world, self._sweep, self._note)
        self._problems: list[str] = []
        self._writing: Future[None] | None = None
        self._turn = Turn(-1, -1)
        self.memory: Memory | None = None
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
        later: Collection[str] = (),
        durable: bool = True,
    ) -> float:
        """Begin to save; gives how long the caller stood still. The tensors may change as soon as it returns, but for
        those named in `later`: these, after `fence`. One that is not `durable` goes to the memory of the nodes only.

        Tensors may be DTensors: each rank writes the pieces it has, and of copies one rank writes one. A save while the
        last one still writes waits for it: all ranks save the same steps, and the newest must not be lost.
        """
        began = time.perf_counter()
        kept = _plain(meta)
        self._written()
        self._snapshot.take(tensors, later)
        self._turn = Turn(step, self._turn.number + 1)
        durable = durable or self.memory is None
        if self.rank == 0 and durable:
            self._publisher.expect(self._turn)
        self._writing = self._lane.submit(self._write, self._turn, kept, durable=durable)
        return time.perf_counter() - began

    def fence(self) -> None:
        """Let what follows, on the device too, come after the copy of tensors that were named in `later`."""
        self._snapshot.fence()

    def busy(self) -> bool:
        """Whether a save would have to wait for the last one."""
        return self._writing is not None and not self._writing.done()

    def settle(self, timeout_s: float = SETTLE_S) -> int:
        """Wait until what was begun is durable on all ranks; gives the newest step that is, -1 when none."""
        until = time.monotonic() + timeout_s
        if self._writing is not None:
            wait([self._writing], timeout_s)
        self._published(until)
        return next(iter(self._place.steps()), -1)

    def problems(self) -> list[str]:
        """What went wrong behind the training since the last call. It goes on, and the next save tries again."""
        if self._writing is not None and self._writing.done():
            self._written()
        told, self._problems = self._problems, []
        return told

    def newest(self, *, verify: bool = True, before: int | None = None) -> Found | None:
        """The newest whole checkpoint whose bytes are what they were. Rank 0 asks, before anybody saves, and tells all.

        Without `verify` its pieces are there, but not read: for when every rank makes its `check` of those it needs.
        """
        if self.rank == 0 and self._turn.number < 0:
            self._sweep.clear()
        passed: list[str] = []
        for step in self._place.steps():
            if before is not None and step >= before:
                continue
            path = self._place.manifest(step)
            try:
                manifest = self._whole(path, verify=verify)
            except (FalajError, OSError) as error:
                passed.append(f"step {step}: {getattr(error, 'message', error)}")
                if isinstance(error, Corrupt):
                    self._bad(path)
                continue
            return Found(step, manifest.meta, str(path), manifest.digest, tuple(passed))
        return None

    def check(self, found: Found, into: Mapping[str, torch.Tensor] | None = None, *, strict: bool = True) -> bool:
        """Whether the bytes that this rank needs (all, when it does not say for what) are what they were."""
        try:
            manifest = self._read(found)
            files = (
                manifest.files if into is None else {need.piece.file for need in needs(manifest, into, strict=strict)}
            )
            return not wrong(self._place.pieces, files, self._hands, self._writer.known)
        except (Corrupt, Unavailable, OSError):
            return False

    def reject(self, found: Found) -> None:
        """A rank found it broken: nobody is to find it again."""
        self._bad(Path(found.path))

    def load(self, found: Found, into: Mapping[str, torch.Tensor], *, strict: bool = True) -> None:
        """Fill tensors with what was saved under their names, each rank the part it holds, however it was cut then.

        Nothing is touched before all that this rank needs is found right. Not `strict`: tensors that were not saved
        stay as they are, and those of another dtype are cast.
        """
        wanted = needs(self._read(found), into, strict=strict)
        if why := wrong(self._place.pieces, {need.piece.file for need in wanted}, self._hands, self._writer.known):
            raise Corrupt(f"the checkpoint of step {found.step} is broken: {why}", "take the one before it")
        fill(self._place.pieces, wanted, self._hands)

    def restore(
        self,
        into: Mapping[str, torch.Tensor],
        tell: Callable[[Found | None], Found | None] = lambda found: found,
        every: Callable[[bool], bool] = lambda fine: fine,
    ) -> Found | None:
        """Load the newest that is right on all ranks: `tell` gives all what rank 0 says, `every` if all say yes."""
        passed: tuple[str, ...] = ()
        held = self.memory.newest() if self.memory else None
        while True:
            found = tell(self.newest(verify=False) if self.rank == 0 else None)
            if self.memory and held and held.manifest.step > (found.step if found else -1):
                wanted = self.memory.fetch(held, into)
                if every(wanted is not None):
                    self.memory.load(wanted or ())
                    return Found(held.manifest.step, held.manifest.meta, passed_over=passed)
                passed += (f"step {held.manifest.step}, in memory: its bytes are not what was written",)
                held = None
            if found is None:
                return None
            passed += found.passed_over
            if every(self.check(found, into)):
                self.load(found, into)
                return found._replace(passed_over=passed)
            passed += (f"step {found.step}: its bytes are not what was written",)
            if self.rank == 0:
                self.reject(found)

    def close(self, timeout_s: float = 120.0, *, done: bool = False) -> None:
        """Settle, and let go of buffers; of what is in the memory of nodes, too, when the job is done."""
        self.settle(timeout_s)
        self._publisher.close()
        self._lane.shutdown()
        if self.memory:
            self.memory.close(done=done)
        self._hands.shutdown()
        self._snapshot.close()

    def _write(self, turn: Turn, meta: dict[str, Any], *, durable: bool) -> None:
        if durable:
            self._writer.write(turn, self._snapshot, meta)
        if self.memory:
            try:
                self.memory.keep(turn, self._snapshot, meta)
            except (OSError, RuntimeError, FalajError) as error:
                # Who is lost does not come back to this group: the next attempt makes another.
                self.memory = None
                self._note(f"snapshots are no longer kept in memory: {error}")

    def _note(self, text: str) -> None:
        self._problems.append(text)

    def _written(self) -> None:
        """Wait for the pieces of the last save, so that its buffers are free; what went wrong with it is told once."""
        if self._writing is not None:
            if error := self._writing.exception():
                self._note(f"step {self._turn.step} was not saved: {error}")
            self._writing = None

    def _published(self, until: float) -> None:
        if self.rank == 0:
            self._publisher.settled(max(0.0, until - time.monotonic()))
            return
        part = self._place.part(self._turn)
        # Rank 0 takes it away when the step is published, perhaps while we look.
        with contextlib.suppress(FileNotFoundError):
            while not any(name.endswith(".failed") for name in os.listdir(part)) and time.monotonic() < until:  # noqa: PTH208 - names alone
                time.sleep(_LOOK_S)

    def _read(self, found: Found) -> Manifest:
        manifest = understand(Path(found.path).read_bytes())
        if found.digest and manifest.digest != found.digest:
            raise Unavailable(f"the checkpoint of step {found.step} is another now", "choose again")
        return manifest

    def _whole(self, path: Path, *, verify: bool) -> Manifest:
        manifest = understand(path.read_bytes())
        why = self._place.lacking(manifest.files)
        if not why and verify:
            why = wrong(self._place.pieces, manifest.files, self._hands, self._writer.known)
        if why:
            raise Corrupt(why, "the one before it is taken")
        return manifest

    def _bad(self, path: Path) -> None:
        if self.rank == 0:
            with contextlib.suppress(OSError):
                path.rename(path.with_name(f"{path.name}.bad"))


def _plain(meta: Mapping[str, Any]) -> dict[str, Any]:
    """A copy, as it will be read."""
    try:
        return dict(json.loads(json.dumps(dict(meta))))
    except (TypeError, ValueError) as error:
        raise Invalid(
            f"the meta of a checkpoint is not JSON: {error}", "numbers, texts, lists and mappings are"
        ) from None


def _attempt(world: int) -> str:
    """What tells the ranks that run together from those that ran before."""
    known = [
        os.environ.get(name, "") for name in ("FALAJ_ATTEMPT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    ]
    if world == 1:
        return uuid.uuid4().hex[:12]
    return "".join(letter if letter.isalnum() else "-" for letter in "-".join(filter(None, known))) or "0"
