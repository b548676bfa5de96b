"""Whether a model version may be served: asked when it is deployed, and before every start of a replica."""

from falaj.catalog.demands import GATE
from falaj.catalog.signing import verify
from falaj.catalog.stages import ALIASED
from falaj.catalog.wishes import EMERGENCY, heard, kept_wish
from falaj.content.archives import EXPORTED
from falaj.content.formats import SAFE
from falaj.core.context import Context
from falaj.core.errors import Conflict, Corrupt, Denied, NotFound
from falaj.core.ref import Ref
from falaj.store.ledger import Reader
from falaj.store.records import Record

UNSAID = ("json", "text")
"""Formats that hold a sheet alone: what such a model runs is a version of code."""
OWN_CODE = ("safetensors", *UNSAID)
"""Formats of models that run code of their own: what they were published with, unless another is named."""


def stage_of(tx: Reader, model: Record) -> str:
    """The stage under whose approval a version is served; empty for an experiment, where the project lets those be.

    A project that says itself what it demands of staging or production has no experiments served.
    """
    stage = str(model.body["stage"])
    if stage in ALIASED:
        return stage
    cleared = next((one for one in reversed(ALIASED) if (wish := kept_wish(tx, model.ref, one)) and wish.cleared), "")
    if cleared:
        return cleared
    gates = [tx.get(Ref(GATE, model.key.project, one)) for one in ALIASED]
    if any(gate is not None and gate.body["own"] for gate in gates):
        hint = f"falaj catalog promote {model.ref} staging, or production"
        raise Denied(f"{model.ref} is in {stage}, and its project has rules for what is served", hint, model.ref)
    return ""


def check(tx: Reader, ctx: Context, version: Ref, stage: str, root: str = "") -> Record:
    """The model's record, if it may be served as it is now; Denied, Corrupt, Conflict or NotFound say why not."""
    model = tx.get(version)
    if model is None:
        raise NotFound(f"there is no {version}", "deploy another version", version)
    if model.body["state"] != "live":
        raise Conflict(f"{version} was deleted", "deploy another version", version)
    if root and model.body["root"] != root:
        raise Corrupt(f"{version} is not what was deployed", "its record was changed: look at the audit log", version)
    if model.restricted:
        raise Denied(f"{version} is restricted", "the data protection officer lifts a restriction", version)
    _check_bytes(model)
    if stage in ALIASED:
        _check_consent(tx, ctx, model, stage)
    return model


def _check_bytes(model: Record) -> None:
    """Signed, by the key of the installation, over exactly these files; and of a format that holds no code, or whose
    code servers run apart."""
    body = model.body
    if not body.get("signature"):
        raise Denied(f"{model.ref} is not signed", "publish it with falaj catalog publish, which signs", model.ref)
    verify(body["signature"], body["key"], body.get("files", {}), str(model.ref))
    seen = body.get("seen")
    if seen is None:
        hint = f"falaj catalog inspect {model.ref}"
        raise Denied(f"the platform has not looked into the files of {model.ref}", hint, model.ref)
    if not seen["ok"]:
        raise Denied(f"{model.ref}: {'; '.join(seen['reasons'])[:300]}", "publish it anew", model.ref)
    if exported(model):
        return
    if seen["code_bearing"] or seen["format"] not in (*SAFE, *UNSAID):
        hint = "export it to ONNX or safetensors; what it runs is published as a version of code"
        why = "; ".join(seen["reasons"][:3])[:300] or seen["format"][:40]
        raise Denied(f"loading {model.ref} may run code: {why}", hint, model.ref)


def _check_consent(tx: Reader, ctx: Context, model: Record, stage: str) -> None:
    """What people consented to, and still do."""
    hint = f"people decide: falaj catalog promote {model.ref} {stage}"
    if model.label.holds:
        raise Denied(f"{model.ref} is under a hold: {', '.join(sorted(model.label.holds))}", hint, model.ref)
    wish = kept_wish(tx, model.ref, stage)
    hasty = wish is not None and wish.state == EMERGENCY and ctx.now() < wish.until
    if wish is None or not (wish.cleared or hasty):
        raise Denied(f"{model.ref} is not approved for {stage} any more", hint, model.ref)
    if wish.digest and (said := heard(tx, ctx, wish)).state in ("refused", "lapsed"):
        raise Denied(f"the approval of {model.ref} for {stage} was taken back: {said.why}", hint, model.ref)


def exported(model: Record) -> bool:
    """Whether it is a program of torch.export and holds nothing else that could run code. Loading one can, so a server
    loads it in a process of its own that has no network, no secrets and no files but the model's."""
    seen = model.body.get("seen") or {}
    return seen.get("format") == "export" and all(one.endswith(EXPORTED) for one in seen["reasons"])


def own_code(model: Record) -> Ref | None:
    """The program a model was published with, where its format needs one to be run."""
    code = model.body.get("inputs", {}).get("code", "")
    fits = (model.body.get("seen") or {}).get("format", "") in OWN_CODE
    return Ref.parse(code) if fits and code.startswith("code:") else None
