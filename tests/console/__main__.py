"""Pictures of pages, for whoever makes them: `python -m tests.console jobs catalog/dataset:fraud/transactions@v3`.

Each address (below /console) in English and light, in Arabic and dark, wide and on a phone, with what is wrong with it.
Without addresses the platform stays up for a browser, and says how to sign in.
"""

import argparse
import re
import tempfile
import threading
from pathlib import Path

from tests.console.ground import Ground, seed
from tests.servers.browser import DESK, PHONE, Chromium

LOOKS = (("en", "light"), ("ar", "dark"))


def main() -> None:
    """What the command line says."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("pages", nargs="*")
    given.add_argument("--person", default="amal")
    given.add_argument("--to", default=str(Path(__file__).parents[2] / ".screenshots" / "look"))
    given.add_argument("--seed", default="", help="a folder to keep the made life in, for the next time")
    args = given.parse_args()
    with tempfile.TemporaryDirectory(prefix="falaj-look-") as folder:
        seeded = seed(Path(args.seed or f"{folder}/life"))
        with Ground(seeded, Path(folder, "house")) as ground:
            if args.pages:
                pictures(ground, args.pages, args.person, Path(args.to))
            else:
                print(f"{ground.url}/console  token of {args.person}: {ground.tokens[args.person]}", flush=True)
                threading.Event().wait()


def pictures(ground: Ground, pages: list[str], person: str, to: Path) -> None:
    """Every page in every look."""
    with Chromium() as chromium:
        for lang, theme in LOOKS:
            for name, size in (("wide", DESK), ("phone", PHONE)):
                tab = ground.tab(chromium, person, lang, theme, size)
                for page in pages:
                    tab.forget()
                    status = tab.open(f"/console/{page}".rstrip("/"))
                    file = tab.keep(to / f"{re.sub(r'[^a-z0-9@.]+', '-', page or 'home')}-{lang}-{theme}-{name}.png")
                    print(f"{status} {file}", *tab.wrong(), *(tab.axe() if name == "wide" else ()), sep="\n    ")


if __name__ == "__main__":
    main()
