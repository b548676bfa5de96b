"""The chapter of jobs: two tenants, one small cluster, fair turns, and what was saved when one gave way."""

import time
from collections.abc import Callable
from typing import Any

from falaj.core.errors import Unavailable
from falaj.demo.access_chapters import DemoChapter
from falaj.demo.stage import DemoStage

WAIT_TIMEOUT_S = 60.0
STEP_COUNT = 400
TRAIN_SCRIPT = f'''"""Work in steps that saves where it is when it is asked to, and goes on from there."""
import pathlib, time
from falaj import worker

here = worker.attempt()
mark = pathlib.Path(here.checkpoints) / "step"
step = int(mark.read_text()) if mark.exists() else 0
print(f"from step {{step}}", flush=True)
while step < {STEP_COUNT}:
    step += 1
    time.sleep(0.02)
    here.progress(step, {STEP_COUNT})
    here.metric("loss", 1 / step, step)
    if here.asked():
        mark.write_text(str(step))
        here.checkpointed(step, save_s=0.01)
        if here.asked() == "stop":
            here.yield_place()
print("done", flush=True)
'''
SCORE_SCRIPT = "import time; time.sleep(1); print('scored')\n"


def show_fair_share(stage: DemoStage) -> str:
    """Borrow, be asked back, save, resume."""
    admin, amal, sara = stage.as_("admin"), stage.as_("amal"), stage.as_("sara")
    cluster_address = "process:?nodes=2&cpus=2000&memory=4096&gpus=4&model=H100"
    admin.clusters.add("hall", cluster_address, more={"tenants": "bank,clinic"})
    admin.queues.add("root/bank", guarantee={"gpu": "4"}, projects=("bank/*",))
    admin.queues.add("root/clinic", guarantee={"gpu": "4"}, projects=("clinic/*",))
    stage.say(
        "a cluster of 2 nodes with 4 (imitated) GPUs each; bank and clinic are guaranteed 4 and may borrow the rest"
    )
    long_jobs = [
        submit_program(stage, amal, f"train-{n}", TRAIN_SCRIPT, gpus=4, checkpoint="every=5s,save=1s,restart=1s")
        for n in (1, 2)
    ]
    wait_until(
        lambda: [amal.jobs.show(job.ref) for job in long_jobs], lambda jobs: all(job.state == "running" for job in jobs)
    )
    stage.say("amal's two trainings hold all 8: 4 are the bank's own, 4 are borrowed")
    short_job = submit_program(stage, sara, "score", SCORE_SCRIPT, gpus=4)
    explanation = sara.jobs.why(short_job.ref)
    if explanation.state == "waiting":
        stage.say(f"sara asks for 4 → falaj jobs why: [yellow]{explanation.text}[/yellow]")
    short_job = wait_until(lambda: sara.jobs.show(short_job.ref), lambda job: job.over)
    stage.say(
        f"the clinic is owed them: one training saves and gives way; sara's job is [green]{short_job.state}[/green]"
    )
    finished_jobs = wait_until(
        lambda: [amal.jobs.show(job.ref) for job in long_jobs], lambda jobs: all(job.over for job in jobs)
    )
    evicted_job = next(job for job in finished_jobs if job.evictions)
    log_lines = [
        line for n in range(len(evicted_job.attempts)) for line in amal.jobs.logs(evicted_job.ref, attempt=n + 1).lines
    ]
    stage.say(f"[bold]{evicted_job.ref}[/bold] went on where it was: {', '.join(log_lines)}")
    return f"{len(finished_jobs) + 1} jobs, {evicted_job.evictions} moved, nothing lost"


def submit_program(stage: DemoStage, client: Any, name: str, program: str, **flags: Any) -> Any:
    """A job of a program, on the cluster of this story."""
    folder = stage.home / f"program-{name}"
    folder.mkdir()
    (folder / f"{name}.py").write_text(program)
    settings = {"project": "fraud", "cluster": "hall", "cpus": 0.5, "memory": "64MiB", **flags}
    return client.jobs.submit(str(folder / f"{name}.py"), name=name, **settings)


def wait_until(read_value: Callable[[], Any], is_ready: Callable[[Any], bool]) -> Any:
    """What `read_value` gives, once it is as it should be."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while not is_ready(value := read_value()):
        if time.monotonic() > deadline:
            raise Unavailable("the jobs took longer than a minute", "is the machine very busy? try again")
        time.sleep(0.05)
    return value


CHAPTERS = [
    DemoChapter(
        "Fair turns",
        "Twenty teams, one cluster: everyone gets what they are owed, and idle machines are lent.",
        show_fair_share,
    )
]
