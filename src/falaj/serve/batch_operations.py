"""Batch inference: a model over every row of a dataset, as a job; what it says is a version of a dataset."""

import json
from collections.abc import Callable
from typing import Annotated

from falaj.core.client_command import Client
from falaj.core.context import CallContext
from falaj.core.errors import Invalid
from falaj.core.event import generate_id
from falaj.core.executor import KIND_BATCH
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.jobs.records import JobSpec, JobView, RoleSpec
from falaj.jobs.spec import check_variables
from falaj.serve import serving_checks
from falaj.serve.records import ReplicaNeeds
from falaj.store.ledger import Ledger

JOB_RETRIES = 3
JOB_COMMAND = ("python", "-m", "falaj.infer.bulk")


class BatchOperations:
    """What the desk `serve` knows of datasets."""

    _ledger: Ledger
    act: Callable[..., Client]

    @operation(reads=("model", "data"), writes=("out",))
    def batch(
        self,
        ctx: CallContext,
        model: Annotated[Ref, "the model version, for example model:fraud/scorer@production"],
        data: Annotated[Ref, "the dataset: Parquet, CSV, Arrow, JSON lines or numpy"],
        out: Annotated[Ref, "the dataset that the predictions become the next version of"],
        needs: Annotated[ReplicaNeeds | None, "what the job needs"] = None,
        columns: Annotated[tuple[str, ...], "columns that make the model's one input, in its order"] = (),
        keep: Annotated[tuple[str, ...], "columns that are written beside the predictions"] = (),
        rows: Annotated[int, "rows of one run of the model"] = 256,
    ) -> JobView:
        """Run a model over every row of a dataset, as a job whose predictions become a version of a dataset.

        The model must be fit to be served, as for an endpoint. Columns are taken by the names of the model's inputs,
        or side by side as its one input. A job that is interrupted goes on where it stopped.

        Example:
            falaj serve batch model:fraud/scorer@production dataset:fraud/tx --out dataset:fraud/scores --keep id
        """
        if model.kind != "model" or data.kind != "dataset" or out.kind != "dataset" or out.version:
            raise Invalid(f"{model} over {data} into {out}", "a model, a dataset, and the name of a dataset", out)
        if not 0 < rows <= 65_536:
            raise Invalid(f"{rows} rows of one run", "1 to 65536")
        with self._ledger.read(ctx) as reader:
            record = serving_checks.check_servable(
                reader, ctx, model, serving_checks.find_serving_stage(reader, reader.need(model))
            )
        needs = needs or ReplicaNeeds(band="normal")
        model_config = {
            "name": f"{model.project}.{model.name}", "version": model.version.lstrip("v"),
            "files": dict(record.body.get("files", {})), "device": "cuda" if needs.gpus else "cpu",
            "threads": needs.threads or max(1, int(needs.cpus or 1)),
        }  # fmt: skip
        order_fields = {"model": model_config, "rows": rows, "columns": list(columns), "keep": list(keep)}
        inputs = {"model": record.ref, "data": data}
        if (code := serving_checks.find_own_code(record)) is not None:
            inputs["code"] = code
        job = Ref("job", out.project, f"batch-{model.name[:60]}-{generate_id()[-8:]}")
        client = self.act(ctx.actor, ctx.purpose, KIND_BATCH)
        job_spec = _create_job_spec(needs, json.dumps(order_fields))
        job_view: JobView = client.jobs.add(job, job_spec, inputs=inputs, outputs={"predictions": out})
        return job_view


def _create_job_spec(needs: ReplicaNeeds, order_text: str) -> JobSpec:
    check_variables((*needs.env, *needs.secret))  # none of those that we set
    role = RoleSpec("worker", 1, needs.cpus or 1.0, needs.memory, needs.gpus, tuple(needs.gpu_models))
    return JobSpec(
        command=JOB_COMMAND,
        roles=(role,),
        queue=needs.queue,
        band=needs.band,
        retries=JOB_RETRIES,
        env={**needs.env, "FALAJ_PARAM_BULK": order_text},
        secrets=dict(needs.secret),
        image=needs.image,
        cluster=needs.cluster,
        zone=needs.zone,
        experiment="batch",
        every_s=1,
    )
