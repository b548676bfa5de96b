"""What strangers write where they may write: markup, scripts, quotes, directions. Project `hostile` of the bank."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from falaj.core.errors import FalajError
from falaj.track.records import Metric
from tests.console.life import HOUR, Story

MARK = "hostile9"
"""In every text: a page that shows any of them has it."""
SCRIPT = f"<script>alert('{MARK}')</script>"
IMAGE = f"\"><img src=x id={MARK} onerror=alert('{MARK}')>"
QUOTE = f"' onmouseover='alert(1)' {MARK} x='"
CLOSE = f"</title></textarea></script><svg onload=alert('{MARK}')>"
LINK = f"[{MARK}](javascript:alert(1)) <a href='javascript:alert(1)'>x</a> ![x](https://evil.example/{MARK}.png)"
TURN = f"{MARK} \u202egnp.tluafed\u202c \u2066x\u2069"
BRACES = f"{MARK} {{{{7*7}}}} ${{7*7}} {{n}} %s"
ALL = (SCRIPT, IMAGE, QUOTE, CLOSE, LINK, TURN, BRACES)
WORDS = f"{SCRIPT} {IMAGE} {QUOTE} {CLOSE} {LINK} {TURN} {BRACES}"
CARD = f"# {IMAGE}\n\n{SCRIPT}\n\n{LINK}\n\n<iframe src=https://evil.example></iframe>\n\n```\n{CLOSE}\n```\n"
NOISE = (
    "import sys\nfor text in {texts!r}:\n    print(text, flush=True)\n    print(text, file=sys.stderr, flush=True)\n"
)


def hostile(story: Story) -> None:
    """Everything that takes words of people takes these."""
    amal = story.as_("amal", HOUR)
    _catalog(story)
    _track(amal)
    noise = NOISE.format(texts=[*ALL, "\x1b[31mred\x1b[0m\x00\x07"])
    script = str(Path(story.folder("code-noisy", noisy_py=noise), "noisy.py"))
    story.as_("amal").jobs.submit(
        script, name="noisy", project="hostile", cpus=0.1, memory="100MiB", cluster="local", env={"NOTE": WORDS}
    )
    ask = amal.approvals.ask("hostile.act", "sha256:" + "ab" * 32, WORDS)
    story.as_("badr", HOUR / 2).approvals.refuse(str(ask.ref), WORDS)
    amal.approvals.ask("hostile.other", "sha256:" + "cd" * 32, WORDS)


def _catalog(story: Story) -> None:
    here = story.as_("amal", HOUR)
    folder = Path(story.folder("hostile-data"))
    heads = ",".join('"' + one.replace('"', '""').replace(",", " ") + '"' for one in ALL)
    values = ",".join('"' + one.replace('"', '""') + '"' for one in ALL)
    (folder / "rows.csv").write_text(f"{heads}\n{values}\n{values}\n")
    (folder / f"{MARK}<b>.txt").write_text(WORDS)
    here.catalog.publish("dataset:hostile/rows", str(folder), message=WORDS)
    (folder / "rows.csv").write_text(f"{heads}\n{values}\n")
    here.catalog.publish("dataset:hostile/rows", str(folder), message=WORDS)
    here.catalog.describe("dataset:hostile/rows", WORDS, {"note": WORDS[:400], "more": IMAGE})
    model = Path(story.folder("hostile-model", README_md=CARD, model_json="{}"))
    params = {f"p{number}": one for number, one in enumerate(ALL)}
    made = here.catalog.publish(
        "model:hostile/card", str(model), message=WORDS, params=params, metrics={_word(one): 0.5 for one in ALL},
        inputs={"data": "dataset:hostile/rows@v1"},
    )  # fmt: skip
    here.catalog.attest(made.ref, "bias", True, {"report": WORDS})
    here.catalog.promote(made.ref, "staging", reason=WORDS)


def _track(amal: Any) -> None:
    track = amal.track
    track.create("experiment:hostile/words", SCRIPT, {"mlflow.note.content": CARD, "note": WORDS})
    run = track.start(
        "experiment:hostile/words", IMAGE, {"note": WORDS, "mlflow.note.content": CARD, "mlflow.user": SCRIPT},
        {f"p{number}": one for number, one in enumerate(ALL)}, 0.0, f"{0xBAD:032x}",
    ).ref  # fmt: skip
    for one in ALL:
        for key in (one, _word(one)):
            with suppress(FalajError):  # such a name is refused: nothing to show
                track.log(run, (Metric(key, 0.5, 1000.0, 1), Metric(key, float("nan"), 1001.0, 2)))
    track.attach(run, "notes/card.md", CARD.encode())
    track.attach(run, "page.html", WORDS.encode())
    track.attach(run, "drawing.svg", f"<svg xmlns='http://www.w3.org/2000/svg'>{SCRIPT}</svg>".encode())
    track.end(run, "failed")


def _word(text: str) -> str:
    """As much of it as names may have."""
    return "".join(one for one in text if one.isalnum() or one in "_-. /")[:100]
