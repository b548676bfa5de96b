import re
from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from falaj.infer.model_statistics import ModelStatistics, PowerHistogram, render_exposition


@given(st.lists(st.floats(0, 200), max_size=50))
def test_a_histogram_counts_each_time_where_it_belongs(times: list[float]) -> None:
    histogram = PowerHistogram()
    for one in times:
        histogram.add(one)
    lines = list(histogram.lines("h", 'a="b"'))
    bounds = {float(re.findall(r'le="([^"]+)"', line)[0]): int(line.split()[-1]) for line in lines if "_bucket" in line}
    assert bounds[float("inf")] == len(times) == histogram.num
    ordered = sorted(int(one * 1e6) for one in times)
    for bound, count in bounds.items():
        if bound != float("inf"):
            assert count == bisect_left(ordered, round(bound * 1e6))


def test_the_text_that_prometheus_reads() -> None:
    of = ModelStatistics()
    of.queue.add(0.001)
    of.ran(3, 1, 0.002, 0.0001)
    text = render_exposition([('a"b\n', "1", of, 4)]).decode()
    names = set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            names.add(line.split()[2])
        elif not line.startswith("#"):
            assert re.fullmatch(r'[a-z_]+\{model="a\\"b\\n",version="1"[^}]*\} [0-9.e+-]+', line), line
    assert names == {
        "falaj_infer_queue_seconds", "falaj_infer_compute_seconds", "falaj_infer_encode_seconds",
        "falaj_infer_batch_rows", "falaj_infer_requests_total", "falaj_infer_waiting",
    }  # fmt: skip
    assert 'falaj_infer_batch_rows_bucket{model="a\\"b\\n",version="1",le="4"} 1' in text


def test_what_triton_tells() -> None:
    of = ModelStatistics()
    for _ in range(2):
        of.queue.add(0.5, 2)
        of.ran(3, 2, 1.0, 0.25)
    found = of.triton("m", "1")
    assert found["inference_count"] == 6
    assert found["execution_count"] == 2
    assert found["inference_stats"]["queue"] == {"count": 4, "ns": 2_000_000_000}
    assert found["inference_stats"]["compute_infer"] == {"count": 4, "ns": 4_000_000_000}
    assert found["batch_stats"][0]["batch_size"] == 3
    assert found["batch_stats"][0]["compute_infer"] == {"count": 2, "ns": 2_000_000_000}
