"""What rank 0 does behind the training: publish steps when every rank's part is durable, and sweep."""

import contextlib
import shutil
import threading
from collections.abc import Callable

from falaj.core.errors import FalajError, Unavailable
from falaj.state.checkpoint_folder import CheckpointFolder, SaveId, list_names, write_durable
from falaj.state.manifest import CheckpointManifest, merge_manifests, parse_manifest

_POLL_INTERVAL_S = 0.02


class StepPublisher:
    """Watches the parts of steps that are being saved."""

    def __init__(
        self, folder: CheckpointFolder, world: int, cleaner: "CheckpointCleaner", report: Callable[[str], None]
    ) -> None:
        self._folder, self._world, self._cleaner, self._report = folder, world, cleaner, report
        self._changed = threading.Condition()
        self._pending: list[SaveId] = []
        self._thread: threading.Thread | None = None

    def expect(self, save_id: SaveId) -> None:
        """All ranks begin to save it. Older ones are given up when this one is whole first."""
        with self._changed:
            self._pending.append(save_id)
            self._changed.notify_all()
            if self._thread is None:
                # A daemon: what is not published when the process ends will not be.
                self._thread = threading.Thread(target=self._watch_parts, name="falaj-publish", daemon=True)
                self._thread.start()

    def settled(self, timeout_s: float) -> bool:
        """Wait until nothing is pending."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout_s)

    def close(self) -> None:
        """Give up what is pending."""
        with self._changed:
            self._pending, thread, self._thread = [], self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _watch_parts(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._thread is None)
                if self._thread is None:
                    return
                pending = list(self._pending)
            finished = {save_id for save_id in pending if self._try_finish(save_id)}
            with self._changed:
                self._pending = [save_id for save_id in self._pending if save_id not in finished]
                self._changed.notify_all()
                if not finished:
                    self._changed.wait(_POLL_INTERVAL_S)

    def _try_finish(self, save_id: SaveId) -> bool:
        """Whether it is published, or never will be."""
        part_path = self._folder.part(save_id)
        present = list_names(part_path)
        failed = [name for name in present if name.endswith(".failed")]
        if not failed and not all(f"{rank}.json" in present for rank in range(self._world)):
            return self._cleaner.published.number > save_id.number
        try:
            if failed:
                raise Unavailable(f"rank {failed[0].partition('.')[0]} could not write its part")
            self._publish_step(save_id)
        except (OSError, FalajError) as error:
            self._report(f"step {save_id.step} was not published: {error}")
            with contextlib.suppress(OSError):
                (part_path / "0.failed").touch()
                with self._folder.locked():
                    self._cleaner.sweep()
        return True

    def _publish_step(self, save_id: SaveId) -> None:
        part_path = self._folder.part(save_id)
        manifest = merge_manifests(
            parse_manifest((part_path / f"{rank}.json").read_bytes()) for rank in range(self._world)
        )
        with self._folder.locked():
            if fault := self._folder.lacking(manifest.files):
                raise Unavailable(fault, "the next save writes it again")
            write_durable(self._folder.manifest(save_id.step), manifest.text())
            self._cleaner.knows(manifest, save_id)
            shutil.rmtree(part_path, ignore_errors=True)
            self._cleaner.sweep()


class CheckpointCleaner:
    """Removes what is not kept: the newest are, and every so-manieth."""

    def __init__(self, folder: CheckpointFolder, keep: int, keep_every: int = 0) -> None:
        self._folder, self._keep, self._keep_every = folder, max(1, keep), keep_every
        self._files: dict[tuple[int, int], frozenset[str]] = {}
        self.published = SaveId(-1, -1)

    def knows(self, manifest: CheckpointManifest, save_id: SaveId) -> None:
        """It is published, and need not be read again."""
        self._files[self._build_cache_key(manifest.step)] = frozenset(manifest.files)
        self.published = max(self.published, save_id, key=lambda candidate: candidate.number)

    def sweep(self) -> None:
        """Remove manifests that are not kept, and pieces that no manifest and no save under way speaks of.

        The folder is locked. Others may be writing: they claim a piece before it appears, so those that are listed
        here first are claimed when the claims are read. Where a claim still comes too late the piece is missed when
        that save is to be published, and it is not.
        """
        present, kept_count = list_names(self._folder.pieces), 0
        needed = self._list_claimed()
        cached, self._files = self._files, {}
        for step in self._folder.steps():
            files = self._read_piece_names(step, cached)
            if files is None:
                return
            if files and kept_count >= self._keep and not (self._keep_every and step % self._keep_every == 0):
                self._folder.manifest(step).unlink(missing_ok=True)
                continue
            needed |= files
            kept_count += bool(files)
        for name in present - needed:
            if not name.startswith(f".{self._folder.attempt}."):
                (self._folder.pieces / name).unlink(missing_ok=True)
        for path in self._folder.path.glob(".step-*"):
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Before anybody of this attempt saves: what others left behind under its name would mix with it."""
        for name in list_names(self._folder.parts):
            if self._folder.split(name)[1] == self._folder.attempt:
                shutil.rmtree(self._folder.parts / name, ignore_errors=True)
        for path in self._folder.pieces.glob(f".{self._folder.attempt}.*"):
            path.unlink(missing_ok=True)

    def _read_piece_names(self, step: int, cached: dict[tuple[int, int], frozenset[str]]) -> frozenset[str] | None:
        """Which pieces a manifest needs: none when it is broken, None when we cannot tell."""
        try:
            key = self._build_cache_key(step)
            files = cached.get(key)
            if files is None:
                files = frozenset(parse_manifest(self._folder.manifest(step).read_bytes()).files)
        except (OSError, Unavailable):
            return None
        except FalajError:
            return frozenset()
        self._files[key] = files
        return files

    def _build_cache_key(self, step: int) -> tuple[int, int]:
        return step, self._folder.manifest(step).stat().st_mtime_ns

    def _list_claimed(self) -> set[str]:
        """What saves under way need: not those that failed or were overtaken, nor those of other attempts, since of a
        job one attempt runs at a time."""
        claimed = set[str]()
        for name in list_names(self._folder.parts):
            part_path, (save_id, attempt) = self._folder.parts / name, self._folder.split(name)
            if attempt != self._folder.attempt or save_id.number <= self.published.number:
                shutil.rmtree(part_path, ignore_errors=True)
                continue
            failed = any(part_path.glob("*.failed"))
            for path in part_path.iterdir():
                if failed and path.suffix != ".failed":  # which those who wait for it look at
                    path.unlink(missing_ok=True)
                elif path.suffix == ".list":
                    with contextlib.suppress(FileNotFoundError):
                        claimed.update(path.read_text().split())
        return claimed
