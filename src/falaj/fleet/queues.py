"""Queues: the desk of the share tree. Who is guaranteed what, who may borrow how much, and what it may cost."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import HOUSE, Context
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.verb import verb
from falaj.fleet.amounts import all_shown, amounts, band, by_name
from falaj.fleet.budgets import UNITS, read_budget, read_spent, standing
from falaj.fleet.records import DRAIN, HOLD, BudgetRule, QueueChange, QueueRule, QueueView
from falaj.fleet.use import Use, added, check_tenants, every, house_key, house_of, live_jobs
from falaj.schedule.model import BANDS, CRITICAL, HIGH, NORMAL, Queue
from falaj.schedule.promises import promised
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, Reader, Writer

ROOT = "root"
CAPS = ("max_waiting", "max_waiting_per_person")
WORDS = ("guarantee", "limit", "lend", "weight", "projects", "budget", "top_band", *CAPS)
SERVING_BAND = HIGH
"""The highest band of an endpoint's replicas where no queue sets one; of other jobs it is normal."""
_NAME = re.compile(r"root(/[a-z0-9][a-z0-9-]{0,40}){0,6}")
_PROJECT = re.compile(r"\*|[a-z0-9][a-z0-9._-]{0,62}/(\*|[a-z0-9][a-z0-9._-]{0,62})")
_TREE = house_key("queue", "tree")
_FRESH = (QueueRule(ROOT), QueueRule("root/default", projects=("*",)))
_NOTHING: dict[str, str] = {}


