"""Queues: the desk of the share tree. Who is guaranteed what, who may borrow how much, and what it may cost."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.operation import operation
from falaj.fleet.amounts import format_amounts, parse_amounts, parse_band, parse_mapping
from falaj.fleet.budgets import UNITS, read_budget, read_spent, to_scheduler_budgets
from falaj.fleet.fleet_use import (
    JobUse,
    check_tenants,
    iter_live_jobs,
    iter_records,
    make_system_context,
    make_system_key,
    sum_amounts,
)
from falaj.fleet.records import DRAIN, HOLD, BudgetRule, QueueChange, QueueRule, QueueView
from falaj.schedule.guarantees import compute_promises
from falaj.schedule.model import BANDS, CRITICAL, HIGH, NORMAL, Queue
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter

ROOT = "root"
CAPS = ("max_waiting", "max_waiting_per_person")
QUEUE_FIELDS = ("guarantee", "limit", "lend", "weight", "projects", "budget", "top_band", *CAPS)
SERVING_BAND = HIGH
"""The highest band of an endpoint's replicas where no queue sets one; of other jobs it is normal."""
_NAME = re.compile(r"root(/[a-z0-9][a-z0-9-]{0,40}){0,6}")
_PROJECT = re.compile(r"\*|[a-z0-9][a-z0-9._-]{0,62}/(\*|[a-z0-9][a-z0-9._-]{0,62})")
_TREE_KEY = make_system_key("queue", "tree")
_DEFAULT_RULES = (QueueRule(ROOT), QueueRule("root/default", projects=("*",)))
_NO_OPTIONS: dict[str, str] = {}


