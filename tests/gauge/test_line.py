"""The progress line: redrawn for a person, sparing in a log."""

import io

import pytest

from falaj.gauge.progress_line import ProgressLine, format_duration, format_number


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


FIGURES = {
    "loss": 2.31449,
    "tokens_per_s": 541_873.0,
    "mfu": 46.93,
    "memory_peak_bytes": 28.9 * (1 << 30),
    "left_s": 11_532.0,
}


def test_a_terminal_sees_one_line_redrawn() -> None:
    stream = _Terminal()
    line = ProgressLine(1000, "tokens", stream)
    for step in (1, 2):
        line.show(step, FIGURES)
    line.close()
    expected = "step 2/1000  loss 2.314  542k tokens/s  MFU 46.9 %  memory 28.9 GiB  3h12m left"
    assert stream.getvalue().split("\r\x1b[2K")[-1] == f"{expected}\n"
    assert stream.getvalue().count("\n") == 1


def test_a_log_gets_the_first_and_the_last() -> None:
    stream = io.StringIO()
    line = ProgressLine(50, "samples", stream)
    for step in range(1, 50):
        line.show(step, {"loss": 1.0})
    line.show(50, {"loss": 0.5}, is_last=True)
    line.close()
    assert stream.getvalue().splitlines()[0] == "step 1/50  loss 1"
    assert stream.getvalue().splitlines()[-1] == "step 50/50  loss 0.5"
    assert len(stream.getvalue().splitlines()) < 10


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59, "59s"), (61, "1m01s"), (7260, "2h01m"), (90_000, "1d01h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(0.5, "0.5"), (999, "999"), (12_345, "12.3k"), (4e12, "4T")])
def test_short_numbers(number: float, text: str) -> None:
    assert format_number(number) == text