class Queues:
    """The tree of queues: guarantees, limits, weights, budgets, and whose jobs each takes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @verb(group="operate")
    def add(
        self,
        ctx: Context,
        name: Annotated[str, "its path, for example root/bank/fraud"],
        guarantee: Annotated[
            dict[str, str], "what it always gets back: gpu=4, gpu:A100=2, cpu=64, memory=1TiB"
        ] = _NOTHING,
        limit: Annotated[dict[str, str], "what it never exceeds"] = _NOTHING,
        weight: Annotated[int, "its part of what is left over, against its siblings"] = 1,
        projects: Annotated[tuple[str, ...], "whose jobs it takes: tenant/project, tenant/*, or *"] = (),
        budget: Annotated[tuple[str, ...], "what it may spend: gpu-hours=500/month:stop, money=1000/30d"] = (),
        more: Annotated[
            dict[str, str],
            "lend.gpu=2 (how much of its guarantee others may borrow), top_band=high, max_waiting=1000",
        ] = _NOTHING,
    ) -> QueueView:
        """Add a queue; queues on the way to it are made where they are missing.

        Example:
            falaj queues add root/bank/fraud --guarantee gpu=4 --limit gpu=8 --weight 2 --projects bank/fraud \\
                --budget gpu-hours=500/month:stop
        """
        words = {"guarantee": guarantee, "limit": limit, "weight": weight, "projects": projects, "budget": budget}
        made = described(QueueRule(_checked(name)), _unfold({**words, **more}))
        with self._ledger.write(_house(ctx)) as tx:
            tree = {rule.name: rule for rule in read_rules(tx)}
            if name in tree:
                raise Conflict(f"there is a queue {name}", f"falaj queues change {name}")
            for path in _way(name)[:-1]:
                tree.setdefault(path, QueueRule(path))
            self._save(tx, {**tree, name: made}, "queues.add", name)
        return self._shown(ctx, name)

    @verb(group="operate")
    def change(
        self,
        ctx: Context,
        name: Annotated[str, "the queue"],
        more: Annotated[
            dict[str, str],
            "guarantee.gpu=4, limit.gpu=8, weight=2, projects=a/b,a/c, budget.gpu-hours=+50, top_band=high, "
            "max_waiting=1000, max_waiting_per_person=200",
        ],
    ) -> QueueView:
        """Change a queue; what is not named stays. An amount of `none` is taken away.

        Example:
            falaj queues change root/bank/fraud --more limit.gpu=12 --more weight=3
        """
        with self._ledger.write(_house(ctx)) as tx:
            tree = {rule.name: rule for rule in read_rules(tx)}
            tree[name] = described(_need(tree, name), _unfold(more))
            self._save(tx, tree, "queues.change", name)
        return self._shown(ctx, name)

    @verb(group="operate")
    def remove(self, ctx: Context, name: Annotated[str, "the queue"]) -> str:
        """Remove a queue that has no queue below it and no live job.

        Example:
            falaj queues remove root/bank/fraud
        """
        with self._ledger.write(_house(ctx)) as tx:
            tree = {rule.name: rule for rule in read_rules(tx)}
            _need(tree, name)
            del tree[name]
            self._save(tx, tree, "queues.remove", name)
        return name

    @verb(group="operate")
    def hold(
        self,
        ctx: Context,
        name: Annotated[str, "the queue; those below it are held with it"],
        reason: Annotated[str, "why; the people of its jobs see it"] = "",
    ) -> QueueView:
        """Hold a queue: no job of it starts until it is released. What runs goes on to its end.

        Example:
            falaj queues hold root/bank --reason "maintenance until 18:00"
        """
        return self._stop(ctx, name, HOLD, reason)

    @verb(group="operate")
    def drain(
        self,
        ctx: Context,
        name: Annotated[str, "the queue; those below it are drained with it"],
        reason: Annotated[str, "why; the people of its jobs see it"] = "",
    ) -> QueueView:
        """Drain a queue: no job of it starts, and what runs is asked to save, stopped, and waits until it is released.

        Example:
            falaj queues drain root/bank --reason "the hall is switched off"
        """
        return self._stop(ctx, name, DRAIN, reason)

    @verb(group="operate")
    def release(self, ctx: Context, name: Annotated[str, "a queue that is held or drained"]) -> QueueView:
        """Release a queue that was held or drained: its jobs are back at their places.

        Example:
            falaj queues release root/bank
        """
        return self._stop(ctx, name, "", "")

    def _stop(self, ctx: Context, name: str, stop: str, reason: str) -> QueueView:
        with self._ledger.write(_house(ctx)) as tx:
            tree = {rule.name: rule for rule in read_rules(tx)}
            rule = _need(tree, name)
            if not stop and not rule.stop:
                stopped = ", ".join(path for path, other in tree.items() if other.stop) or "none"
                raise Conflict(f"the queue {name} is neither held nor drained", f"stopped queues: {stopped}")
            tree[name] = replace(rule, stop=stop, stop_reason=reason[:400])
            self._save(tx, tree, f"queues.{stop or 'release'}", name)
        return self._shown(ctx, name)

    @verb()
    def list(self, ctx: Context) -> tuple[QueueView, ...]:
        """List the tree: what each queue is promised, uses and borrows, and what is left of its budgets.

        Example:
            falaj queues list
        """
        return self._views(ctx)

    @verb()
    def show(self, ctx: Context, name: Annotated[str, "the queue"]) -> QueueView:
        """Show one queue.

        Example:
            falaj queues show root/default
        """
        return self._shown(ctx, name)

    @verb(group="operate")
    def replace(
        self,
        ctx: Context,
        tree: Annotated[dict[str, Any], "every queue by its path, with its words"],
        dry: Annotated[bool, "say what would change, and change nothing"] = False,
    ) -> tuple[QueueChange, ...]:
        """Have exactly these queues, all at once; `falaj queues apply FILE` calls this.

        Example:
            falaj queues replace --tree root/default='{"projects": ["*"]}' --dry
        """
        wanted = tree_of(tree)
        with self._ledger.write(_house(ctx)) as tx:
            before = {rule.name: rule for rule in read_rules(tx)}
            # A file says what queues deserve; whether an operator stopped one is not for it to say.
            stopped = {path: rule for path, rule in before.items() if rule.stop and path in wanted}
            for path, rule in stopped.items():
                wanted[path] = replace(wanted[path], stop=rule.stop, stop_reason=rule.stop_reason)
            changes = tuple(_compared(before, wanted))
            _check_takers(tx, wanted)
            if changes and not dry:
                self._save(tx, wanted, "queues.replace", ROOT)
        return changes

    def _save(self, tx: Writer, tree: Mapping[str, QueueRule], said: str, name: str) -> None:
        _check_tree(tree)
        _check_takers(tx, tree)
        self._check_homes(tx, tree)
        old = tx.key(_TREE)
        body = {"queues": to_plain([tree[path] for path in sorted(tree)])}
        record = tx.put(_TREE, body, rev=old.rev if old else None)
        tx.emit(said, record.ref, queue=name)

    def _check_homes(self, tx: Reader, tree: Mapping[str, QueueRule]) -> None:
        """Every live job stands in a leaf; the scheduler would not know what to do with another."""
        leaves = set(tree) - {name.rpartition("/")[0] for name in tree}
        homeless = [record.body["use"]["queue"] for record in live_jobs(self._ledger, tx)]
        homeless = [name for name in homeless if name not in leaves]
        if homeless:
            said = f"{len(homeless)} jobs are in {homeless[0]}"
            raise Conflict(said, "let them end, or move them first: falaj jobs change JOB --queue …")

    def _shown(self, ctx: Context, name: str) -> QueueView:
        found = next((view for view in self._views(ctx) if view.name == name), None)
        if found is None:
            raise _missing(name)
        return found

    def _views(self, ctx: Context) -> tuple[QueueView, ...]:
        with self._ledger.read(house_of(ctx)) as tx:
            rules = read_rules(tx)
            bodies = [record.body for record in live_jobs(self._ledger, tx)]
            spent = read_spent(tx)
            owed = promised({rule.name: rule.guarantee for rule in rules}, _capacity(tx, rules))
        held = [
            (Use(b["use"]["queue"], bool(b["use"]["nodes"]), b["use"]["nodes"]), b["use"]["charge"]) for b in bodies
        ]
        seen = {path for rule in rules if _sees(ctx, rule) for path in _way(rule.name)}
        seen_rules = [rule for rule in rules if rule.name in seen]
        tree = {rule.name: rule for rule in rules}
        seen_rules = [replace(rule, top_band=top_band(rule.name, tree)) for rule in seen_rules]
        return tuple(_view(rule, held, owed[rule.name], spent.get(rule.name, {}), ctx.now()) for rule in seen_rules)


def read_rules(tx: Reader) -> tuple[QueueRule, ...]:
    """Every queue, parents first; a fresh house has one for everybody."""
    record = tx.key(_TREE)
    return _FRESH if record is None else from_plain(tuple[QueueRule, ...], record.body["queues"])


def tree_of(words: Mapping[str, Any]) -> dict[str, QueueRule]:
    """Exactly the queues that a file names, with those on the way to them; Invalid where that can be no tree."""
    wanted = {
        name: described(QueueRule(_checked(name)), _unfold(by_name(name, of, "weight=2"))) for name, of in words.items()
    }
    for name in [*wanted]:
        for path in _way(name):
            wanted.setdefault(path, QueueRule(path))
    _check_tree(wanted)
    return wanted


def as_queues(
    rules: Iterable[QueueRule],
    spent: Mapping[str, Mapping[str, int]],
    held: Mapping[str, Mapping[str, int]],
    now: float,
) -> tuple[Queue, ...]:
    """The tree as the scheduler takes it; `held` is by queue, in the units of budgets, parents included."""
    tree = {rule.name: rule for rule in rules}
    parents = {name.rpartition("/")[0] for name in tree}
    return tuple(
        Queue(
            rule.name, rule.weight, rule.guarantee, rule.limit, rule.lend,
            # Jobs wait in leaves only, and what is set above a leaf is in what the leaf has.
            CRITICAL if rule.name in parents else top_band(rule.name, tree, SERVING_BAND),
            standing(rule.budgets, spent.get(rule.name, {}), held.get(rule.name, {}), now),
            ask_band=CRITICAL if rule.name in parents else top_band(rule.name, tree),
        )
        for rule in tree.values()
    )  # fmt: skip


def top_band(name: str, rules: Mapping[str, QueueRule], default: int = NORMAL) -> int:
    """The highest band the jobs of a queue may have: the lowest that it or a queue above it sets, else the default."""
    return min((rule.top_band for rule in way_up(name, rules) if rule.top_band is not None), default=default)


def queue_for(rules: Iterable[QueueRule], tenant: str, project: str, asked: str = "") -> QueueRule:
    """The queue of a job: the one asked for, if it takes this project; else the one that names it most closely."""
    place = f"{tenant}/{project}"
    rules = tuple(rules)
    fits = [rule for word in (place, f"{tenant}/*", "*") for rule in rules if word in rule.projects]
    if not asked and fits:
        return fits[0]
    found = next((rule for rule in fits if rule.name == asked), None)
    if found is None:
        names = ", ".join(dict.fromkeys(rule.name for rule in fits)) or "none: ask the people who run this installation"
        raise Invalid(
            f"no queue {asked} takes jobs of {project}" if asked else f"no queue takes jobs of {project}",
            f"there is: {names}",
        )
    return found


def way_up(name: str, rules: Mapping[str, QueueRule]) -> tuple[QueueRule, ...]:
    """A queue and all above it."""
    return tuple(rules[path] for path in _way(name) if path in rules)


def stopped_above(name: str, rules: Mapping[str, QueueRule]) -> QueueRule | None:
    """The queue that keeps jobs of a queue from starting: itself or one above it; of several the one that drains."""
    stopped = [rule for rule in way_up(name, rules) if rule.stop]
    return next((rule for rule in stopped if rule.stop == DRAIN), stopped[0] if stopped else None)


def described(rule: QueueRule, words: Mapping[str, Any]) -> QueueRule:
    """A queue with these words applied; a mapping of amounts is laid over the old one, `none` takes one away."""
    unknown = sorted(set(words) - set(WORDS))
    if unknown:
        raise Invalid(f"a queue has no {', '.join(unknown)[:200]}", f"it has: {', '.join(WORDS)}")
    changes: dict[str, Any] = {}
    for name in ("guarantee", "limit", "lend"):
        if name in words:
            given = by_name(f"the {name} of {rule.name}", words[name], "gpu=4")
            kept = {key: value for key, value in getattr(rule, name).items() if key not in given}
            new = amounts({key: value for key, value in given.items() if str(value) != "none"})
            changes[name] = dict(sorted({**kept, **new}.items()))
    if "weight" in words:
        changes["weight"] = _weight(words["weight"])
    if "top_band" in words:
        changes["top_band"] = None if words["top_band"] == "none" else band(words["top_band"])
    for name in CAPS:
        if name in words:
            changes[name] = _cap(name, words[name])
    if "projects" in words:
        changes["projects"] = tuple(dict.fromkeys(_project(word) for word in _words(words["projects"])))
    if "budget" in words:
        changes["budgets"] = _budgets(rule, words["budget"])
    return replace(rule, **changes)


def _budgets(rule: QueueRule, words: Any) -> tuple[BudgetRule, ...]:
    """Budgets as people write them; or, by unit, how much those that it has are, or (+) by how much they grow."""
    if not isinstance(words, Mapping):
        return tuple(read_budget(word) for word in _words(words) if word != "none")
    budgets = rule.budgets
    for unit, text in words.items():
        if all(one.unit != unit for one in budgets):
            raise Invalid(f"{rule.name} has no budget of {unit[:40]}", f"--more budget={unit}=500/month:stop")
        amount = read_budget(f"{unit}={str(text).removeprefix('+')}/day").amount
        more = str(text).startswith("+")
        budgets = tuple(
            replace(one, amount=amount + (one.amount if more else 0)) if one.unit == unit else one for one in budgets
        )
    return budgets


def _check_takers(tx: Reader, tree: Mapping[str, QueueRule]) -> None:
    """NotFound where a queue takes jobs of a tenant that is not there, and did not do so before."""
    before = {word for rule in read_rules(tx) for word in rule.projects}
    check_tenants(tx, {word.partition("/")[0] for rule in tree.values() for word in {*rule.projects} - before})


def _check_tree(tree: Mapping[str, QueueRule]) -> None:
    parents = {name.rpartition("/")[0] for name in tree}
    for name, rule in tree.items():
        if name in parents and rule.projects:
            raise Invalid(f"{name} takes jobs and has queues below it", f"give its projects to {name}/default, say")
        if name != ROOT and name.rpartition("/")[0] not in tree:
            raise Invalid(f"{name} would hang in the air", "remove the queues below it first")
        for key, value in rule.guarantee.items():
            for path in _way(name):
                if path in tree and value > tree[path].limit.get(key, value):
                    raise Invalid(f"{name} is guaranteed more {key} than the limit of {path}", "raise it or lower that")
    for parent in parents & set(tree):
        below = added(*(rule.guarantee for name, rule in tree.items() if name.rpartition("/")[0] == parent))
        over = [key for key, value in tree[parent].guarantee.items() if below.get(key, 0) > value]
        if over:
            raise Invalid(f"the queues below {parent} are guaranteed more {over[0]} than it is", "raise its guarantee")


def _compared(before: Mapping[str, QueueRule], after: Mapping[str, QueueRule]) -> Iterable[QueueChange]:
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            word = "new" if old is None else "gone" if new is None else "changed"
            yield QueueChange(name, word, _said(old, new), _said(new, old))


def _said(rule: QueueRule | None, other: QueueRule | None) -> str:
    """What is different about a queue, in words."""
    if rule is None:
        return ""
    plain: dict[str, Any] = {
        "weight": rule.weight, "guarantee": all_shown(rule.guarantee), "limit": all_shown(rule.limit),
        "lend": all_shown(rule.lend), "projects": list(rule.projects), "budget": [one.brief for one in rule.budgets],
        "top_band": "" if rule.top_band is None else BANDS[rule.top_band],
        **{cap: str(getattr(rule, cap)) for cap in CAPS if getattr(rule, cap) is not None},
    }  # fmt: skip
    fields = {"budget": "budgets"}
    return " ".join(
        f"{name}={value}"
        for name, value in plain.items()
        if value and (other is None or getattr(rule, fields.get(name, name)) != getattr(other, fields.get(name, name)))
    )


def _capacity(tx: Reader, rules: Iterable[QueueRule]) -> dict[str, int]:
    """All there is of what guarantees bring along; nothing where there is none."""
    total: dict[str, int] = {}
    for record in every(tx, "node", HOUSE) if any(rule.guarantee for rule in rules) else ():
        facts = record.body["facts"]
        models = [device["model"] for device in facts["devices"] if device.get("model")]
        total = added(total, facts["amounts"], *({"gpu": 1000, f"gpu:{model}": 1000} for model in models))
    return total


def _view(
    rule: QueueRule,
    held: "list[tuple[Use, dict[str, int]]]",
    owed: Mapping[str, int],
    spent: Mapping[str, int],
    now: float,
) -> QueueView:
    mine = [(use, charge) for use, charge in held if f"{use.queue}/".startswith(f"{rule.name}/")]
    used = added(*(use.amounts for use, _ in mine))
    over = {
        name: value - owed.get(name, rule.guarantee.get(name, 0)) for name, value in used.items() if ":" not in name
    }
    charged = added(*(charge for _, charge in mine))
    counted = zip(rule.budgets, standing(rule.budgets, spent, charged, now), strict=True)
    left = tuple(
        f"{one.brief} ({b.spent / UNITS[one.unit][1]:.4g} spent, {b.held / UNITS[one.unit][1]:.4g} held)"
        for one, b in counted
    )
    running = sum(use.running for use, _ in mine)
    return QueueView(
        rule.name, rule.weight, all_shown(rule.guarantee), all_shown(rule.limit), all_shown(rule.lend),
        BANDS[NORMAL if rule.top_band is None else rule.top_band], rule.projects, all_shown(used),
        all_shown({name: value for name, value in over.items() if value > 0}), len(mine) - running, running, left,
        rule.stop, rule.stop_reason, rule.max_waiting, rule.max_waiting_per_person,
    )  # fmt: skip


def _sees(ctx: Context, rule: QueueRule) -> bool:
    """A tenant sees the queues that take its jobs, and those above them."""
    return ctx.tenant == HOUSE or any(word == "*" or word.partition("/")[0] == ctx.tenant for word in rule.projects)


def _unfold(more: Mapping[str, Any]) -> dict[str, Any]:
    """`limit.gpu=8` as {limit: {gpu: 8}}."""
    found: dict[str, Any] = {}
    for name, value in more.items():
        head, dot, rest = name.partition(".")
        if dot:
            found[head] = {**by_name(head, found.get(head, {}), f"{head}.gpu=4"), rest: value}
        else:
            found[name] = value
    return found


def _words(value: Any) -> "list[str]":
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise Invalid(f"{value!r:.60} is no list of words", 'for example ["bank/fraud", "bank/risk"]')
    return [word.strip() for word in words if word.strip()]


def _project(word: str) -> str:
    if not _PROJECT.fullmatch(word):
        raise Invalid(f"{word[:80]!r} names no project", "tenant/project, tenant/*, or *")
    return word


def _weight(value: Any) -> int:
    if not str(value).isdigit() or not 1 <= int(value) <= 1_000_000:
        raise Invalid(f"a weight of {value!r:.20}", "a whole number from 1 to 1000000")
    return int(value)


def _way(name: str) -> "list[str]":
    parts = name.split("/")
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def _cap(name: str, value: Any) -> int | None:
    if str(value) == "none":
        return None
    if not str(value).isdigit() or len(str(value)) > 9:
        raise Invalid(f"{name} {value!r:.20}: expected a whole number from 0, or none", f"for example {name}=1000")
    return int(value)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name[:80]!r} is no path of a queue", "for example root/bank/fraud")
    return name


def _need(tree: Mapping[str, QueueRule], name: str) -> QueueRule:
    if name not in tree:
        raise _missing(name)
    return tree[name]


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no queue {name!r:.60}", "falaj queues list shows them")


def _house(ctx: Context) -> Context:
    if ctx.tenant != HOUSE:
        raise Denied("queues belong to the house", "ask the people who run this installation")
    return ctx
