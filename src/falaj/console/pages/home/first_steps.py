"""The newcomer's home: nothing is here yet; what to do first, and a small project that shows the rooms at work."""

from falaj.console import components
from falaj.console.markup import Html, h, join_html
from falaj.console.operation_forms import FORM_TOKEN_FIELD, RETURN_FIELD
from falaj.console.page import ROOT_PATH
from falaj.console.page_view import PageView
from falaj.console.pages.home.answers import CachedAnswers
from falaj.console.pages.home.demo import REQUIRED_PERMISSIONS


def is_newcomer(answers: CachedAnswers) -> bool:
    """True when nothing was published, tracked or asked for, as far as the reader may see; and they may see it."""
    job_page = answers.seen("jobs", "list", limit=20)
    if job_page is None or job_page.jobs:
        return False
    run_page = answers.seen("track", "list", limit=1)
    if run_page is None or run_page.runs:
        return False
    published = answers.seen("catalog", "list", limit=1)
    return published is not None and not published.versions


def render_first_steps(view: PageView) -> Html:
    """The demo project, and three ways to begin."""
    t = view.t
    step_texts = (
        (t("home.publish"), t("home.publish_hint"), "falaj catalog publish dataset:my/rows ./folder"),
        (t("home.track"), t("home.track_hint"), 'falaj track create experiment:my/first --title "My first"'),
        (t("home.submit"), t("home.submit_hint"), "falaj jobs submit train.py --project my --cpus 1"),
    )
    step_cards = [
        components.card(
            join_html(view.number(step_number), ". ", name), h.p(hint), components.copyable_code(view, command_line)
        )
        for step_number, (name, hint, command_line) in enumerate(step_texts, 1)
    ]
    return join_html(
        h.p(t("home.welcome_hint"), class_="lead"),
        components.card(t("home.demo"), h.p(t("home.demo_hint")), render_demo_button(view), wide=True, id="demo"),
        h.h2(t("home.next_steps")),
        components.card_grid(*step_cards),
        components.card(
            t("home.whole_story"), h.p(t("home.whole_story_hint")), components.copyable_code(view, "falaj demo")
        ),
    )


def render_demo_button(view: PageView) -> Html:
    """Makes the demo project by the verbs that anybody would use; disabled for whoever may not use one of them."""
    missing_permission = next(
        filter(None, (view.lacks(action, resource) for action, resource in REQUIRED_PERMISSIONS)), ""
    )
    label = view.t("home.load_demo")
    if missing_permission:
        button = h.button(label, type="button", disabled=True, aria_describedby="needs-demo", class_="primary")
        missing_note = h.small(view.t("console.needs", what=missing_permission), id="needs-demo", class_="soft")
        return h.div(button, missing_note, class_="act denied")
    hidden_inputs = (
        h.input(type="hidden", name=FORM_TOKEN_FIELD, value=view.csrf),
        h.input(type="hidden", name=RETURN_FIELD, value=ROOT_PATH),
    )
    return h.form(
        hidden_inputs, h.button(label, class_="primary"), method="post", action=f"{ROOT_PATH}/make/demo", class_="act"
    )
