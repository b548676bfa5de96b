"""The list of desks: the words a user says after `falaj`, and where their verbs are; imported when asked for.

What each desk can do stands here too, group by group. It is what policy knows of verbs, so who reviews a change sees
every new power in this one table; and a command that speaks to one desk need not load the others to know it.
tests/shape/test_verbs.py holds it against the marks on the methods, and a house against those of every desk it opens.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import NamedTuple


class ServiceEntry(NamedTuple):
    """Where a desk's class is, what it is for and can do, and the kinds of things whose `show` it answers."""

    path: str
    summary: str
    verbs: Mapping[str, str]
    """The names of its verbs by group, separated by blanks."""
    kinds: tuple[str, ...] = ()
    errands: tuple[str, ...] = ()
    """Modules of what runs beside the caller (core/client_command.py) and belongs to this desk."""

    @property
    def groups(self) -> dict[str, str]:
        """Every verb with its group."""
        return {name: group for group, names in self.verbs.items() for name in names.split()}


SERVICES: dict[str, ServiceEntry] = {
    "catalog": ServiceEntry(
        "falaj.catalog.service:CatalogService",
        "Versions of datasets, models and code: publish, compare, promote, roll back",
        {
            "see": "show list about names history rules evidence judge users provenance deleted kept",
            "read": "open",
            "write": "begin commit confirm describe annotate tag untag inspect promote rollback attest pin unpin",
            "move": "copy carry",
            "govern": "require hold release record_event",
            "erase": "delete restrict lift",
        },
        ("dataset", "model", "code"),
        (
            "falaj.catalog.publishing",
            "falaj.catalog.client_commands",
            "falaj.catalog.reproduce_command",
            "falaj.exchange.client_commands",
            "falaj.study.optimize_command",
        ),
    ),
    "track": ServiceEntry(
        "falaj.track.service:TrackService",
        "Experiments: runs, parameters, metrics, artefacts; MLflow clients welcome",
        {
            "see": "show list recent table history curves compare experiments experiment artifacts",
            "read": "fetch",
            "write": "start log end use create change delete restore attach detach register",
        },
        ("run",),
        ("falaj.track.client_commands",),
    ),
    "outputs": ServiceEntry(
        "falaj.track.outputs:OutputsService",
        "Models that runs logged, before they are registered",
        {"see": "show list", "write": "create change link delete"},
        ("output",),
    ),
    "traces": ServiceEntry(
        "falaj.track.traces:TracesService",
        "What programs did, call by call, with what people think of it",
        {"read": "show list", "write": "record change delete"},
        ("trace",),
    ),
    "jobs": ServiceEntry(
        "falaj.jobs.service:JobService",
        "Programs on clusters: submit, follow, cancel, and why one waits",
        {
            "see": "list show why usage figures overview",
            "read": "logs",
            "write": "add retry change loosen tell",
            "control": "cancel hold release requeue control",
            "operate": "history",
        },
        ("job",),
        (
            "falaj.jobs.client_commands",
            "falaj.jobs.array",
            "falaj.jobs.bulk_control",
            "falaj.jobs.report",
            "falaj.jobs.simulation",
            "falaj.jobs.top",
        ),
    ),
    "train": ServiceEntry(
        "falaj.study.training_commands:TrainService",
        "Training scripts: how they run fastest, where their time goes, their curves",
        {},
        (),
        ("falaj.study.training_commands",),
    ),
    "sweeps": ServiceEntry(
        "falaj.study.service:SweepService",
        "Searches for good parameters: many trials, the bad ones stopped early, the best one kept",
        {"see": "list show", "write": "add stop keep"},
        ("sweep",),
        ("falaj.study.client_commands",),
    ),
    "features": ServiceEntry(
        "falaj.features.service:FeatureService",
        "Features: one definition for training and serving, right at every moment",
        {
            "see": "list show about plan users bound",
            "read": "open unlock read rows pseudonyms samples",
            "write": "define begin record merge append fill rekey sample",
            "erase": "forget replace",
        },
        ("entity", "view", "service"),
        (
            "falaj.features.client_commands",
            "falaj.features.quality_commands",
            "falaj.features.person_erasure",
            "falaj.features.distributed_history",
        ),
    ),
    "serve": ServiceEntry(
        "falaj.serve.service:ServeService",
        "Endpoints: deploy models, scale, watch roll-outs, go back",
        {
            "see": "list show verdict loads traffic",
            "read": "enter logs",
            "write": "add change promote label absorb batch",
            "control": "scale rollback stop start",
            "move": "pack",
            "erase": "remove forget",
        },
        ("endpoint",),
        ("falaj.serve.client_commands", "falaj.serve.bundle_commands", "falaj.serve.load_test"),
    ),
    "monitor": ServiceEntry(
        "falaj.monitor.service:MonitorService",
        "Watches: drift, quality and what follows; alerts, incidents, verdicts",
        {
            "see": "list show windows verdicts incidents incident challenge",
            "read": "figures",
            "write": "add change remove pause resume note",
            "control": "acknowledge resolve",
        },
        (),
        ("falaj.monitor.client_commands", "falaj.monitor.policy_replay"),
    ),
    "flows": ServiceEntry(
        "falaj.flows.service:FlowService",
        "Flows: pipelines on jobs, schedules, triggers, webhooks",
        {
            "see": "list show runs look triggers hear schedules hooks deliveries knocks",
            "write": "add start retry on off schedule unschedule hook unhook listen mute knock",
            "control": "cancel redeliver ping",
            "erase": "remove",
        },
        ("flow",),
        ("falaj.flows.client_commands",),
    ),
    "privacy": ServiceEntry(
        "falaj.privacy.service:PrivacyService",
        "People: purposes, consent, what they ask for, erasure with proof, breaches, assessments",
        {
            "see": (
                "purposes purpose consents requests request certificate breaches breach assessments plan retained "
                "organisation"
            ),
            "read": "refused pseudonym",
            "write": (
                "consent withdraw ask extend stop_clock resume_clock answer refuse close sign report notify settle "
                "assess"
            ),
            "govern": "add_purpose change_purpose set_organisation",
            "approve": "decide approve",
            "erase": (
                "restrict lift bar record_plan check_items start_erasure shred step settle_record redact_record "
                "delete_job_files retain certify search disclose"
            ),
        },
        (),
        (
            *("falaj.privacy.erasing", "falaj.privacy.access", "falaj.privacy.ropa", "falaj.privacy.breach_reach"),
            *("falaj.privacy.online_marks", "falaj.privacy.print_commands"),
        ),
    ),
    "clusters": ServiceEntry(
        "falaj.fleet.clusters:ClusterService",
        "Where jobs run: clusters, their nodes, draining",
        {
            "see": "list show nodes figures history alerts health pools scaling",
            "operate": "add change remove drain open check tune",
        },
        ("cluster",),
    ),
    "agents": ServiceEntry(
        "falaj.fleet.agents:AgentService",
        "Data planes of zones that stand elsewhere and only dial out",
        {"see": "list join renew", "operate": "invite remove"},
        ("agent",),
    ),
    "queues": ServiceEntry(
        "falaj.fleet.queues:QueueService",
        "Who gets how much: guarantees, limits, weights, budgets",
        {"see": "list show", "operate": "add change remove replace hold drain release"},
        ("queue",),
        ("falaj.fleet.client_commands",),
    ),
    "store": ServiceEntry(
        "falaj.store.service:StorageService",
        "Bytes under labels: put, get, copy between zones, check, back up",
        {
            "see": "show list usage",
            "read": "get",
            "write": "put",
            "move": "copy",
            "operate": "space scrub collect backup preserve backups drill",
            "audit": "strays",
            "erase": "delete",
        },
        ("blob",),
    ),
    "people": ServiceEntry(
        "falaj.govern.people:PeopleService",
        "Tenants, people, service accounts, their roles and tokens",
        {
            "see": "list show enroll token renew whoami exchange",
            "govern": "add_tenant appoint_officer suspend_tenant resume_tenant list_tenants add change suspend resume "
            "remove reset revoke revoke_run trust distrust",
        },
        ("person",),
    ),
    "policy": ServiceEntry(
        "falaj.govern.policy_service:PolicyService",
        "Who may do what: roles, tenant rules, and why a decision fell",
        {"see": "list show explain may roles", "govern": "add remove", "audit": "test"},
        ("policy",),
    ),
    "zones": ServiceEntry(
        "falaj.govern.zones:ZoneService",
        "Legal places, regimes, transfer grants: what may lie or go where",
        {
            "see": "list show regimes check grants",
            "write": "grant declassify lower",
            "govern": "add change retire revoke",
            "audit": "copies",
        },
        ("zone",),
        ("falaj.govern.transfer_command",),
    ),
    "approvals": ServiceEntry(
        "falaj.govern.approvals:ApprovalService",
        "Four eyes: ask, give, refuse, over exact digests",
        {
            "see": "show list documents notices",
            "read": "open_document",
            "write": "ask add_document confirm",
            "approve": "give refuse",
            "erase": "remove_document",
        },
        ("approval",),
    ),
    "keys": ServiceEntry(
        "falaj.govern.key_service:KeyService",
        "The key hierarchy: ages, versions, rotation",
        {"see": "list show status", "govern": "rotate retire"},
        ("key",),
    ),
    "secrets": ServiceEntry(
        "falaj.govern.secret_service:SecretService",
        "Secrets by reference, never by value",
        {"see": "list show use", "read": "reveal", "write": "put rotate grant withdraw", "erase": "delete"},
        ("secret",),
    ),
    "audit": ServiceEntry(
        "falaj.audit.service:AuditService",
        "What can be proved: the log, proofs, evidence packs, lineage",
        {
            "see": "verifier lineage draw impact",
            "govern": "enrol",
            "audit": "log show watch prove consistency checkpoints seal export verify check cosign unfinished "
            "attest answer answers timestamps clocks",
        },
        ("event",),
        ("falaj.comply.client_commands",),
    ),
}


def list_actions() -> dict[str, str]:
    """Every verb of the house with its group: what policy knows."""
    return {
        f"{service_name}.{operation}": group
        for service_name, service in SERVICES.items()
        for operation, group in service.groups.items()
    }


@cache
def load_service_class(service_name: str) -> type:
    """The class behind a desk's name; imports that desk and no other."""
    if service_name not in SERVICES:
        from falaj.core.errors import NotFound  # the list itself must load nothing: `falaj --help` is made of it

        raise NotFound(f"there is no desk {service_name!r:.40}", f"there are: {', '.join(SERVICES)}")
    module_name, _, class_name = SERVICES[service_name].path.partition(":")
    try:
        service_class: type = getattr(import_module(module_name), class_name)
    except ModuleNotFoundError as error:
        from falaj.core.errors import missing_package_error

        # The core install is small on purpose; a desk that needs more says so when somebody comes to it.
        raise missing_package_error(service_name, service_name, error) from error
    return service_class