class QueueService:
    """The tree of queues: guarantees, limits, weights, budgets, and whose jobs each takes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @operation(group="operate")
    def add(
        self,
        ctx: CallContext,
        name: Annotated[str, "its path, for example root/bank/fraud"],
        guarantee: Annotated[
            dict[str, str], "what it always gets back: gpu=4, gpu:A100=2, cpu=64, memory=1TiB"
        ] = _NO_OPTIONS,
        limit: Annotated[dict[str, str], "what it never exceeds"] = _NO_OPTIONS,
        weight: Annotated[int, "its part of what is left over, against its siblings"] = 1,
        projects: Annotated[tuple[str, ...], "whose jobs it takes: tenant/project, tenant/*, or *"] = (),
        budget: Annotated[tuple[str, ...], "what it may spend: gpu-hours=500/month:stop, money=1000/30d"] = (),
        more: Annotated[
            dict[str, str],
            "lend.gpu=2 (how much of its guarantee others may borrow), top_band=high, max_waiting=1000",
        ] = _NO_OPTIONS,
    ) -> QueueView:
        """Add a queue; queues on the way to it are made where they are missing.

        Example:
            falaj queues add root/bank/fraud --guarantee gpu=4 --limit gpu=8 --weight 2 --projects bank/fraud \\
                --budget gpu-hours=500/month:stop
        """
        field_values = {
            "guarantee": guarantee,
            "limit": limit,
            "weight": weight,
            "projects": projects,
            "budget": budget,
        }
        new_rule = apply_fields(QueueRule(_check_name(name)), _unfold_options({**field_values, **more}))
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            tree = {rule.name: rule for rule in read_rules(tx)}
            if name in tree:
                raise Conflict(f"there is a queue {name}", f"falaj queues change {name}")
            for path in _list_path_names(name)[:-1]:
                tree.setdefault(path, QueueRule(path))
            self._save_tree(tx, {**tree, name: new_rule}, "queues.add", name)
        return self._show_queue(ctx, name)

    @operation(group="operate")
    def change(
        self,
        ctx: CallContext,
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
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            tree = {rule.name: rule for rule in read_rules(tx)}
            tree[name] = apply_fields(_find_rule(tree, name), _unfold_options(more))
            self._save_tree(tx, tree, "queues.change", name)
        return self._show_queue(ctx, name)

    @operation(group="operate")
    def remove(self, ctx: CallContext, name: Annotated[str, "the queue"]) -> str:
        """Remove a queue that has no queue below it and no live job.

        Example:
            falaj queues remove root/bank/fraud
        """
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            tree = {rule.name: rule for rule in read_rules(tx)}
            _find_rule(tree, name)
            del tree[name]
            self._save_tree(tx, tree, "queues.remove", name)
        return name

    @operation(group="operate")
    def hold(
        self,
        ctx: CallContext,
        name: Annotated[str, "the queue; those below it are held with it"],
        reason: Annotated[str, "why; the people of its jobs see it"] = "",
    ) -> QueueView:
        """Hold a queue: no job of it starts until it is released. What runs goes on to its end.

        Example:
            falaj queues hold root/bank --reason "maintenance until 18:00"
        """
        return self._set_stop(ctx, name, HOLD, reason)

    @operation(group="operate")
    def drain(
        self,
        ctx: CallContext,
        name: Annotated[str, "the queue; those below it are drained with it"],
        reason: Annotated[str, "why; the people of its jobs see it"] = "",
    ) -> QueueView:
        """Drain a queue: no job of it starts, and what runs is asked to save, stopped, and waits until it is released.

        Example:
            falaj queues drain root/bank --reason "the hall is switched off"
        """
        return self._set_stop(ctx, name, DRAIN, reason)

    @operation(group="operate")
    def release(self, ctx: CallContext, name: Annotated[str, "a queue that is held or drained"]) -> QueueView:
        """Release a queue that was held or drained: its jobs are back at their places.

        Example:
            falaj queues release root/bank
        """
        return self._set_stop(ctx, name, "", "")

    def _set_stop(self, ctx: CallContext, name: str, stop: str, reason: str) -> QueueView:
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            tree = {rule.name: rule for rule in read_rules(tx)}
            rule = _find_rule(tree, name)
            if not stop and not rule.stop:
                stopped = ", ".join(path for path, other in tree.items() if other.stop) or "none"
                raise Conflict(f"the queue {name} is neither held nor drained", f"stopped queues: {stopped}")
            tree[name] = replace(rule, stop=stop, stop_reason=reason[:400])
            self._save_tree(tx, tree, f"queues.{stop or 'release'}", name)
        return self._show_queue(ctx, name)

    @operation()
    def list(self, ctx: CallContext) -> tuple[QueueView, ...]:
        """List the tree: what each queue is promised, uses and borrows, and what is left of its budgets.

        Example:
            falaj queues list
        """
        return self._list_views(ctx)

    @operation()
    def show(self, ctx: CallContext, name: Annotated[str, "the queue"]) -> QueueView:
        """Show one queue.

        Example:
            falaj queues show root/default
        """
        return self._show_queue(ctx, name)

    @operation(group="operate")
    def replace(
        self,
        ctx: CallContext,
        tree: Annotated[dict[str, Any], "every queue by its path, with its words"],
        dry: Annotated[bool, "say what would change, and change nothing"] = False,
    ) -> tuple[QueueChange, ...]:
        """Have exactly these queues, all at once; `falaj queues apply FILE` calls this.

        Example:
            falaj queues replace --tree root/default='{"projects": ["*"]}' --dry
        """
        target_rules = parse_tree(tree)
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            rules_before = {rule.name: rule for rule in read_rules(tx)}
            # A file says what queues deserve; whether an operator stopped one is not for it to say.
            stopped = {path: rule for path, rule in rules_before.items() if rule.stop and path in target_rules}
            for path, rule in stopped.items():
                target_rules[path] = replace(target_rules[path], stop=rule.stop, stop_reason=rule.stop_reason)
            changes = tuple(_compare_trees(rules_before, target_rules))
            _check_takers(tx, target_rules)
            if changes and not dry:
                self._save_tree(tx, target_rules, "queues.replace", ROOT)
        return changes

    def _save_tree(self, tx: LedgerWriter, tree: Mapping[str, QueueRule], event_name: str, name: str) -> None:
        _check_tree(tree)
        _check_takers(tx, tree)
        self._check_homes(tx, tree)
        previous = tx.key(_TREE_KEY)
        body = {"queues": to_plain([tree[path] for path in sorted(tree)])}
        record = tx.put(_TREE_KEY, body, rev=previous.rev if previous else None)
        tx.emit(event_name, record.ref, queue=name)

    def _check_homes(self, tx: LedgerReader, tree: Mapping[str, QueueRule]) -> None:
        """Every live job stands in a leaf; the scheduler would not know what to do with another."""
        leaves = set(tree) - {name.rpartition("/")[0] for name in tree}
        homeless = [record.body["use"]["queue"] for record in iter_live_jobs(self._ledger, tx)]
        homeless = [name for name in homeless if name not in leaves]
        if homeless:
            problem = f"{len(homeless)} jobs are in {homeless[0]}"
            raise Conflict(problem, "let them end, or move them first: falaj jobs change JOB --queue …")

    def _show_queue(self, ctx: CallContext, name: str) -> QueueView:
        matching = next((view for view in self._list_views(ctx) if view.name == name), None)
        if matching is None:
            raise _make_not_found(name)
        return matching

    def _list_views(self, ctx: CallContext) -> tuple[QueueView, ...]:
        with self._ledger.read(make_system_context(ctx)) as tx:
            rules = read_rules(tx)
            bodies = [record.body for record in iter_live_jobs(self._ledger, tx)]
            spent = read_spent(tx)
            promised_by_queue = compute_promises(
                {rule.name: rule.guarantee for rule in rules}, _sum_capacity(tx, rules)
            )
        uses = [
            (JobUse(body["use"]["queue"], bool(body["use"]["nodes"]), body["use"]["nodes"]), body["use"]["charge"])
            for body in bodies
        ]
        visible_names = {path for rule in rules if _is_visible(ctx, rule) for path in _list_path_names(rule.name)}
        visible_rules = [rule for rule in rules if rule.name in visible_names]
        tree = {rule.name: rule for rule in rules}
        visible_rules = [replace(rule, top_band=find_top_band(rule.name, tree)) for rule in visible_rules]
        return tuple(
            _to_queue_view(rule, uses, promised_by_queue[rule.name], spent.get(rule.name, {}), ctx.now())
            for rule in visible_rules
        )


def read_rules(tx: LedgerReader) -> tuple[QueueRule, ...]:
    """Every queue, parents first; a fresh house has one for everybody."""
    record = tx.key(_TREE_KEY)
    return _DEFAULT_RULES if record is None else from_plain(tuple[QueueRule, ...], record.body["queues"])


def parse_tree(fields_by_queue: Mapping[str, Any]) -> dict[str, QueueRule]:
    """Exactly the queues that a file names, with those on the way to them; Invalid where that can be no tree."""
    rules = {
        name: apply_fields(QueueRule(_check_name(name)), _unfold_options(parse_mapping(name, field_values, "weight=2")))
        for name, field_values in fields_by_queue.items()
    }
    for name in [*rules]:
        for path in _list_path_names(name):
            rules.setdefault(path, QueueRule(path))
    _check_tree(rules)
    return rules


def to_scheduler_queues(
    rules: Iterable[QueueRule],
    spent: Mapping[str, Mapping[str, int]],
    reserved: Mapping[str, Mapping[str, int]],
    now: float,
) -> tuple[Queue, ...]:
    """The tree as the scheduler takes it; `reserved` is by queue, in the units of budgets, parents included."""
    tree = {rule.name: rule for rule in rules}
    parents = {name.rpartition("/")[0] for name in tree}
    return tuple(
        Queue(
            rule.name,
            rule.weight,
            rule.guarantee,
            rule.limit,
            rule.lend,
            # Jobs wait in leaves only, and what is set above a leaf is in what the leaf has.
            CRITICAL if rule.name in parents else find_top_band(rule.name, tree, SERVING_BAND),
            to_scheduler_budgets(rule.budgets, spent.get(rule.name, {}), reserved.get(rule.name, {}), now),
            ask_band=CRITICAL if rule.name in parents else find_top_band(rule.name, tree),
        )
        for rule in tree.values()
    )


def find_top_band(name: str, rules: Mapping[str, QueueRule], default: int = NORMAL) -> int:
    """The highest band the jobs of a queue may have: the lowest that it or a queue above it sets, else the default."""
    return min(
        (rule.top_band for rule in list_rules_to_root(name, rules) if rule.top_band is not None), default=default
    )


def find_queue(rules: Iterable[QueueRule], tenant: str, project: str, requested: str = "") -> QueueRule:
    """The queue of a job: the one asked for, if it takes this project; else the one that names it most closely."""
    project_path = f"{tenant}/{project}"
    rules = tuple(rules)
    fits = [rule for pattern in (project_path, f"{tenant}/*", "*") for rule in rules if pattern in rule.projects]
    if not requested and fits:
        return fits[0]
    chosen = next((rule for rule in fits if rule.name == requested), None)
    if chosen is None:
        names = ", ".join(dict.fromkeys(rule.name for rule in fits)) or "none: ask the people who run this installation"
        raise Invalid(
            f"no queue {requested} takes jobs of {project}" if requested else f"no queue takes jobs of {project}",
            f"there is: {names}",
        )
    return chosen


def list_rules_to_root(name: str, rules: Mapping[str, QueueRule]) -> tuple[QueueRule, ...]:
    """A queue and all above it."""
    return tuple(rules[path] for path in _list_path_names(name) if path in rules)


def find_stopped(name: str, rules: Mapping[str, QueueRule]) -> QueueRule | None:
    """The queue that keeps jobs of a queue from starting: itself or one above it; of several the one that drains."""
    stopped = [rule for rule in list_rules_to_root(name, rules) if rule.stop]
    return next((rule for rule in stopped if rule.stop == DRAIN), stopped[0] if stopped else None)


def apply_fields(rule: QueueRule, field_values: Mapping[str, Any]) -> QueueRule:
    """A queue with these words applied; a mapping of amounts is laid over the old one, `none` takes one away."""
    unknown = sorted(set(field_values) - set(QUEUE_FIELDS))
    if unknown:
        raise Invalid(f"a queue has no {', '.join(unknown)[:200]}", f"it has: {', '.join(QUEUE_FIELDS)}")
    changes: dict[str, Any] = {}
    for name in ("guarantee", "limit", "lend"):
        if name in field_values:
            changed_amounts = parse_mapping(f"the {name} of {rule.name}", field_values[name], "gpu=4")
            kept_amounts = {key: value for key, value in getattr(rule, name).items() if key not in changed_amounts}
            new_amounts = parse_amounts({key: value for key, value in changed_amounts.items() if str(value) != "none"})
            changes[name] = dict(sorted({**kept_amounts, **new_amounts}.items()))
    if "weight" in field_values:
        changes["weight"] = _parse_weight(field_values["weight"])
    if "top_band" in field_values:
        changes["top_band"] = None if field_values["top_band"] == "none" else parse_band(field_values["top_band"])
    for name in CAPS:
        if name in field_values:
            changes[name] = _cap(name, field_values[name])
    if "projects" in field_values:
        changes["projects"] = tuple(
            dict.fromkeys(_check_project(project_text) for project_text in _split_words(field_values["projects"]))
        )
    if "budget" in field_values:
        changes["budgets"] = _apply_budgets(rule, field_values["budget"])
    return replace(rule, **changes)


def _apply_budgets(rule: QueueRule, budget_values: Any) -> tuple[BudgetRule, ...]:
    """Budgets as people write them; or, by unit, how much those that it has are, or (+) by how much they grow."""
    if not isinstance(budget_values, Mapping):
        return tuple(read_budget(budget_text) for budget_text in _split_words(budget_values) if budget_text != "none")
    budgets = rule.budgets
    for unit, text in budget_values.items():
        if all(budget.unit != unit for budget in budgets):
            raise Invalid(f"{rule.name} has no budget of {unit[:40]}", f"--more budget={unit}=500/month:stop")
        amount = read_budget(f"{unit}={str(text).removeprefix('+')}/day").amount
        is_increase = str(text).startswith("+")
        budgets = tuple(
            replace(budget, amount=amount + (budget.amount if is_increase else 0)) if budget.unit == unit else budget
            for budget in budgets
        )
    return budgets


def _check_takers(tx: LedgerReader, tree: Mapping[str, QueueRule]) -> None:
    """NotFound where a queue takes jobs of a tenant that is not there, and did not do so before."""
    patterns_before = {pattern for rule in read_rules(tx) for pattern in rule.projects}
    check_tenants(
        tx, {pattern.partition("/")[0] for rule in tree.values() for pattern in {*rule.projects} - patterns_before}
    )


def _check_tree(tree: Mapping[str, QueueRule]) -> None:
    parents = {name.rpartition("/")[0] for name in tree}
    for name, rule in tree.items():
        if name in parents and rule.projects:
            raise Invalid(f"{name} takes jobs and has queues below it", f"give its projects to {name}/default, say")
        if name != ROOT and name.rpartition("/")[0] not in tree:
            raise Invalid(f"{name} would hang in the air", "remove the queues below it first")
        for key, value in rule.guarantee.items():
            for path in _list_path_names(name):
                if path in tree and value > tree[path].limit.get(key, value):
                    raise Invalid(f"{name} is guaranteed more {key} than the limit of {path}", "raise it or lower that")
    for parent in parents & set(tree):
        below = sum_amounts(*(rule.guarantee for name, rule in tree.items() if name.rpartition("/")[0] == parent))
        over = [key for key, value in tree[parent].guarantee.items() if below.get(key, 0) > value]
        if over:
            raise Invalid(f"the queues below {parent} are guaranteed more {over[0]} than it is", "raise its guarantee")


def _compare_trees(before: Mapping[str, QueueRule], after: Mapping[str, QueueRule]) -> Iterable[QueueChange]:
    for name in sorted({*before, *after}):
        previous, current = before.get(name), after.get(name)
        if previous != current:
            change = "new" if previous is None else "gone" if current is None else "changed"
            yield QueueChange(name, change, _describe_rule(previous, current), _describe_rule(current, previous))


def _describe_rule(rule: QueueRule | None, other: QueueRule | None) -> str:
    """What is different about a queue, in words."""
    if rule is None:
        return ""
    plain: dict[str, Any] = {
        "weight": rule.weight,
        "guarantee": format_amounts(rule.guarantee),
        "limit": format_amounts(rule.limit),
        "lend": format_amounts(rule.lend),
        "projects": list(rule.projects),
        "budget": [budget.brief for budget in rule.budgets],
        "top_band": "" if rule.top_band is None else BANDS[rule.top_band],
        **{cap: str(getattr(rule, cap)) for cap in CAPS if getattr(rule, cap) is not None},
    }
    attribute_names = {"budget": "budgets"}
    return " ".join(
        f"{name}={value}"
        for name, value in plain.items()
        if value
        and (
            other is None
            or getattr(rule, attribute_names.get(name, name)) != getattr(other, attribute_names.get(name, name))
        )
    )


def _sum_capacity(tx: LedgerReader, rules: Iterable[QueueRule]) -> dict[str, int]:
    """All there is of what guarantees bring along; nothing where there is none."""
    total: dict[str, int] = {}
    for record in iter_records(tx, "node", SYSTEM_TENANT) if any(rule.guarantee for rule in rules) else ():
        facts = record.body["facts"]
        models = [device["model"] for device in facts["devices"] if device.get("model")]
        total = sum_amounts(total, facts["amounts"], *({"gpu": 1000, f"gpu:{model}": 1000} for model in models))
    return total


def _to_queue_view(
    rule: QueueRule,
    uses: "list[tuple[JobUse, dict[str, int]]]",
    promised: Mapping[str, int],
    spent: Mapping[str, int],
    now: float,
) -> QueueView:
    own_uses = [(use, charge) for use, charge in uses if f"{use.queue}/".startswith(f"{rule.name}/")]
    used = sum_amounts(*(use.amounts for use, _ in own_uses))
    borrowed = {
        name: value - promised.get(name, rule.guarantee.get(name, 0)) for name, value in used.items() if ":" not in name
    }
    charged = sum_amounts(*(charge for _, charge in own_uses))
    budget_pairs = zip(rule.budgets, to_scheduler_budgets(rule.budgets, spent, charged, now), strict=True)
    left = tuple(
        f"{budget_rule.brief} ({budget.spent / UNITS[budget_rule.unit][1]:.4g} "
        f"spent, {budget.held / UNITS[budget_rule.unit][1]:.4g} held)"
        for budget_rule, budget in budget_pairs
    )
    running = sum(use.running for use, _ in own_uses)
    return QueueView(
        rule.name,
        rule.weight,
        format_amounts(rule.guarantee),
        format_amounts(rule.limit),
        format_amounts(rule.lend),
        BANDS[NORMAL if rule.top_band is None else rule.top_band],
        rule.projects,
        format_amounts(used),
        format_amounts({name: value for name, value in borrowed.items() if value > 0}),
        len(own_uses) - running,
        running,
        left,
        rule.stop,
        rule.stop_reason,
        rule.max_waiting,
        rule.max_waiting_per_person,
    )


def _is_visible(ctx: CallContext, rule: QueueRule) -> bool:
    """A tenant sees the queues that take its jobs, and those above them."""
    return ctx.tenant == SYSTEM_TENANT or any(
        pattern == "*" or pattern.partition("/")[0] == ctx.tenant for pattern in rule.projects
    )


def _unfold_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """`limit.gpu=8` as {limit: {gpu: 8}}."""
    unfolded: dict[str, Any] = {}
    for name, value in options.items():
        option, dot, key = name.partition(".")
        if dot:
            unfolded[option] = {**parse_mapping(option, unfolded.get(option, {}), f"{option}.gpu=4"), key: value}
        else:
            unfolded[name] = value
    return unfolded


def _split_words(value: Any) -> "list[str]":
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise Invalid(f"{value!r:.60} is no list of words", 'for example ["bank/fraud", "bank/risk"]')
    return [part.strip() for part in parts if part.strip()]


def _check_project(pattern: str) -> str:
    if not _PROJECT.fullmatch(pattern):
        raise Invalid(f"{pattern[:80]!r} names no project", "tenant/project, tenant/*, or *")
    return pattern


def _parse_weight(value: Any) -> int:
    if not str(value).isdigit() or not 1 <= int(value) <= 1_000_000:
        raise Invalid(f"a weight of {value!r:.20}", "a whole number from 1 to 1000000")
    return int(value)


def _list_path_names(name: str) -> "list[str]":
    parts = name.split("/")
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _cap(name: str, value: Any) -> int | None:
    if str(value) == "none":
        return None
    if not str(value).isdigit() or len(str(value)) > 9:
        raise Invalid(f"{name} {value!r:.20}: expected a whole number from 0, or none", f"for example {name}=1000")
    return int(value)


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name[:80]!r} is no path of a queue", "for example root/bank/fraud")
    return name


def _find_rule(tree: Mapping[str, QueueRule], name: str) -> QueueRule:
    if name not in tree:
        raise _make_not_found(name)
    return tree[name]


def _make_not_found(name: str) -> NotFound:
    return NotFound(f"there is no queue {name!r:.60}", "falaj queues list shows them")


def _require_system_tenant(ctx: CallContext) -> CallContext:
    if ctx.tenant != SYSTEM_TENANT:
        raise Denied("queues belong to the house", "ask the people who run this installation")
    return ctx
