"""What rank 0 does behind the training: publish steps when every rank's part is durable, and sweep."""

import contextlib
import shutil
import threading
from collections.abc import Callable

from falaj.core.errors import FalajError, Unavailable
from falaj.state.files import Folder, names, put
from falaj.state.format import Manifest, merged, understand

_LOOK_S = 0.02


class Publisher:
    """Watches the parts of steps that are being saved."""

    def __init__(self, folder: Folder, world: int, sweep: "Sweep", tell: Callable[[str], None]) -> None:
        self._folder, self._world, self._sweep, self._tell = folder, world, sweep, tell
        self._turn = threading.Condition()
        self._pending: set[int] = set()
        self._thread: threading.Thread | None = None

    def expect(self, step: int) -> None:
        """All ranks began to save it. Older ones are given up when this one is there first."""
        with self._turn:
            self._pending.add(step)
            self._turn.notify_all()
            if self._thread is None:
                # A daemon: when the process ends what is not published will not be.
                self._thread = threading.Thread(target=self._watch, name="falaj-publish", daemon=True)
                self._thread.start()

    def settled(self, timeout_s: float) -> bool:
        """Wait until nothing is pending."""
        with self._turn:
            return self._turn.wait_for(lambda: not self._pending, timeout_s)

    def close(self) -> None:
        """Give up what is pending."""
        with self._turn:
            self._pending.clear()
            thread, self._thread = self._thread, None
            self._turn.notify_all()
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._pending or self._thread is None)
                steps = sorted(self._pending, reverse=True)
                if self._thread is None:
                    return
            over = next((step for step in steps if self._over(step)), None)
            with self._turn:
                if over is None:
                    self._turn.wait(_LOOK_S)
                else:
                    self._pending = {step for step in self._pending if step > over}
                    self._turn.notify_all()

    def _over(self, step: int) -> bool:
        """Whether it is published, or never will be."""
        part = self._folder.part(step)
        try:
            there = names(part)
            failed = sorted(name for name in there if name.endswith(".failed"))
            if failed:
                self._tell(f"step {step} was not saved: rank {failed[0].partition('.')[0]} could not write")
            elif all(f"{rank}.json" in there for rank in range(self._world)):
                self._publish(step)
            else:
                return False
        except (OSError, FalajError) as error:
            self._tell(f"step {step} was not published: {error}")
        shutil.rmtree(part, ignore_errors=True)
        return True

    def _publish(self, step: int) -> None:
        part = self._folder.part(step)
        made = merged(understand((part / f"{rank}.json").read_bytes()) for rank in range(self._world))
        with self._folder.locked():
            if why := self._folder.lacking(made.files):
                raise Unavailable(why, "the next save writes it again")
            put(self._folder.manifest(step), made.text())
            self._sweep.knows(made)
            shutil.rmtree(part, ignore_errors=True)
            self._sweep.sweep()


class Sweep:
    """What is kept: the newest, and every so-manieth."""

    def __init__(self, folder: Folder, keep: int, keep_every: int = 0) -> None:
        self._folder, self._keep, self._keep_every = folder, max(1, keep), keep_every
        self._files: dict[tuple[int, int], frozenset[str]] = {}

    def knows(self, manifest: Manifest) -> None:
        """It need not be read again."""
        self._files[self._key(manifest.step)] = frozenset(manifest.files)

    def sweep(self) -> None:
        """Remove manifests that are not kept, and pieces that no manifest and no save under way speaks of.

        The folder is locked. Others may be writing: they claim a piece before it appears, so those that are listed
        here first are claimed when the claims are read. Where a claim still comes too late the piece is missed when
        that save is to be published, and it is not.
        """
        there = names(self._folder.pieces)
        wanted: set[str] = set()
        kept = 0
        for step in self._folder.steps():
            files = self._of(step)
            if files is None:
                return
            if kept < self._keep or (self._keep_every and step % self._keep_every == 0):
                wanted |= files
                kept += bool(files)
            else:
                self._folder.manifest(step).unlink(missing_ok=True)
        wanted |= self._claimed()
        for name in there:
            if name not in wanted and not name.startswith(f".{self._folder.attempt}."):
                (self._folder.pieces / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Before anybody of this attempt saves: what saves that never ended left behind is of no use to anyone."""
        with contextlib.suppress(FileNotFoundError):
            for path in self._folder.parts.iterdir():
                shutil.rmtree(path, ignore_errors=True)
            for path in self._folder.pieces.glob(".*"):
                path.unlink(missing_ok=True)

    def _of(self, step: int) -> frozenset[str] | None:
        """Which pieces a manifest needs: none when it is broken, None when we cannot tell."""
        try:
            key = self._key(step)
            if key not in self._files:
                self._files[key] = frozenset(understand(self._folder.manifest(step).read_bytes()).files)
            return self._files[key]
        except (OSError, Unavailable):
            return None
        except FalajError:
            return frozenset()

    def _key(self, step: int) -> tuple[int, int]:
        return step, self._folder.manifest(step).stat().st_mtime_ns

    def _claimed(self) -> set[str]:
        """What saves under way need. Those of other attempts are given up: one attempt of a job runs at a time."""
        wanted: set[str] = set()
        for part in self._folder.parts.iterdir():
            if not part.name.endswith(f"-{self._folder.attempt}"):
                shutil.rmtree(part, ignore_errors=True)
                continue
            for claims in part.glob("*.list"):
                with contextlib.suppress(FileNotFoundError):
                    wanted.update(claims.read_text().split())
        return wanted
