"""Experts for MiniWoB++ tasks of several steps: tabs, sections, inboxes, feeds, tables, small sums."""

from __future__ import annotations

import json
import re

from pilotfish.tasks.episodes.expert_tools import (
    expert,
    fill,
    find,
    first,
    match,
    quoted,
    scroll_to,
    search,
)
from pilotfish.tasks.episodes.pages import Screen, Unreachable
from pilotfish.tasks.episodes.steps import Steps, click


async def _look_behind(s: Screen, goal: str, covers: str, last: int | None = None) -> Steps:
    """Open covers (tabs, section heads) in order until the goal is seen, then click it.

    `last` is the cover to open only when all others have been seen.
    """
    count = await s.js(f"{covers}.length")
    order = sorted(range(count), key=lambda i: (i == last, i))
    for i in [*order, None]:
        if await s.js(f"{goal}!=null"):
            yield click(await s.target(goal))
            return
        # The open one needs no click: what it shows is not what is looked for.
        if i is not None and not await s.js(f"pf.open({covers}[{i}])"):
            yield click(await s.target(f"{covers}[{i}]"))
    if last is None:
        raise Unreachable("nothing is left to open")


def _link(s: Screen) -> str:
    """JavaScript for the wanted link, if it is seen."""
    return f"pf.byText('#area .alink',{json.dumps(quoted(s.utterance)[0])}).find(pf.shown)"


@expert("click-tab-2", "click-tab-2-hard")
async def click_tab_2(s: Screen) -> Steps:
    async for step in _look_behind(s, _link(s), "pf.all('#area li a')"):
        yield step


@expert("click-tab-2-medium")
async def click_tab_2_medium(s: Screen) -> Steps:
    # The second tab ends the episode: it is right only when the link is behind neither of the others.
    async for step in _look_behind(s, _link(s), "pf.all('#area li a')", last=1):
        yield step


@expert("click-collapsible-2", "click-collapsible-2-nodelay")
async def click_collapsible_2(s: Screen) -> Steps:
    async for step in _look_behind(s, _link(s), "pf.all('#area h3')"):
        yield step


@expert("click-collapsible", "click-collapsible-nodelay")
async def click_collapsible(s: Screen) -> Steps:
    if not await s.js(f"pf.open({first('#area h3')})"):
        yield click(await s.target(first("#area h3")))
    yield click(await s.target(first("#subbtn")))


@expert("social-media")
async def social_media(s: Screen) -> Steps:
    user, action = match(r'For the user (\S+), click on the "(.*)" button', s.utterance)
    post = (
        f"pf.all('.media').find((m)=>pf.clean(m.querySelector('.username').textContent)==={json.dumps(user)})"
    )
    async for step in scroll_to(s, post, first("#area"), 2):
        yield step
    if action in ("Reply", "Retweet", "Like"):
        yield click(await s.target(f"{post}.querySelector('.{action.lower()}')"))
        return
    says = f"(l)=>pf.clean(l.textContent).startsWith({json.dumps(action)})"
    item = f"[...{post}.querySelectorAll('li')].find({says})"
    if not await s.js(f"{item}.getBoundingClientRect().height"):
        yield click(await s.target(f"{post}.querySelector('.more')"))
    async for step in scroll_to(s, item, first("#area"), 2):
        yield step
    yield click(await s.target(item))


@expert("social-media-all")
async def social_media_all(s: Screen) -> Steps:
    action, user = match(r'Click the "(.*)" button on all posts by (\S+) and', s.utterance)
    by = f"(m)=>pf.clean(m.querySelector('.username').textContent)==={json.dumps(user)}"
    posts = f"pf.all('.media').filter({by})"
    for i in range(await s.js(f"{posts}.length")):
        knob = f"{posts}[{i}].querySelector('.{action.lower()}')"
        if await s.js(f"{knob}.classList.contains('active')"):
            continue
        async for step in scroll_to(s, knob, first("#area"), 2):
            yield step
        yield click(await s.target(knob))
    submit = first("#submitRow button")
    async for step in scroll_to(s, submit, first("#area"), 2):
        yield step
    yield click(await s.target(submit))


