"""What follows from a window, and from what is known now: pure, so that a replay decides as the platform would have.

ok -> suspect (an alarm) -> confirmed (it lasts: an episode, which has a cause) -> acting -> cooling. A breakage of a
new revision goes past all this: it is rolled back at once, and then nothing more is done by itself (frozen) until there
is a newer revision or a person says so. An episode is acted on once in its life; one that returns within a day is the
same one.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import inf, lgamma, log, log1p

from falaj.drift.records import DriftFinding
from falaj.monitor.records import ACTION_ALERT, ACTION_RETRAIN, ACTION_ROLLBACK, MonitorWindow, WatchPlan, WatchVerdict
from falaj.monitor.watch_machine import (
    ACTION_BEGUN,
    ACTION_DONE,
    ACTION_FAILED,
    ACTION_PROPOSED,
    ACTION_REFUSED,
    ACTION_WAITING,
    GROUP_BREAKAGE,
    GROUP_DRIFT,
    GROUP_QUALITY,
    MAX_EPISODES,
    MAX_KEYS,
    MAX_REVISIONS,
    AlarmEpisode,
    EndpointFacts,
    PendingAction,
    ServiceSign,
    WatchMachine,
    WindowAlarms,
    get_key_group,
    make_cause_id,
    make_finding_key,
)

DAY_S = 86400.0
MAX_MISSED_WINDOWS = 3
"""A trouble that this many windows do not show is over."""
MIN_REQUESTS = 20
MAX_BREAKAGE_CHANCE = 1e-5
"""In a minute that is as good as allowed a revision is called broken with at most this chance, however often one
looks."""
FLOW_START_TIMEOUT_S, FLOW_TIMEOUT_S = 2 * 3600.0, 7 * DAY_S
"""So long a verdict waits for its flow to begin, and for it to end."""
MAX_EVIDENCE = 20
Decision = tuple[WatchMachine, tuple[WatchVerdict, ...]]


def apply_window(machine: WatchMachine, window: MonitorWindow, plan: WatchPlan, now: float) -> Decision:
    """What follows from one more window."""
    alarms = tuple(item for item in window.findings if item.alarm)
    if not alarms and window.rows < plan.rules.least_rows:
        return replace(machine, state=machine.stated(now)), ()  # it tells nothing, not even that all is well
    machine = _remember_window(machine, window, alarms, plan)
    lasting_keys = _find_lasting(machine.recent[str(window.revision)], plan.rules.persist)
    alarmed_groups = {get_key_group(make_finding_key(item)) for item in alarms}
    updated_episodes = tuple(_update_missed(item, window, alarmed_groups, now) for item in machine.episodes)
    machine = replace(machine, episodes=_limit_episodes(updated_episodes, now))
    if machine.live and window.revision not in machine.live:
        return replace(machine, state=machine.stated(now)), ()  # what it was given no longer matters to anybody
    verdicts: list[WatchVerdict] = []
    for group in sorted({get_key_group(key) for key in lasting_keys}):
        group_alarms = tuple(item for item in alarms if get_key_group(make_finding_key(item)) == group)
        machine, new_verdicts = _open_episode(machine, window, group, group_alarms, now)
        verdicts += new_verdicts
    machine, retrain_verdicts = _decide_retrain(machine, window, alarms, plan, now)
    return replace(machine, state=machine.stated(now)), (*verdicts, *retrain_verdicts)


def apply_facts(machine: WatchMachine, plan: WatchPlan, now: float, facts: EndpointFacts) -> Decision:
    """What follows from what is known now: how the action under way stands, and whether a new revision is broken."""
    verdicts: tuple[WatchVerdict, ...] = ()
    if machine.frozen and facts.newest > machine.frozen:
        machine = replace(machine, frozen=0)
    machine = replace(
        machine,
        newest=max(machine.newest, facts.newest),
        live=facts.live,
        episodes=_end_left_episodes(machine, facts, now),
    )
    if machine.doing is not None:
        machine, verdicts = _follow_action(machine, plan, now, facts)
    machine, breakage_verdicts = _decide_rollback(machine, plan, now, facts)
    return replace(machine, state=machine.stated(now)), (*verdicts, *breakage_verdicts)


def end_action(machine: WatchMachine, plan: WatchPlan, now: float, state: str, outcome: str) -> Decision:
    """The action under way is over, however it ended: nothing else is done for a while."""
    action = machine.doing
    if action is None:
        return machine, ()
    # A cool-down is never shorter than what it cools down from.
    cool_down_s = max(plan.acting.cool_s, now - action.since) if action.action == ACTION_RETRAIN else plan.acting.cool_s
    machine = replace(machine, doing=None, cool_until=max(machine.cool_until, now + cool_down_s))
    if action.action == ACTION_ROLLBACK and state == ACTION_DONE:
        machine = replace(machine, frozen=max(machine.newest, action.revision))
    machine = replace(machine, state=machine.stated(now))
    message = f"{action.action} {state}: {outcome}"
    verdict = WatchVerdict(action.id, now, action.action, action.cause, message, state, outcome=outcome, run=action.run)
    if state == ACTION_FAILED:
        alert = WatchVerdict(f"{ACTION_ALERT}-{action.id}", now, ACTION_ALERT, action.cause, message, ACTION_DONE)
        return machine, (verdict, alert)
    return machine, (verdict,)


def release_machine(machine: WatchMachine, now: float) -> WatchMachine:
    """A person says that all may go on: nothing cools down, and nothing is frozen."""
    machine = replace(machine, frozen=0, cool_until=0.0, paused="")
    return replace(machine, state=machine.stated(now))


def resolve_cause(machine: WatchMachine, cause: str, now: float, why: str) -> WatchMachine:
    """A person says that a trouble is over. Windows of before do not open it again; new ones may, as the same."""
    resolved_keys = {(episode.group, str(episode.revision)) for episode in machine.episodes if episode.cause == cause}
    updated_episodes = tuple(
        replace(episode, ended_at=now, why=why) if episode.cause == cause and episode.open else episode
        for episode in machine.episodes
    )
    recent = {
        number: tuple(
            WindowAlarms(
                past_window.since,
                tuple(
                    alarm_key
                    for alarm_key in past_window.keys
                    if (get_key_group(alarm_key), number) not in resolved_keys
                ),
            )
            for past_window in windows_kept
        )
        for number, windows_kept in machine.recent.items()
    }
    machine = replace(machine, episodes=updated_episodes, recent=recent)
    return replace(machine, state=machine.stated(now))


def describe_breakage(signs: Iterable[ServiceSign]) -> str:
    """Why a new revision is broken, in words; empty when it is not shown to be."""
    texts = [
        f"{sign.bad:.0f} of {sign.n:.0f} {_SIGN_TEXTS.get(sign.what, sign.what)} ({sign.most:.1%} would be usual)"
        for sign in signs
        if sign.n >= MIN_REQUESTS
        and sign.bad / sign.n > 2 * sign.most
        and compute_log_evidence(sign.n, sign.bad, sign.most) >= -log(MAX_BREAKAGE_CHANCE)
    ]
    return "; ".join(texts)


def compute_log_evidence(total: float, bad_count: float, max_share: float) -> float:
    """The logarithm of the evidence that more than the share `max_share` is bad; valid however often one looks."""
    if not total or bad_count / total <= max_share:
        return 0.0
    if max_share <= 0:
        return inf
    # Averaged over all shares (Jeffreys' prior), against the largest likelihood that the claim allows.
    log_mixture = lgamma(bad_count + 0.5) + lgamma(total - bad_count + 0.5) - lgamma(total + 1.0) - 2 * lgamma(0.5)
    return log_mixture - bad_count * log(max_share) - (total - bad_count) * log1p(-max_share)


_SIGN_TEXTS = {
    "errors": "requests failed",
    "slow": "answers were too slow",
    "odd": "predictions were no numbers",
    "same": "predictions were one and the same",
}


def _remember_window(
    machine: WatchMachine, window: MonitorWindow, alarms: tuple[DriftFinding, ...], plan: WatchPlan
) -> WatchMachine:
    number = str(window.revision)
    window_alarms = WindowAlarms(
        window.since, tuple(dict.fromkeys(make_finding_key(alarm) for alarm in alarms))[:MAX_KEYS]
    )
    recent_windows = (*machine.recent.get(number, ()), window_alarms)[-plan.rules.persist[1] :]
    recent = {name: value for name, value in machine.recent.items() if name != number} | {number: recent_windows}
    while len(recent) > MAX_REVISIONS:
        recent.pop(min(recent, key=int))
    return replace(machine, recent=recent, newest=max(machine.newest, window.revision))


def _find_lasting(windows_past: tuple[WindowAlarms, ...], persist: tuple[int, int]) -> set[str]:
    """What the newest window has and enough of the last ones had."""
    key_counts = Counter(key for past_window in windows_past for key in past_window.keys)
    return {key for key in windows_past[-1].keys if key_counts[key] >= min(persist)}


def _update_missed(episode: AlarmEpisode, window: MonitorWindow, alarmed_groups: set[str], now: float) -> AlarmEpisode:
    if not episode.open or episode.revision != window.revision or episode.group == GROUP_BREAKAGE:
        return episode
    missed_count = 0 if episode.group in alarmed_groups else episode.missed + 1
    if missed_count < MAX_MISSED_WINDOWS:
        return replace(episode, missed=missed_count)
    return replace(episode, missed=missed_count, ended_at=now, why="gone by itself")


def _limit_episodes(episodes: tuple[AlarmEpisode, ...], now: float) -> tuple[AlarmEpisode, ...]:
    """Those that last, and those that may return as the same."""
    retained = [episode for episode in episodes if episode.open or now - episode.ended_at < DAY_S]
    return tuple(sorted(retained, key=lambda episode: (episode.open, episode.opened_at))[-MAX_EPISODES:])


def _open_episode(
    machine: WatchMachine, window: MonitorWindow, group: str, alarms: tuple[DriftFinding, ...], now: float
) -> tuple[WatchMachine, list[WatchVerdict]]:
    """A trouble lasts: it is told of when it is new, and when it is back."""
    matching_episodes = [item for item in machine.episodes if (item.group, item.revision) == (group, window.revision)]
    if any(item.open for item in matching_episodes):
        return machine, []
    message = "; ".join(item.said or f"{item.what} {item.column}".strip() for item in alarms[:5])
    if matching_episodes:
        episode = replace(matching_episodes[-1], ended_at=0.0, why="", missed=0, said=message)
    else:
        keys = {make_finding_key(item) for item in alarms}
        since = next(item.since for item in machine.recent[str(window.revision)] if keys & set(item.keys))
        cause = make_cause_id(machine.whose, window.revision, group, (item.column for item in alarms), since)
        episode = AlarmEpisode(cause, group, window.revision, since, now, message)
    other_episodes = tuple(item for item in machine.episodes if item.cause != episode.cause)
    verdict = WatchVerdict(
        f"{ACTION_ALERT}-{episode.cause}",
        now,
        ACTION_ALERT,
        episode.cause,
        message,
        ACTION_DONE,
        alarms[:MAX_EVIDENCE],
        what=group,
        since=episode.since,
        revision=window.revision,
    )
    return replace(machine, episodes=(*other_episodes, episode)), [verdict]


def _decide_retrain(
    machine: WatchMachine, window: MonitorWindow, alarms: tuple[DriftFinding, ...], plan: WatchPlan, now: float
) -> tuple[WatchMachine, tuple[WatchVerdict, ...]]:
    """Drift that lasts and that this window shows, too, asks for a new model: once, and not while anything speaks
    against it. Broken data is nothing to learn from, and a revision that is being tried may be the answer already."""
    acting, open_episodes = (
        plan.acting,
        [item for item in machine.episodes if item.open and item.revision == window.revision],
    )
    drift_episodes = [
        item for item in open_episodes if item.group == GROUP_DRIFT and not item.acted and not item.missed
    ]
    recent_trainings = tuple(trained_at for trained_at in machine.trained if now - trained_at < DAY_S)
    is_blocked = machine.paused or machine.doing or machine.frozen or now < machine.cool_until or len(machine.live) > 1
    has_bad_data = any(item.group in (GROUP_QUALITY, GROUP_BREAKAGE) for item in open_episodes) or any(
        item.what == GROUP_QUALITY for item in alarms
    )
    if (
        acting.retrain is None
        or not drift_episodes
        or is_blocked
        or has_bad_data
        or len(recent_trainings) >= acting.most_a_day
    ):
        return machine, ()
    episode, state = drift_episodes[0], ACTION_WAITING if acting.approval else ACTION_BEGUN
    id_ = f"{ACTION_RETRAIN}-{episode.cause}"
    action = PendingAction(
        id_, ACTION_RETRAIN, episode.cause, window.revision, max(machine.newest, window.revision), now, state
    )
    machine = replace(_mark_acted(machine, episode.cause, id_), doing=action, trained=(*recent_trainings, now))
    verdict = WatchVerdict(
        id_,
        now,
        ACTION_RETRAIN,
        episode.cause,
        f"retrain: {episode.said}",
        state,
        alarms[:MAX_EVIDENCE],
        str(acting.retrain),
        what=GROUP_DRIFT,
        since=episode.since,
        revision=window.revision,
    )
    return machine, (verdict,)


def _mark_acted(machine: WatchMachine, cause: str, id_: str) -> WatchMachine:
    updated_episodes = tuple(
        replace(episode, acted=id_) if episode.cause == cause else episode for episode in machine.episodes
    )
    return replace(machine, episodes=updated_episodes)


def _end_left_episodes(machine: WatchMachine, facts: EndpointFacts, now: float) -> tuple[AlarmEpisode, ...]:
    """Troubles of revisions that nobody is answered by any more are over; of a broken one, when there is a newer."""
    if not facts.live:
        return machine.episodes

    def has_ended(episode: AlarmEpisode) -> bool:
        has_no_traffic = episode.open and episode.revision not in facts.live
        return has_no_traffic and (episode.group != GROUP_BREAKAGE or facts.newest > episode.revision)

    return tuple(
        replace(episode, ended_at=now, why=f"revision {episode.revision} has no traffic any more")
        if has_ended(episode)
        else episode
        for episode in machine.episodes
    )


def _follow_action(machine: WatchMachine, plan: WatchPlan, now: float, facts: EndpointFacts) -> Decision:
    action = machine.doing
    if action is None:
        return machine, ()
    if action.action == ACTION_ROLLBACK:
        has_moved = facts.revision and action.revision not in facts.live
        return (
            end_action(machine, plan, now, ACTION_DONE, f"revision {facts.revision} has the traffic")
            if has_moved
            else (machine, ())
        )
    if action.state == ACTION_WAITING:
        return _follow_approval(machine, plan, now, facts)
    if facts.run and not action.run:
        action = replace(action, run=facts.run)
        machine = replace(machine, doing=action)
    if not facts.ended:
        limit = FLOW_TIMEOUT_S if action.run else FLOW_START_TIMEOUT_S
        if now - action.since < limit:
            return machine, ()
        return end_action(
            machine, plan, now, ACTION_FAILED, f"{action.run or 'its flow'} did not {'end' if action.run else 'begin'}"
        )
    if facts.ended != "succeeded":
        return end_action(
            machine, plan, now, ACTION_FAILED, f"{action.run or 'its flow'} {facts.ended}: {facts.note}".rstrip(": ")
        )
    if facts.newest <= action.newest:
        return end_action(machine, plan, now, ACTION_DONE, f"not deployed: {facts.note or 'its checks said no'}")
    return _follow_rollout(machine, plan, now, facts)


def _follow_rollout(machine: WatchMachine, plan: WatchPlan, now: float, facts: EndpointFacts) -> Decision:
    """A new model was deployed: how did it do?"""
    if facts.revision == facts.newest:
        return end_action(machine, plan, now, ACTION_DONE, f"revision {facts.newest} promoted")
    if facts.trial not in ("", "running"):
        return end_action(machine, plan, now, ACTION_DONE, f"not promoted: its roll-out ended {facts.trial}")
    return machine, ()


def _follow_approval(machine: WatchMachine, plan: WatchPlan, now: float, facts: EndpointFacts) -> Decision:
    """Somebody must agree first."""
    action = machine.doing
    if action is None or facts.approval in ("", "waiting", "emergency"):
        return machine, ()
    if facts.approval != "granted":
        return end_action(
            machine, plan, now, ACTION_REFUSED, f"the approval was {facts.approval}: {facts.note}".rstrip(": ")
        )
    machine = replace(machine, doing=replace(action, state=ACTION_BEGUN, since=now))
    flow = str(plan.acting.retrain or "")
    return machine, (WatchVerdict(action.id, now, ACTION_RETRAIN, action.cause, "approved", ACTION_BEGUN, flow=flow),)


def _decide_rollback(machine: WatchMachine, plan: WatchPlan, now: float, facts: EndpointFacts) -> Decision:
    """A new revision that fails its callers is left at once: no statistics that wait, and no cool-down."""
    breakage_text = describe_breakage(facts.signs) if facts.fresh else ""
    if not breakage_text:
        return machine, ()
    cause = make_cause_id(machine.whose, facts.fresh, GROUP_BREAKAGE, (), facts.fresh_at)
    known_episode = next((episode for episode in machine.episodes if episode.cause == cause), None)
    verdicts: tuple[WatchVerdict, ...] = ()
    message = f"revision {facts.fresh} is broken: {breakage_text}"
    verdict = WatchVerdict(
        f"{ACTION_ALERT}-{cause}",
        now,
        ACTION_ALERT,
        cause,
        message,
        ACTION_DONE,
        tuple(map(_make_breakage_finding, facts.signs)),
        what=GROUP_BREAKAGE,
        since=facts.fresh_at,
        revision=facts.fresh,
    )
    if known_episode is None:
        known_episode = AlarmEpisode(cause, GROUP_BREAKAGE, facts.fresh, facts.fresh_at, now, message)
        machine = replace(machine, episodes=(*machine.episodes, known_episode))
        verdicts = (verdict,)
    is_rolling_back = machine.doing is not None and machine.doing.action == ACTION_ROLLBACK
    if (
        known_episode.acted
        or is_rolling_back
        or machine.paused
        or machine.frozen
        or not plan.acting.rollback
        or not facts.back
    ):
        return machine, verdicts
    superseded: tuple[WatchVerdict, ...] = ()
    if machine.doing is not None:
        machine, superseded = end_action(machine, plan, now, ACTION_DONE, f"overtaken: {message}")
    id_ = f"{ACTION_ROLLBACK}-{cause}"
    action = PendingAction(id_, ACTION_ROLLBACK, cause, facts.fresh, facts.newest, now, ACTION_PROPOSED)
    machine = replace(_mark_acted(machine, cause, id_), doing=action)
    rollback_verdict = replace(
        verdict, id=id_, action=ACTION_ROLLBACK, said=f"rollback: {message}", state=ACTION_PROPOSED
    )
    return machine, (*superseded, *verdicts, rollback_verdict)


def _make_breakage_finding(sign: ServiceSign) -> DriftFinding:
    share = sign.bad / sign.n if sign.n else 0.0
    message = describe_breakage((sign,))
    return DriftFinding(
        sign.what, measure="share", value=share, bound=sign.most, rows=int(sign.n), alarm=bool(message), said=message
    )
