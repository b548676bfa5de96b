"""A name and its versions; a version: what it is, its label, its columns, its origin, who says what of it."""

from falaj.catalog.life_records import Attestation, Named
from falaj.catalog.records import Version
from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, href
from falaj.console.pages.catalog import model, schema
from falaj.console.pages.catalog.shown import asked, at, crumbs, label_card, marks, stage, summary, title, ways
from falaj.console.parts import Column, Field, Row
from falaj.console.view import View
from falaj.core.ref import Ref

_PAGE, _SHOWN, _FEW = 100, 20, 5
_ORDER = ("endpoint", "model", "dataset", "service", "view", "code", "turn", "job", "run")
HIDDEN_KINDS = frozenset({"approval", "replica"})


def thing(view: View) -> Page:
    """The page of a name, or of one version of it."""
    ref = asked(view)
    return _version(view, ref) if ref.version else _name(view, ref)


def _name(view: View, ref: Ref) -> Page:
    named: Named = view.here.catalog.about(ref)
    t = view.t
    tags = [h.span(h.bdi(key), ": ", h.bdi(value), class_="tag") for key, value in sorted(named.tags.items())]
    words = [h.div(marks(view, ref, (word,)), " → ", parts.ref(view, ref.at(version), short=True))
             for word, version in sorted(named.aliases.items())]  # fmt: skip
    about = parts.card(
        t("catalog.about"),
        h.p(named.about, dir="auto") if named.about else h.p(t("catalog.no_about"), class_="soft"),
        parts.facts([
            (t("console.tags"), join(tags)), (t("catalog.aliases"), join(words)),
            (t("console.owner"), h.bdi(named.author)),
            (t("catalog.first"), view.when(named.made_at)), (t("catalog.how_many"), view.number(named.count)),
        ]),
        h.div(_describe(view, named), class_="actions"),
        id="about",
    )  # fmt: skip
    versions = parts.card(t("console.versions"), view.part(lambda: _versions(view, ref)), id="versions")
    return Page(title(ref), join(ways(view, ref, ""), about, versions), crumbs(view, ref), ("catalog",))


def _describe(view: View, named: Named) -> Html:
    field = Field("about", view.t("catalog.about"), "textarea", named.about)
    return parts.action(view, "catalog", "describe", {"name": named.ref}, view.t("catalog.describe"), (field,))


def _versions(view: View, ref: Ref) -> Html:
    page = view.here.catalog.list(kind=ref.kind, project=ref.project, name=ref.name, after=view.query("page"),
                                  limit=_PAGE)  # fmt: skip
    if not page.versions:
        line = f"falaj catalog publish {ref} ./folder"
        return parts.empty(view, view.t("catalog.no_version"), view.t("catalog.empty_hint"), line)
    t = view.t
    names = tuple(dict.fromkeys(key for one in page.versions if one.card for key in one.card.metrics))[:3]
    columns: tuple[Column | Html | str, ...] = (
        t("console.version"), t("catalog.stage_alias"), t("catalog.message"), Column(t("console.size"), "n"),
        *(Column(h.bdi(name), "n") for name in names), t("console.by"), t("console.made"), "",
    )  # fmt: skip
    rows = [_version_row(view, one, names) for one in page.versions]
    return join(parts.table(view, columns, rows, t("console.versions")), parts.pager(view, page.next))


def _version_row(view: View, one: Version, names: tuple[str, ...]) -> Row:
    others = tuple(word for word in one.aliases if word != one.stage)
    measured = one.card.metrics if one.card else {}
    before = number_of(one.ref) > 1
    cells = (
        parts.ref(view, one.ref, short=True), join(stage(view, one.stage), " ", marks(view, one.ref, others)),
        h.span(one.message[:200], dir="auto"), view.bytes(one.size_bytes),
        *(view.number(measured[name]) if name in measured else "" for name in names),
        h.bdi(one.author), view.ago(one.made_at),
        h.a(view.t("catalog.compare"), href=at(one.ref, "diff")) if before else "",
    )  # fmt: skip
    return Row(cells, id=f"v-{one.ref.version}")


