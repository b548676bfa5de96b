"""States: what the words that records use for their states mean to a reader: well, at work, a warning, or ill."""

_STATES_BY_TONE = {
    "good": "promoted ok done succeeded ready serving healthy approved granted valid current active up open live "
    "fresh kept finished resolved champion production complete passed allowed stable true yes on sent well",
    "busy": "stopping acting begun running started starting launching rolling canary warming ingesting promoting "
    "applying placed",
    "wait": "proposed asleep acknowledged pending queued waiting asked scheduled new planned draft shadow early",
    "warn": "evicted leaving resized yielded suspect cooling frozen inconclusive "
    "paused suspended cancelled preempted stale retired degraded "
    "draining drained stopped late held killed warning closed skipped known emergency watch off",
    "bad": "away confirmed failing failed error broken refused denied dead lost breached alarm drifted critical down "
    "expired lapsed revoked false no full ill",
}
_TONE_BY_STATE = {word: get_tone for get_tone, words in _STATES_BY_TONE.items() for word in words.split()}


def get_tone(state: str) -> str:
    """good, busy, wait, warn, bad, or nothing for a word that says nothing of the kind."""
    return _TONE_BY_STATE.get(state.lower(), "")
