"""What scale and rules may be."""

from falaj.core.errors import Invalid
from falaj.serve.records import EndpointRules, ScalePolicy

MAX_REPLICAS = 1_000


def check_scale(scale: ScalePolicy) -> ScalePolicy:
    """The same, or Invalid."""
    if not 0 <= scale.least <= scale.most <= MAX_REPLICAS or scale.most < 1:
        raise Invalid(f"from {scale.least} to {scale.most} replicas", f"from 0, at least 1 at most {MAX_REPLICAS}")
    if not scale.concurrency > 0 or min(scale.latency_ms, scale.idle_s, scale.keep_s) < 0:
        raise Invalid("a number of requests or a time is out of range", "requests above 0, times from 0")
    return scale


def check_rules(rules: EndpointRules) -> EndpointRules:
    """The same, or Invalid."""
    numbers = (rules.per_s, rules.burst, rules.hold_s, rules.retries, rules.hedge_ms, rules.keep_days)
    if min(numbers) < 0 or not 0 < rules.timeout_s <= 3600 or rules.hold_s > 3600:
        raise Invalid("a rate or a time is out of range", "from 0; a request takes an hour at most")
    if not 0.5 <= rules.tell_s <= 3600:
        raise Invalid(f"replicas that tell every {rules.tell_s:g} s", "half a second to an hour")
    if not (0 <= rules.sample <= 1 and rules.retries <= 1):
        raise Invalid(f"a sample of {rules.sample:g}, retries of {rules.retries:g}", "shares from 0 to 1")
    return rules
