"""What carries versions to and from other tools, from the catalog's command line."""

import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from falaj.catalog.publish_sources import PublishSource
from falaj.catalog.publishing import PublishOrder, PublishResult, run_publish
from falaj.catalog.records import ModelCard, PublishFacts
from falaj.catalog.version_reader import open_version
from falaj.core.client_command import Client, client_command
from falaj.core.errors import CorruptData, Denied, Invalid
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.exchange import hub, lake  # noqa: F401 - what they can open, publish can name
from falaj.exchange.dvc import DvcProject, find_dvc_project, open_dvc_source, write_dvc_output
from falaj.exchange.untrusted_input import read_document, staging_folder
from falaj.snapshot.checkout import checkout_tree


@dataclass(frozen=True, slots=True)
class TransferResult:
    """A version that went out to another tool, or came in from one."""

    ref: Ref
    place: str
    digest: str
    """What the other tool knows it by."""
    num_files: int
    moved_bytes: int
    signature: str = ""


@dataclass(frozen=True, slots=True)
class MountResult:
    """A version as a folder. No process: it was mounted, and is not any more."""

    ref: Ref
    at: str
    process: int = 0


@client_command
def import_dvc(
    here: Client,
    name: Annotated[Ref, "what to publish it as, for example dataset:fraud/tx"],
    project: Annotated[str, "the DVC project's folder"],
    only: Annotated[tuple[str, ...], "outputs at or below these paths; all of them when left out"] = (),
    message: Annotated[str, "what this version is"] = "",
    label: Annotated[Label | None, "what the law says of it"] = None,
    zone: Annotated[str, "where its bytes shall lie; your own zone when left out"] = "",
) -> PublishResult:
    """Publish the outputs of a DVC project, with its git commit and DVC's hashes as tags.

    Bytes come from DVC's cache, its local remotes and the working files, each checked against its MD5. What is on none
    of them is named: `dvc pull` brings it.

    Example:
        falaj catalog import-dvc dataset:fraud/tx ./project --only data/raw
    """
    started_at = time.monotonic()
    with open_dvc_source(project, only) as source:
        facts = PublishFacts(message, tags=source.tags)
        published = run_publish(here, PublishOrder(name, source, facts, label, zone=zone))
    return replace(published, seconds=round(time.monotonic() - started_at, 3))


@client_command
def export_dvc(
    here: Client,
    name: Annotated[Ref, "which version; the newest when none is given"],
    to: Annotated[str, "the folder to write, inside a DVC project: a new one, or that of an earlier export"],
) -> TransferResult:
    """Write a version into a DVC project as an output of it, with its `.dvc` file and its bytes in DVC's cache.

    The same as `dvc add` would leave: `dvc status` is clean, and `dvc push` sends it on. An earlier export is replaced
    where nobody changed anything in it; what others added is refused.

    Example:
        falaj catalog export-dvc dataset:fraud/tx@v3 ./project/data/tx
    """
    data = Path(to).expanduser().absolute()
    project = find_dvc_project(data.parent)
    DvcProject(project).check_own(data)
    opened, snapshot = open_version(here, name)
    for entry in snapshot.entries():
        if entry.kind == "link":
            raise Invalid(f"{opened.ref} has symbolic links, and DVC keeps none", "export one without", opened.ref)
        if (path := entry.path.decode("utf-8", "backslashreplace")).encode() != entry.path:
            raise Invalid(f"{path[:200]!r} is no UTF-8, and DVC keeps no such names", "rename it, publish", opened.ref)
    with here.progress.task(f"writing {opened.ref}", opened.tree.size_bytes) as task:
        # Beside it, so that it is replaced whole; what was there before is in DVC's cache.
        (temporary_folder := project / ".dvc/tmp").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="falaj-", dir=temporary_folder) as folder:
            checkout_result = checkout_tree(snapshot, Path(folder, "new"), advance=task.advance)
            data.parent.mkdir(parents=True, exist_ok=True)
            if data.exists():
                data.rename(Path(folder, "old"))
            Path(folder, "new").rename(data)
    return TransferResult(
        opened.ref,
        str(data),
        write_dvc_output(project, data, opened.ref),
        checkout_result.num_files,
        checkout_result.size_bytes,
    )


