"""The newcomer's home: nothing is here yet; what to do first, and a small project that shows the rooms at work."""

from falaj.console import parts
from falaj.console.doing import BACK, KEY
from falaj.console.markup import Html, h, join
from falaj.console.page import ROOT
from falaj.console.pages.home.answers import Answers
from falaj.console.pages.home.demo import NEEDS
from falaj.console.view import View


def is_new(told: Answers) -> bool:
    """True when nothing was published, tracked or asked for, as far as the reader may see; and they may see it."""
    jobs = told.seen("jobs", "list", limit=20)
    if jobs is None or jobs.jobs:
        return False
    runs = told.seen("track", "list", limit=1)
    if runs is None or runs.runs:
        return False
    published = told.seen("catalog", "list", limit=1)
    return published is not None and not published.versions


def steps(view: View) -> Html:
    """The demo project, and three ways to begin."""
    t = view.t
    first = (
        (t("home.publish"), t("home.publish_hint"), "falaj catalog publish dataset:my/rows ./folder"),
        (t("home.track"), t("home.track_hint"), 'falaj track create experiment:my/first --title "My first"'),
        (t("home.submit"), t("home.submit_hint"), "falaj jobs submit train.py --project my --cpus 1"),
    )
    made = [parts.card(join(view.number(n), ". ", name), h.p(hint), parts.copyable(view, line))
            for n, (name, hint, line) in enumerate(first, 1)]  # fmt: skip
    return join(
        h.p(t("home.welcome_hint"), class_="lead"),
        parts.card(t("home.demo"), h.p(t("home.demo_hint")), demo_button(view), wide=True, id="demo"),
        h.h2(t("home.next_steps")),
        parts.cards(*made),
        parts.card(t("home.whole_story"), h.p(t("home.whole_story_hint")), parts.copyable(view, "falaj demo")),
    )


def demo_button(view: View) -> Html:
    """Makes the demo project by the verbs that anybody would use; disabled for whoever may not use one of them."""
    lacking = next(filter(None, (view.lacks(action, about) for action, about in NEEDS)), "")
    label = view.t("home.load_demo")
    if lacking:
        button = h.button(label, type="button", disabled=True, aria_describedby="needs-demo", class_="primary")
        said = h.small(view.t("console.needs", what=lacking), id="needs-demo", class_="soft")
        return h.div(button, said, class_="act denied")
    hidden = (h.input(type="hidden", name=KEY, value=view.csrf), h.input(type="hidden", name=BACK, value=ROOT))
    return h.form(hidden, h.button(label, class_="primary"), method="post", action=f"{ROOT}/make/demo", class_="act")
