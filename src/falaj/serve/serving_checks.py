"""Whether a model version may be served: asked when it is deployed, and before every start of a replica."""

from falaj.catalog.gate_requirements import GATE_KIND
from falaj.catalog.model_signing import verify_signature
from falaj.catalog.promotion_requests import STATE_EMERGENCY, evaluate_request, find_request
from falaj.catalog.stages import ALIASED_STAGES
from falaj.content.archives import EXPORTED_REASON
from falaj.content.model_formats import SAFE_FORMATS
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, CorruptData, Denied, NotFound
from falaj.core.ref import Ref
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord

SHEET_FORMATS = ("json", "text")
"""Formats that hold a sheet alone: what such a model runs is a version of code."""
OWN_CODE_FORMATS = ("safetensors", *SHEET_FORMATS)
"""Formats of models that run code of their own: what they were published with, unless another is named."""


def find_serving_stage(reader: LedgerReader, model: LedgerRecord) -> str:
    """The stage under whose approval a version is served; empty for an experiment, where the project lets those be.

    A project that says itself what it demands of staging or production has no experiments served.
    """
    stage = str(model.body["stage"])
    if stage in ALIASED_STAGES:
        return stage
    cleared = next(
        (
            stage_name
            for stage_name in reversed(ALIASED_STAGES)
            if (approval := find_request(reader, model.ref, stage_name)) and approval.cleared
        ),
        "",
    )
    if cleared:
        return cleared
    gates = [reader.get(Ref(GATE_KIND, model.key.project, stage_name)) for stage_name in ALIASED_STAGES]
    if any(gate is not None and gate.body["own"] for gate in gates):
        hint = f"falaj catalog promote {model.ref} staging, or production"
        raise Denied(f"{model.ref} is in {stage}, and its project has rules for what is served", hint, model.ref)
    return ""


def check_servable(reader: LedgerReader, ctx: CallContext, version: Ref, stage: str, root: str = "") -> LedgerRecord:
    """The model's record, if it may be served as it is now; Denied, Corrupt, Conflict or NotFound say why not."""
    model = reader.get(version)
    if model is None:
        raise NotFound(f"there is no {version}", "deploy another version", version)
    if model.body["state"] != "live":
        raise Conflict(f"{version} was deleted", "deploy another version", version)
    if root and model.body["root"] != root:
        raise CorruptData(
            f"{version} is not what was deployed", "its record was changed: look at the audit log", version
        )
    if model.restricted:
        raise Denied(f"{version} is restricted", "the data protection officer lifts a restriction", version)
    _check_signature(model)
    if stage in ALIASED_STAGES:
        _check_approval(reader, ctx, model, stage)
    return model


def _check_signature(model: LedgerRecord) -> None:
    """Signed, by the key of the installation, over exactly these files; and of a format that holds no code, or whose
    code servers run apart."""
    body = model.body
    if not body.get("signature"):
        raise Denied(f"{model.ref} is not signed", "publish it with falaj catalog publish, which signs", model.ref)
    verify_signature(body["signature"], body["key"], body.get("files", {}), str(model.ref))
    inspection = body.get("seen")
    if inspection is None:
        hint = f"falaj catalog inspect {model.ref}"
        raise Denied(f"the platform has not looked into the files of {model.ref}", hint, model.ref)
    if not inspection["ok"]:
        raise Denied(f"{model.ref}: {'; '.join(inspection['reasons'])[:300]}", "publish it anew", model.ref)
    if is_exported_program(model):
        return
    if inspection["code_bearing"] or inspection["format"] not in (*SAFE_FORMATS, *SHEET_FORMATS):
        hint = "export it to ONNX or safetensors; what it runs is published as a version of code"
        reasons_text = "; ".join(inspection["reasons"][:3])[:300] or inspection["format"][:40]
        raise Denied(f"loading {model.ref} may run code: {reasons_text}", hint, model.ref)


def _check_approval(reader: LedgerReader, ctx: CallContext, model: LedgerRecord, stage: str) -> None:
    """What people consented to, and still do."""
    hint = f"people decide: falaj catalog promote {model.ref} {stage}"
    if model.label.holds:
        raise Denied(f"{model.ref} is under a hold: {', '.join(sorted(model.label.holds))}", hint, model.ref)
    approval = find_request(reader, model.ref, stage)
    is_emergency = approval is not None and approval.state == STATE_EMERGENCY and ctx.now() < approval.until
    if approval is None or not (approval.cleared or is_emergency):
        raise Denied(f"{model.ref} is not approved for {stage} any more", hint, model.ref)
    if approval.digest and (answer := evaluate_request(reader, ctx, approval)).state in ("refused", "lapsed"):
        raise Denied(f"the approval of {model.ref} for {stage} was taken back: {answer.why}", hint, model.ref)


def is_exported_program(model: LedgerRecord) -> bool:
    """Whether it is a program of torch.export and holds nothing else that could run code. Loading one can, so a server
    loads it in a process of its own that has no network, no secrets and no files but the model's."""
    inspection = model.body.get("seen") or {}
    return inspection.get("format") == "export" and all(
        reason.endswith(EXPORTED_REASON) for reason in inspection["reasons"]
    )


def find_own_code(model: LedgerRecord) -> Ref | None:
    """The program a model was published with, where its format needs one to be run."""
    code = model.body.get("inputs", {}).get("code", "")
    needs_code = (model.body.get("seen") or {}).get("format", "") in OWN_CODE_FORMATS
    return Ref.parse(code) if needs_code and code.startswith("code:") else None