@client_command
def push(
    here: Client,
    name: Annotated[Ref, "which version; the newest when none is given"],
    to: Annotated[str, "registry.example/project/repository:tag; the version is the tag when none is given"],
    user: Annotated[str, "who you are there; the password is in FALAJ_REGISTRY_PASSWORD"] = "",
    authority: Annotated[str, "a PEM file, where the registry's certificate is not signed publicly"] = "",
    country: Annotated[str, "whose law holds where the registry stands: a country, AE-DIFC or AE-ADGM"] = "",
) -> TransferResult:
    """Push a version into an OCI registry (Harbor, Nexus, any other) as an artefact that ORAS can pull.

    Each file is a layer; more than a hundred are one tar. The description carries label, card and tags, and a model's
    signature goes along. What the registry holds already is not sent. Without --user, what `docker login` left counts.
    The bytes leave the platform, which asks whether the label lets them go to that country and records where they went;
    of registries in its setting `registries` it knows the country. Labels follow the bytes in writing only.

    Example:
        falaj catalog push model:fraud/scorer@v7 registry.example/fraud/scorer:v7 --user robot --country AE
    """
    from falaj.exchange.oci import ArtifactSender
    from falaj.exchange.oci_registry import RegistryClient, RegistryLocation

    opened, snapshot = open_version(here, name)
    registry_location = RegistryLocation.parse(to, opened.ref.version)
    version = here.catalog.carry(opened.ref, str(registry_location), country)
    with (
        RegistryClient(registry_location, user, authority, write=True) as registry,
        tempfile.TemporaryDirectory(prefix="falaj-push-") as folder,
        here.progress.task(f"pushing {opened.ref}", opened.tree.size_bytes) as task,
    ):
        sender = ArtifactSender(registry, Path(folder), task.advance)
        digest = sender.send(opened, version, snapshot)
    return TransferResult(opened.ref, str(registry_location), digest, opened.tree.num_files, sender.sent_bytes)


@client_command
def pull(
    here: Client,
    name: Annotated[Ref, "what to publish it as, for example model:fraud/scorer"],
    source: Annotated[str, "registry.example/project/repository:tag, or …@sha256:…"],
    user: Annotated[str, "who you are there; the password is in FALAJ_REGISTRY_PASSWORD"] = "",
    authority: Annotated[str, "a PEM file, where the registry's certificate is not signed publicly"] = "",
    key: Annotated[str, "a PEM file with the public key that must have signed it"] = "",
    label: Annotated[Label | None, "what the law says of it; joined to what the artefact carries"] = None,
) -> TransferResult:
    """Publish what lies in an OCI registry: a version pushed from another platform, or files that ORAS pushed.

    Every byte is checked against its digest, and a model's signature against --key, or against the key that came with
    it, which shows that nothing changed on the way and not who made it.

    Example:
        falaj catalog pull model:fraud/scorer registry.example/fraud/scorer:v7 --key release.pem
    """
    from falaj.exchange.oci import ArtifactReceiver
    from falaj.exchange.oci_registry import RegistryClient, RegistryLocation

    registry_location, named_key = RegistryLocation.parse(source), _read_public_key(key) if key else ""
    with (
        staging_folder("oci", here.address, str(name), str(registry_location)) as stage,
        tempfile.TemporaryDirectory(prefix="falaj-pull-") as folder,
        RegistryClient(registry_location, user, authority) as registry,
    ):
        receiver = ArtifactReceiver(registry, Path(folder), stage)
        with here.progress.task(f"pulling {registry_location}", receiver.size_bytes) as task:
            receiver.receive(task.advance)
        description = receiver.told
        signature = _describe_signature(receiver.signature, named_key or description.key, stage, is_required=bool(key))
        tags = {**description.tags, "oci.source": str(registry_location), "oci.digest": receiver.digest}
        if description.label is not None:
            label = Label.parse(description.label).join(label or Label())
        facts = PublishFacts(
            description.message,
            card=_build_model_card(name, description.card, stage),
            tags=tags,
            files=_hash_model_files(name, stage),
        )
        published = run_publish(here, PublishOrder(name, PublishSource(stage), facts, label))
    return TransferResult(
        published.ref, str(registry_location), receiver.digest, published.num_files, receiver.size_bytes, signature
    )


