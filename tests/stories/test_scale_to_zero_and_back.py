"""An endpoint that nobody asks has no replica. Who asks waits for one, and is answered; and nobody is turned away."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tests.infer import models
from tests.stories.serving_ground import SCORE, SMALL, platform


def test_scale_to_zero_and_back(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    with platform(tmp_path) as bank:
        here = bank.here

        def ask(_: int) -> Any:
            return here.serve.call(SCORE, {"x": x.tolist()})["y"]

        here.serve.deploy(SCORE, bank.model(), least=0, most=2, idle_s=1, **SMALL)
        bank.until(lambda view: view.state == "asleep" and view.url)
        assert here.jobs.list(state="running").jobs == ()
        for _ in range(2):
            with ThreadPoolExecutor(8) as crowd:
                answers = list(crowd.map(ask, range(16)))
            for answer in answers:
                np.testing.assert_allclose(answer, models.mlp_of(x), rtol=1e-4, atol=1e-5)
            bank.until(lambda view: view.state == "asleep")
        # The one that showed it works, and one for each time somebody came.
        assert len(here.jobs.list(state="cancelled").jobs) >= 3
        bank.close()
