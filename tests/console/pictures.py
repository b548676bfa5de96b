"""The pictures of docs/console.md and the README, taken on the test ground: `python -m tests.console.pictures`."""

import io
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from tests.console.ground import Ground, seed
from tests.servers.browser import PHONE, Chromium

TO = Path(__file__).parents[2] / "docs" / "pictures"
WIDE = (1180, 800)


class Picture(NamedTuple):
    """What is on it, and how the page looks."""

    name: str
    page: str
    person: str = "amal"
    lang: str = "en"
    theme: str = "light"
    size: tuple[int, int] = WIDE


PICTURES = (
    Picture("home", ""),
    Picture("home-arabic", "", lang="ar", theme="dark"),
    Picture("stages", "catalog/model:fraud/scorer@v3/stages"),
    Picture("lineage", "catalog/dataset:fraud/transactions@v3/lineage"),
    Picture("runs", "track/experiment:fraud/scoring"),
    Picture("why", "jobs/job:fraud/train-5"),
    Picture("rollout", "serve/endpoint:fraud/scorer"),
    Picture("drift", "monitor/endpoint:fraud/scorer?tab=drift", theme="dark"),
    Picture("flow", "flows/turn:fraud/retrain-3"),
    Picture("zones-arabic", "zones", person="salem", lang="ar"),
    Picture("proof", "audit/event/newest", person="omar"),
    Picture("phone", "jobs", lang="ar", size=PHONE),
)


def main() -> None:
    """Take them all."""
    TO.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="falaj-pictures-") as folder:
        seeded = seed(Path(folder, "life"))
        with Ground(seeded, Path(folder, "house")) as ground, Chromium() as chromium:
            for one in PICTURES:
                tab = ground.tab(chromium, one.person, one.lang, one.theme, one.size)
                status = tab.open(f"/console/{one.page}".rstrip("/"))
                tab.page.wait_for_timeout(400)
                _keep(tab.page.screenshot(), TO / f"{one.name}.png")
                print(status, one.name, *tab.wrong())


def _keep(taken: bytes, file: Path) -> None:
    """Few colours say the same in a third of the bytes."""
    Image.open(io.BytesIO(taken)).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main()