def _errand(s: Screen) -> tuple[str, str, str]:
    """What an inbox task asks for: (what, whose email, the text or the receiver)."""
    if s.fields:
        task = str(s.fields.get("task", "forward"))
        return task, str(s.fields["by"]), str(s.fields.get("message") or s.fields.get("to") or "")
    name = search(r"email by (\S+) and", s.utterance)
    if "reply" in s.utterance:
        return "reply", name, quoted(s.utterance)[0]
    if "forward" in s.utterance:
        return "forward", name, search(r"forward that email to (.*)\.$", s.utterance)
    return ("delete" if "trash" in s.utterance else "star"), name, ""


@expert(
    "email-inbox",
    "email-inbox-delete",
    "email-inbox-forward",
    "email-inbox-forward-nl",
    "email-inbox-forward-nl-turk",
    "email-inbox-important",
    "email-inbox-nl-turk",
    "email-inbox-reply",
    "email-inbox-star-reply",
)
async def email_inbox(s: Screen) -> Steps:
    what, name, text = _errand(s)
    form = "#reply" if what == "reply" else "#forward"
    if await s.js(f"pf.shown({first(form)})"):
        field = first("#reply-text" if what == "reply" else "#forward .forward-sender")
        async for step in fill(s, field, text):
            yield step
        yield click(await s.target(first(f"#send-{what}")))
        return
    by = f"(t)=>t.querySelector('.email-sender').textContent==={json.dumps(name)}"
    thread = f"pf.all('#main .email-thread').find({by})"
    if await s.js(f"pf.shown({first('#main')})"):
        async for step in scroll_to(s, thread, first("#main"), 2):
            yield step
    if what in ("delete", "star"):
        yield click(await s.target(f"{thread}.querySelector('.{'trash' if what == 'delete' else 'star'}')"))
        return
    if await s.js(f"pf.shown({first('#main')})"):
        yield click(await s.target(f"{thread}.querySelector('.email-sender')"))
    knob = first(f"#email .email-{what}")
    async for step in scroll_to(s, knob, first("#email"), 2):
        yield step
    yield click(await s.target(knob))
    async for step in fill(s, first("#reply-text" if what == "reply" else "#forward .forward-sender"), text):
        yield step
    yield click(await s.target(first(f"#send-{what}")))


@expert("find-word")
async def find_word(s: Screen) -> Steps:
    rank = int(search(r"Find the (\d+)(?:st|nd|rd|th) word", s.utterance))
    text = await s.js("document.querySelector('#area p').textContent")
    async for step in fill(s, first("#answer-input"), re.sub("[^a-zA-Z]", "", text.split()[rank - 1])):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("visual-addition")
async def visual_addition(s: Screen) -> Steps:
    count = await s.js("pf.all('.addition-block').length")
    async for step in fill(s, first("#math-answer"), str(count)):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("simple-algebra")
async def simple_algebra(s: Screen) -> Steps:
    left, sign, right, total = match(
        r"(\d+|x) ([-+]) (\d+|x) = (-?\d+)", await s.js("document.querySelector('#math-problem').textContent")
    )
    if left == "x":
        answer = int(total) + (int(right) if sign == "-" else -int(right))
    else:
        answer = (int(total) - int(left)) * (1 if sign == "+" else -1)
    async for step in fill(s, first("#math-answer"), str(answer)):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("text-transform")
async def text_transform(s: Screen) -> Steps:
    text = await s.js("document.querySelector('#captcha').textContent")
    async for step in fill(s, first("#tt"), text.strip()):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("phone-book")
async def phone_book(s: Screen) -> Steps:
    name, what = match(r"Find (.*) in the contact book and click on their (phone|email|address)", s.utterance)
    for _ in range(6):
        if await s.js("pf.clean(document.querySelector('#contact .name').textContent)") == name:
            yield click(await s.target(first(f"#contact a.{what}")))
            return
        yield click(await s.target(find("#pagination a", ">")))


@expert("odd-or-even")
async def odd_or_even(s: Screen) -> Steps:
    numbers = await s.js("pf.all('.display-number').map((e)=>+e.textContent)")
    for i, number in enumerate(numbers):
        knob = f"pf.all('#numbers .row')[{i}].querySelector('.{'odd' if number % 2 else 'even'}')"
        if not await s.js(f"{knob}.classList.contains('selected')"):
            yield click(await s.target(knob))
    yield click(await s.target(first("#submit")))


