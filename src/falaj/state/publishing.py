"""What rank 0 does behind the training: publish steps when every rank's part is durable, and sweep."""

import contextlib
import shutil
import threading
from collections.abc import Callable

from falaj.core.errors import FalajError, Unavailable
from falaj.state.files import Folder, Turn, names, put
from falaj.state.format import Manifest, merged, understand

_LOOK_S = 0.02


class Publisher:
    """Watches the parts of steps that are being saved."""

    def __init__(self, folder: Folder, world: int, sweep: "Sweep", tell: Callable[[str], None]) -> None:
        self._folder, self._world, self._sweep, self._tell = folder, world, sweep, tell
        self._moved = threading.Condition()
        self._pending: list[Turn] = []
        self._thread: threading.Thread | None = None

    def expect(self, turn: Turn) -> None:
        """All ranks begin to save it. Older ones are given up when this one is whole first."""
        with self._moved:
            self._pending.append(turn)
            self._moved.notify_all()
            if self._thread is None:
                # A daemon: what is not published when the process ends will not be.
                self._thread = threading.Thread(target=self._watch, name="falaj-publish", daemon=True)
                self._thread.start()

    def settled(self, timeout_s: float) -> bool:
        """Wait until nothing is pending."""
        with self._moved:
            return self._moved.wait_for(lambda: not self._pending, timeout_s)

    def close(self) -> None:
        """Give up what is pending."""
        with self._moved:
            self._pending, thread, self._thread = [], self._thread, None
            self._moved.notify_all()
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        while True:
            with self._moved:
                self._moved.wait_for(lambda: self._pending or self._thread is None)
                if self._thread is None:
                    return
                turns = list(self._pending)
            over = {turn for turn in turns if self._over(turn)}
            with self._moved:
                self._pending = [turn for turn in self._pending if turn not in over]
                self._moved.notify_all()
                if not over:
                    self._moved.wait(_LOOK_S)

    def _over(self, turn: Turn) -> bool:
        """Whether it is published, or never will be."""
        part = self._folder.part(turn)
        there = names(part)
        failed = [name for name in there if name.endswith(".failed")]
        if not failed and not all(f"{rank}.json" in there for rank in range(self._world)):
            return self._sweep.published.number > turn.number
        try:
            if failed:
                raise Unavailable(f"rank {failed[0].partition('.')[0]} could not write its part")
            self._publish(turn)
        except (OSError, FalajError) as error:
            self._tell(f"step {turn.step} was not published: {error}")
            with contextlib.suppress(OSError):
                (part / "0.failed").touch()
                with self._folder.locked():
                    self._sweep.sweep()
        return True

    def _publish(self, turn: Turn) -> None:
        part = self._folder.part(turn)
        made = merged(understand((part / f"{rank}.json").read_bytes()) for rank in range(self._world))
        with self._folder.locked():
            if why := self._folder.lacking(made.files):
                raise Unavailable(why, "the next save writes it again")
            put(self._folder.manifest(turn.step), made.text())
            self._sweep.knows(made, turn)
            shutil.rmtree(part, ignore_errors=True)
            self._sweep.sweep()


class Sweep:
    """Removes what is not kept: the newest are, and every so-manieth."""

    def __init__(self, folder: Folder, keep: int, keep_every: int = 0) -> None:
        self._folder, self._keep, self._keep_every = folder, max(1, keep), keep_every
        self._files: dict[tuple[int, int], frozenset[str]] = {}
        self.published = Turn(-1, -1)

    def knows(self, manifest: Manifest, turn: Turn) -> None:
        """It is published, and need not be read again."""
        self._files[self._key(manifest.step)] = frozenset(manifest.files)
        self.published = max(self.published, turn, key=lambda one: one.number)

    def sweep(self) -> None:
        """Remove manifests that are not kept, and pieces that no manifest and no save under way speaks of.

        The folder is locked. Others may be writing: they claim a piece before it appears, so those that are listed
        here first are claimed when the claims are read. Where a claim still comes too late the piece is missed when
        that save is to be published, and it is not.
        """
        there, kept = names(self._folder.pieces), 0
        wanted = self._claimed()
        known, self._files = self._files, {}
        for step in self._folder.steps():
            files = self._of(step, known)
            if files is None:
                return
            if files and kept >= self._keep and not (self._keep_every and step % self._keep_every == 0):
                self._folder.manifest(step).unlink(missing_ok=True)
                continue
            wanted |= files
            kept += bool(files)
        for name in there - wanted:
            if not name.startswith(f".{self._folder.attempt}."):
                (self._folder.pieces / name).unlink(missing_ok=True)
        for path in self._folder.path.glob(".step-*"):
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Before anybody of this attempt saves: what others left behind under its name would mix with it."""
        for name in names(self._folder.parts):
            if self._folder.split(name)[1] == self._folder.attempt:
                shutil.rmtree(self._folder.parts / name, ignore_errors=True)
        for path in self._folder.pieces.glob(f".{self._folder.attempt}.*"):
            path.unlink(missing_ok=True)

    def _of(self, step: int, known: dict[tuple[int, int], frozenset[str]]) -> frozenset[str] | None:
        """Which pieces a manifest needs: none when it is broken, None when we cannot tell."""
        try:
            key = self._key(step)
            files = known.get(key)
            if files is None:
                files = frozenset(understand(self._folder.manifest(step).read_bytes()).files)
        except (OSError, Unavailable):
            return None
        except FalajError:
            return frozenset()
        self._files[key] = files
        return files

    def _key(self, step: int) -> tuple[int, int]:
        return step, self._folder.manifest(step).stat().st_mtime_ns

    def _claimed(self) -> set[str]:
        """What saves under way need: not those that failed or were overtaken, nor those of other attempts, since of a
        job one attempt runs at a time."""
        wanted = set[str]()
        for name in names(self._folder.parts):
            part, (turn, attempt) = self._folder.parts / name, self._folder.split(name)
            if attempt != self._folder.attempt or turn.number <= self.published.number:
                shutil.rmtree(part, ignore_errors=True)
                continue
            failed = any(part.glob("*.failed"))
            for path in part.iterdir():
                if failed and path.suffix != ".failed":  # which those who wait for it look at
                    path.unlink(missing_ok=True)
                elif path.suffix == ".list":
                    with contextlib.suppress(FileNotFoundError):
                        wanted.update(path.read_text().split())
        return wanted