def number_of(ref: Ref) -> int:
    """v12 is 12; anything else comes first."""
    return int(ref.version[1:]) if ref.version[1:].isdecimal() else 0


def _version(view: View, ref: Ref) -> Page:
    version: Version = view.here.catalog.show(ref)
    if version.ref.version != ref.version:
        ref = version.ref
    body = join(
        ways(view, ref, ""),
        summary(view, version),
        parts.cards(_facts(view, version), label_card(view, version.label)),
        schema.schema(view, version) if version.table else None,
        model.cards(view, version) if version.card else None,
        parts.cards(
            parts.card(view.t("catalog.origins"), view.part(lambda: _around(view, version)), id="origins",
                       more=at(ref, "lineage")),
            parts.card(view.t("catalog.evidence"), view.part(lambda: _evidence(view, ref)), id="evidence"),
        ),
        _actions(view, version) if version.state == "live" else None,
    )  # fmt: skip
    return Page(title(ref), body, crumbs(view, ref), ("catalog", "serve"))


def _facts(view: View, version: Version) -> Html:
    t = view.t
    tags = [h.span(h.bdi(key), ": ", h.bdi(value), class_="tag") for key, value in sorted(version.tags.items())]
    return parts.card(t("console.details"), parts.facts([
        (t("console.size"), view.bytes(version.size_bytes)),
        (t("console.files"), h.a(view.number(version.num_files), href=at(version.ref, "files"))),
        (t("catalog.rows"), view.number(version.table.rows) if version.table else ""),
        (t("console.made"), join(view.when(version.made_at), " · ", h.bdi(version.author))),
        (t("console.zone"), join([parts.ref(view, Ref("zone", "zones", one), short=True) for one in version.zones])),
        (t("catalog.signature"), t("catalog.signed") if version.signed else t("catalog.unsigned")
         if version.ref.kind == "model" else ""),
        (t("catalog.pinned"), t("catalog.pinned_yes") if version.pinned else ""),
        (t("console.tags"), join(tags)),
        (t("catalog.digest"), h.code(f"{version.root[:23]}…", dir="ltr", title=version.root)),
    ]), id="facts")  # fmt: skip


def _around(view: View, version: Version) -> Html:
    """What it was made from and who uses it: one step each way; the graph shows the rest, runs and jobs too."""
    t, ref = view.t, version.ref
    up = list(version.inputs.items())
    serving = view.here.serve.list(project=ref.project, limit=200).endpoints if ref.kind == "model" else ()
    ends = [one.ref.bare for one in serving if any(part.model == ref for part in one.revisions)]
    down = [("", one) for one in (*ends, *view.here.catalog.users(ref))]
    return join(
        h.h3(t("catalog.made_from")), _things(view, up), h.h3(t("catalog.went_into")), _things(view, down),
        h.p(h.a(t("catalog.walk"), href=at(ref, "lineage"))),
        h.p(t("catalog.as_statement"), " ", h.a("SLSA", href=at(ref, "provenance", form="slsa")), " · ",
            h.a("CycloneDX", href=at(ref, "provenance", form="cyclonedx")), class_="small"),
    )  # fmt: skip


def _things(view: View, refs: list[tuple[str, Ref]]) -> Html:
    """By kind, what people look for first; of each kind a few."""
    if not refs:
        return h.p(view.t("console.none"), class_="soft")
    kinds: dict[str, list[Html]] = {}
    for role, ref in refs:
        said = h.span(h.bdi(role), ": ", class_="soft") if role else None
        kinds.setdefault(ref.kind, []).append(h.div(said, parts.ref(view, plain(str(ref)), short=True)))
    order = sorted(kinds, key=lambda kind: (_ORDER.index(kind) if kind in _ORDER else len(_ORDER), kind))
    return parts.facts([(view.t.of("catalog.kinds", kind), join(_few(view, kinds[kind]))) for kind in order])


