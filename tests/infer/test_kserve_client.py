"""KServe's own REST client, as it is installed by others, against our server."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.infer.models import mlp_of
from tests.infer.stand_in import TOKEN, served
from tests.servers import kserve
from tests.servers.process import Missing


@pytest.mark.slow
def test_kserves_client(tmp_path: Path) -> None:
    try:
        python = kserve.program()
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    with served(tmp_path) as here:
        script = str(Path(__file__).with_name("kserve_calls.py"))
        command = [str(python), script, f"http://{here.url}", TOKEN]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert [told[name] for name in ("live", "ready", "model", "other")] == [True, True, True, False]
    wanted = mlp_of(np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)).ravel().tolist()
    for name in ("False False", "False True", "True False", "True True"):
        assert told[name][:2] == ["r-9", [2, 1]]
        assert told[name][2] == pytest.approx(wanted, rel=1e-4)
    assert told["echo"] == {"out_bytes": ["ä", "b"], "out_int64": [7], "out_bool": [True], "out_fp32": [0.5]}
    assert "a request of 0 inputs" in told["error none"]
    assert "no token" in told["error mlp"]
    assert "401" in told["error mlp"]