@expert("count-sides")
async def count_sides(s: Screen) -> Steps:
    yield click(await s.target("document.querySelector('[data-sides=\"'+pf.lines()+'\"]')"))


@expert("use-spinner")
async def use_spinner(s: Screen) -> Steps:
    goal = int(search(r"Select (-?\d+) with", s.utterance))
    now = int(await s.js("document.querySelector('#spinner').value"))
    for _ in range(abs(goal - now)):
        yield click(await s.target(first(f".ui-spinner-{'up' if goal > now else 'down'}")))
    yield click(await s.target(first("#subbtn")))


@expert("multi-layouts")
async def multi_layouts(s: Screen) -> Steps:
    genre, name, year = match(r"Search for (.*) movies directed by (.*) from year (\d+)", s.utterance)
    order = await s.js(
        "pf.all('#area input').map((i)=>{let e=i;while(!pf.clean(e.textContent))e=e.parentElement;"
        "return /genre/i.test(e.textContent)?0:/director/i.test(e.textContent)?1:2})"
    )
    for i, what in enumerate(order):
        async for step in fill(s, f"pf.all('#area input')[{i}]", (genre, name, year)[what]):
            yield step
    yield click(await s.target("document.querySelector('#area button,#area .final,#area .ui-submit')"))


@expert("form-sequence-2")
async def form_sequence_2(s: Screen) -> Steps:
    radio, number, field = match(
        r'Check the (\d)\w+ radio button and enter the number "(-?\d+)" into the (\d)', s.utterance
    )
    knob = first(f'input[type=radio][value="{radio}"]')
    if not await s.js(f"{knob}.checked"):
        yield click(await s.target(knob))
    async for step in fill(s, first(f"#input-{field}"), number):
        yield step
    yield click(await s.target(first("#subbtn")))


@expert("guess-number", remembers=True)
async def guess_number(s: Screen) -> Steps:
    low, high = 0, 9
    for _ in range(5):
        guess = (low + high) // 2
        async for step in fill(
            s, f"pf.part({first('#tt')},0.1,0.5)", str(guess)
        ):  # its arrows are at the right
            yield step
        yield click(await s.target(first("#subbtn")))
        if await s.js("!document.querySelector('#higher').classList.contains('hide')"):
            low = guess + 1
        elif await s.js("!document.querySelector('#lower').classList.contains('hide')"):
            high = guess - 1
        else:
            return


@expert("find-greatest", remembers=True)
async def find_greatest(s: Screen) -> Steps:
    values = await s.js("pf.all('.card-value').map((e)=>+e.textContent)")
    for i in range(len(values)):
        yield click(await s.target(f"pf.all('.card')[{i}]"))
    best = values.index(max(values))
    if best != len(values) - 1:
        yield click(await s.target(f"pf.all('.card')[{best}]"))
    yield click(await s.target(first("#submit")))


@expert("ascending-numbers", remembers=True)
async def ascending_numbers(s: Screen) -> Steps:
    yield click(await s.target("pf.all('svg text').find((e)=>e.textContent==='1')"))
    for number in range(2, 6):
        yield click(await s.target(first(f'svg rect[data-index="{number}"]')))


@expert("buy-ticket")
async def buy_ticket(s: Screen) -> Steps:
    wish = search(r"ticket with the (.*)\.", s.utterance)
    attribute, css = ("price", ".buy-ticket") if "cost" in wish else ("duration", ".time-duration")
    values = await s.js(f"pf.all('{css}').map((e)=>+e.dataset.{attribute})")
    best = values.index((min if wish.startswith(("cheapest", "shortest")) else max)(values))
    knob = f"pf.all('.buy-ticket')[{best}]"
    yield click(await s.target(knob))


@expert("click-shades")
async def click_shades(s: Screen) -> Steps:
    colour = search(r"shades of (\w+)", s.utterance)
    wrong = f"pf.all('#area span').filter((e)=>(e.dataset.color==='{colour}')!==(e.className==='selected'))"
    while await s.js(f"{wrong}.length"):
        yield click(await s.target(f"{wrong}[0]"))
    yield click(await s.target(first("#submit")))
