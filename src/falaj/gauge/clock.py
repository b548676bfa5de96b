"""How long steps and phases take, by the clock of the device that works on them, read once it has passed: a clock that
made the loop wait would measure itself."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

_KEPT = 256
_PAUSE_S = 0.01
"""Events cost microseconds: where steps are shorter than this, one stands for several."""


class _Now:
    """An event of a processor that has done its work when it says so."""

    def record(self, stream: object) -> None:
        del stream
        self.at = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: "_Now") -> float:
        return 1000 * (later.at - self.at)


class Clock:
    """Events between the kernels of a device that works behind the host, read when they have passed."""

    def __init__(self, device: str) -> None:
        self._event: Callable[[], Any] = _Now
        self._stream: Any = None
        if device.startswith("cuda"):
            import torch

            self._event = partial(cast("Any", torch.cuda.Event), enable_timing=True)
            self._stream = torch.cuda.current_stream(device)
        self._free: list[Any] = []
        self._marks: deque[tuple[Any, int]] = deque()
        self._open: deque[tuple[str, Any, Any]] = deque()
        self._since, self._due = 0, 0.0

    def mark(self) -> float:
        """A step ends here; gives the host's time."""
        now = time.perf_counter()
        self._since += 1
        if now >= self._due:
            self._due = now + _PAUSE_S
            self._marks.append((self.begin(), self._since))
            self._since = 0
            if len(self._marks) > _KEPT:
                self._free.append(self._marks.popleft()[0])
        return now

    def begin(self) -> Any:
        """A phase begins; give what this gives to `end`."""
        event = self._free.pop() if self._free else self._event()
        event.record(self._stream)
        return event

    def end(self, name: str, begun: Any) -> None:
        """A phase ends."""
        self._open.append((name, begun, self.begin()))
        if len(self._open) > _KEPT * 4:
            self._free += self._open.popleft()[1:]

    def steps(self) -> list[float]:
        """Seconds of the steps that ended since this was asked last, as far as the device has come."""
        found = []
        while len(self._marks) > 1 and self._marks[1][0].query():
            first, _ = self._marks.popleft()
            second, count = self._marks[0]
            found.append(first.elapsed_time(second) / 1000 / count)
            self._free.append(first)
        return found

    def phases(self) -> dict[str, float]:
        """Seconds in each phase since this was asked last, as far as the device has come."""
        found: dict[str, float] = {}
        while self._open and self._open[0][2].query():
            name, begun, ended = self._open.popleft()
            found[name] = found.get(name, 0.0) + begun.elapsed_time(ended) / 1000
            self._free += [begun, ended]
        return found


class Late:
    """Numbers that may still be on a device: copied behind its work, and read when they have come."""

    def __init__(self) -> None:
        self._coming: deque[tuple[int, dict[str, Any], Any]] = deque()

    def put(self, step: int, values: dict[str, Any]) -> None:
        """Numbers and tensors of one element, of a step."""
        found: dict[str, Any] = {}
        event: Any = None
        for name, value in values.items():
            if getattr(value, "is_cuda", False):
                import torch

                # The source must not be freed, nor the copy be pageable, or the host would wait for it.
                there = torch.empty((), dtype=torch.float32, pin_memory=True)
                there.copy_(value.detach().reshape(()), non_blocking=True)
                event = event or cast("Any", torch.cuda.Event)()
                found[name] = there
            else:
                found[name] = float(value)
        if event is not None:
            event.record()
        self._coming.append((step, found, event))

    def take(self, wait_s: float = 0.0) -> list[tuple[int, dict[str, float]]]:
        """What has come, by step; waits so long for more, and no longer: the device may never answer again."""
        found, until = [], time.monotonic() + wait_s
        while self._coming:
            step, values, event = self._coming[0]
            if event is None or event.query():
                self._coming.popleft()
                found.append((step, {name: float(value) for name, value in values.items()}))
            elif time.monotonic() < until:
                time.sleep(0.001)
            else:
                break
        return found
