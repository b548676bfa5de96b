"""The chapter of jobs: two tenants, one small cluster, fair turns, and what was saved when one gave way."""

import time
from collections.abc import Callable
from typing import Any

from falaj.core.errors import Unavailable
from falaj.demo.ground import Chapter
from falaj.demo.stage import Stage

PATIENCE_S = 60.0
STEPS = 400
TRAIN = f'''"""Work in steps that saves where it is when it is asked to, and goes on from there."""
import pathlib, time
from falaj import worker

here = worker.attempt()
mark = pathlib.Path(here.checkpoints) / "step"
step = int(mark.read_text()) if mark.exists() else 0
print(f"from step {{step}}", flush=True)
while step < {STEPS}:
    step += 1
    time.sleep(0.02)
    here.progress(step, {STEPS})
    here.metric("loss", 1 / step, step)
    if here.asked():
        mark.write_text(str(step))
        here.checkpointed(step, save_s=0.01)
        if here.asked() == "stop":
            here.yield_place()
print("done", flush=True)
'''
SCORE = "import time; time.sleep(1); print('scored')\n"


def turns(stage: Stage) -> str:
    """Borrow, be asked back, save, resume."""
    admin, amal, sara = stage.as_("admin"), stage.as_("amal"), stage.as_("sara")
    hall = "process:?nodes=2&cpus=2000&memory=4096&gpus=4&model=H100"
    admin.clusters.add("hall", hall, more={"tenants": "bank,clinic"})
    admin.queues.add("root/bank", guarantee={"gpu": "4"}, projects=("bank/*",))
    admin.queues.add("root/clinic", guarantee={"gpu": "4"}, projects=("clinic/*",))
    stage.say(
        "a cluster of 2 nodes with 4 (imitated) GPUs each; bank and clinic are guaranteed 4 and may borrow the rest"
    )
    long = [
        submitted(stage, amal, f"train-{n}", TRAIN, gpus=4, checkpoint="every=5s,save=1s,restart=1s") for n in (1, 2)
    ]
    until(lambda: [amal.jobs.show(job.ref) for job in long], lambda jobs: all(job.state == "running" for job in jobs))
    stage.say("amal's two trainings hold all 8: 4 are the bank's own, 4 are borrowed")
    short = submitted(stage, sara, "score", SCORE, gpus=4)
    why = sara.jobs.why(short.ref)
    if why.state == "waiting":
        stage.say(f"sara asks for 4 → falaj jobs why: [yellow]{why.text}[/yellow]")
    short = until(lambda: sara.jobs.show(short.ref), lambda job: job.over)
    stage.say(f"the clinic is owed them: one training saves and gives way; sara's job is [green]{short.state}[/green]")
    done = until(lambda: [amal.jobs.show(job.ref) for job in long], lambda jobs: all(job.over for job in jobs))
    moved = next(job for job in done if job.evictions)
    told = [line for n in range(len(moved.attempts)) for line in amal.jobs.logs(moved.ref, attempt=n + 1).lines]
    stage.say(f"[bold]{moved.ref}[/bold] went on where it was: {', '.join(told)}")
    return f"{len(done) + 1} jobs, {moved.evictions} moved, nothing lost"


def submitted(stage: Stage, who: Any, name: str, program: str, **more: Any) -> Any:
    """A job of a program, on the cluster of this story."""
    folder = stage.home / f"program-{name}"
    folder.mkdir()
    (folder / f"{name}.py").write_text(program)
    words = {"project": "fraud", "cluster": "hall", "cpus": 0.5, "memory": "64MiB", **more}
    return who.jobs.submit(str(folder / f"{name}.py"), name=name, **words)


def until(look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """What `look` gives, once it is as it should be."""
    end = time.monotonic() + PATIENCE_S
    while not holds(found := look()):
        if time.monotonic() > end:
            raise Unavailable("the jobs took longer than a minute", "is the machine very busy? try again")
        time.sleep(0.05)
    return found


CHAPTERS = [
    Chapter(
        "Fair turns", "Twenty teams, one cluster: everyone gets what they are owed, and idle machines are lent.", turns
    )
]
