"""How long steps and phases take, by the clock of the device that works on them, read once it has passed: a clock that
made the loop wait would measure itself."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

_MAX_EVENTS = 256
_MIN_MARK_INTERVAL_S = 0.01
"""Events cost microseconds: where steps are shorter than this, one stands for several."""


class _HostEvent:
    """An event of a processor that has done its work when it says so."""

    def record(self, stream: object) -> None:
        del stream
        self.at = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, later_event: "_HostEvent") -> float:
        return 1000 * (later_event.at - self.at)


class DeviceClock:
    """Events between the kernels of a device that works behind the host, read when they have passed."""

    def __init__(self, device: str) -> None:
        self._new_event: Callable[[], Any] = _HostEvent
        self._stream: Any = None
        if device.startswith("cuda"):
            import torch

            self._new_event = partial(cast("Any", torch.cuda.Event), enable_timing=True)
            self._stream = torch.cuda.current_stream(device)
        self._free_events: list[Any] = []
        self._step_marks: deque[tuple[Any, int]] = deque()
        self._open_phases: deque[tuple[str, Any, Any]] = deque()
        self._steps_since_mark, self._next_mark_at = 0, 0.0

    def mark(self) -> float:
        """A step ends here; gives the host's time."""
        now = time.perf_counter()
        self._steps_since_mark += 1
        if now >= self._next_mark_at:
            self._next_mark_at = now + _MIN_MARK_INTERVAL_S
            self._step_marks.append((self.begin(), self._steps_since_mark))
            self._steps_since_mark = 0
            if len(self._step_marks) > _MAX_EVENTS:
                self._free_events.append(self._step_marks.popleft()[0])
        return now

    def begin(self) -> Any:
        """A phase begins; give what this gives to `end`."""
        event = self._free_events.pop() if self._free_events else self._new_event()
        event.record(self._stream)
        return event

    def end(self, name: str, begin_event: Any) -> None:
        """A phase ends."""
        self._open_phases.append((name, begin_event, self.begin()))
        if len(self._open_phases) > _MAX_EVENTS * 4:
            self._free_events += self._open_phases.popleft()[1:]

    def steps(self) -> list[float]:
        """Seconds of the steps that ended since this was asked last, as far as the device has come."""
        step_times = []
        while len(self._step_marks) > 1 and self._step_marks[1][0].query():
            begin_event, _ = self._step_marks.popleft()
            end_event, count = self._step_marks[0]
            step_times.append(begin_event.elapsed_time(end_event) / 1000 / count)
            self._free_events.append(begin_event)
        return step_times

    def phases(self) -> dict[str, float]:
        """Seconds in each phase since this was asked last, as far as the device has come."""
        phase_times: dict[str, float] = {}
        while self._open_phases and self._open_phases[0][2].query():
            name, begin_event, end_event = self._open_phases.popleft()
            phase_times[name] = phase_times.get(name, 0.0) + begin_event.elapsed_time(end_event) / 1000
            self._free_events += [begin_event, end_event]
        return phase_times


class DelayedValues:
    """Numbers that may still be on a device: copied behind its work, and read when they have come."""

    def __init__(self) -> None:
        self._pending: deque[tuple[int, dict[str, Any], Any]] = deque()

    def put(self, step: int, values: dict[str, Any]) -> None:
        """Numbers and tensors of one element, of a step."""
        pending_values: dict[str, Any] = {}
        event: Any = None
        for name, value in values.items():
            if getattr(value, "is_cuda", False):
                import torch

                # The source must not be freed, nor the copy be pageable, or the host would wait for it.
                host_copy = torch.empty((), dtype=torch.float32, pin_memory=True)
                host_copy.copy_(value.detach().reshape(()), non_blocking=True)
                event = event or cast("Any", torch.cuda.Event)()
                pending_values[name] = host_copy
            else:
                pending_values[name] = float(value)
        if event is not None:
            event.record()
        self._pending.append((step, pending_values, event))

    def take(self, wait_s: float = 0.0) -> list[tuple[int, dict[str, float]]]:
        """What has come, by step; waits so long for more, and no longer: the device may never answer again."""
        ready, deadline = [], time.monotonic() + wait_s
        while self._pending:
            step, values, event = self._pending[0]
            if event is None or event.query():
                self._pending.popleft()
                ready.append((step, {name: float(value) for name, value in values.items()}))
            elif time.monotonic() < deadline:
                time.sleep(0.001)
            else:
                break
        return ready