@client_command
def mount_read(
    here: Client,
    name: Annotated[Ref, "which version; the newest when none is given"],
    to: Annotated[str, "an empty folder, or one that is not there yet"],
    background: Annotated[bool, "come back once it is mounted; `fusermount3 -u FOLDER` ends it"] = False,
) -> MountResult:
    """Mount a version as a read-only folder: bytes are fetched, and checked, when somebody reads them.

    It stays until Ctrl-C, a polite kill, or `fusermount3 -u`.

    Example:
        falaj catalog mount-read dataset:fraud/tx@v3 ./tx
    """
    from falaj.exchange.fuse_mount import (
        SnapshotFilesystem,
        mount_snapshot,
        prepare_mount_folder,
        start_background_mount,
    )

    opened, snapshot = open_version(here, name)
    folder, was_created = prepare_mount_folder(to)
    try:
        if background:
            if was_created:  # whoever makes it takes it away again, and that is the process that stays
                folder.rmdir()
            return MountResult(opened.ref, str(folder), start_background_mount(folder))
        with here.progress.task(f"{opened.ref} is at {folder}: Ctrl-C ends it", None, "files"):
            mount_snapshot(SnapshotFilesystem(snapshot, here.catalog.show(opened.ref).made_at), folder, str(opened.ref))
    finally:
        if was_created and not os.path.ismount(folder):
            with suppress(FileNotFoundError):
                folder.rmdir()
    return MountResult(opened.ref, str(folder))


def _read_public_key(file: str) -> str:
    """The public key in a file, looked at before anything is fetched."""
    from falaj.catalog.model_signing import load_signing_key

    try:
        load_signing_key(key_text := read_document(Path(file)).decode("ascii", "replace"))
    except CorruptData as error:
        raise Invalid(f"{file[:200]!r} holds no public key that signs models", "give a PEM file, key.pem") from error
    return key_text


def _describe_signature(signature: str, pem: str, stage: Path, *, is_required: bool) -> str:
    """What is known of a signature, in words; Corrupt when it is not over these files, Denied when one is missing."""
    from falaj.catalog.model_cards import hash_files
    from falaj.catalog.model_signing import verify_signature

    if not signature and is_required:
        raise Denied("the artefact is not signed", "pull it without --key if that is fine")
    if not signature or not pem:
        return "there, and nobody checked it: no key came with it; --key FILE checks it" if signature else "none"
    verify_signature(signature, pem, hash_files(stage))
    return "by the key you named" if is_required else "by the key that came with it"


def _build_model_card(name: Ref, card_fields: dict[str, object] | None, stage: Path) -> ModelCard | None:
    """What its publisher said, but what it is we look up ourselves."""
    from falaj.catalog.model_parser import inspect_isolated
    from falaj.store.codec import from_plain

    if name.kind != "model":
        return None
    inspected = inspect_isolated(stage)
    # Its program and its run are those of another house.
    kept_fields = {field: value for field, value in (card_fields or {}).items() if field not in ("code", "run")}
    card: ModelCard = from_plain(
        ModelCard, {**kept_fields, "format": inspected.format, "code_bearing": inspected.code_bearing}
    )
    return card


def _hash_model_files(name: Ref, stage: Path) -> dict[str, str]:
    from falaj.catalog.model_cards import hash_files

    return hash_files(stage) if name.kind == "model" else {}