def _few(view: View, shown: list[Html]) -> list[Html]:
    some = list(dict.fromkeys(shown))
    more = h.div(view.t("catalog.more", n=len(some) - _FEW), class_="soft small")
    return [*some[:_FEW], more] if len(some) > _FEW else some


def plain(ref: str) -> Ref:
    """What a person would name: the revision of a thing that has no versions is left out."""
    known = Ref.parse(ref)
    return known.bare if known.version.startswith("r") else known


def _evidence(view: View, ref: Ref) -> Html:
    found: tuple[Attestation, ...] = view.here.catalog.evidence(ref)
    t, add = view.t, _attest(view, ref)
    if not found:
        return join(h.p(t("catalog.no_evidence"), class_="soft"), add)
    rows = [
        Row((h.bdi(one.kind), parts.badge(view, "ok" if one.passed else "failed"), _said(view, one), h.bdi(one.author),
             view.ago(one.at)), id=f"e-{one.ref.name}")
        for one in reversed(found[-_SHOWN:])
    ]  # fmt: skip
    heads = (t("console.kind"), t("console.state"), t("catalog.found"), t("console.by"), t("console.when"))
    return join(parts.table(view, heads, rows, t("catalog.evidence")), add)


def _said(view: View, one: Attestation) -> Html:
    figures = [h.div(h.bdi(key), " = ", view.number(value)) for key, value in one.metrics.items()]
    return join([h.div(h.bdi(key), ": ", h.span(value, dir="auto")) for key, value in one.facts.items()], figures)


def _attest(view: View, ref: Ref) -> Html:
    t = view.t
    fields = (Field("kind", t("catalog.attest_kind"), value="bias", required=True),
              Field("passed", t("catalog.attest_passed"), "checkbox", "on"),
              Field("facts", t("catalog.attest_facts"), "textarea", hint="report=…"))  # fmt: skip
    return parts.action(view, "catalog", "attest", {"name": ref, "passed": False}, t("catalog.attest"), fields)


def _actions(view: View, version: Version) -> Html:
    """What can be done to a version; whoever may not sees what it would need."""
    t, ref = view.t, version.ref
    pin = ("unpin", t("catalog.unpin")) if version.pinned else ("pin", t("catalog.pin"))
    alias = (Field("alias", t("catalog.alias"), required=True), Field("reason", t("console.reason")))
    say = (Field("message", t("catalog.message"), "textarea", version.message),)
    held = sorted(version.label.holds)
    which = (Field("why", t("catalog.holds"), "select", options=[(one, one) for one in held]),)
    freed = parts.action(view, "catalog", "release", {"name": ref}, t("catalog.release"), which) if held else EMPTY
    made = (
        parts.action(view, "catalog", "tag", {"name": ref}, t("catalog.tag"), alias),
        parts.action(view, "catalog", "annotate", {"name": ref}, t("catalog.annotate"), say),
        parts.action(view, "catalog", pin[0], {"name": ref}, pin[1]),
        parts.action(view, "catalog", "inspect", {"name": ref}, t("catalog.inspect"), show=True)
        if ref.kind == "model" else None,
        parts.action(view, "catalog", "copy", {"name": ref}, t("catalog.copy"),
                     (Field("to", t("console.zone"), required=True),)),
        parts.action(view, "catalog", "hold", {"name": ref}, t("catalog.hold"),
                     (Field("why", t("catalog.hold_why"), required=True),)),
        freed,
        parts.action(view, "catalog", "delete", {"name": ref}, t("console.delete"),
                     (Field("reason", t("console.reason"), required=True),), danger=True,
                     confirm=t("catalog.delete_sure"), back=href(ref.bare)),
    )  # fmt: skip
    return parts.card(t("console.actions"), h.div(made, class_="actions"), id="actions")
