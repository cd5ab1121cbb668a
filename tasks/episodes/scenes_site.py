"""Procedural tasks on pages of applications: settings, notices, forms, verbs, and what is not there."""

from __future__ import annotations

import json
import random

from pilotfish.tasks.episodes import words
from pilotfish.tasks.episodes.expert_tools import fill
from pilotfish.tasks.episodes.pages import Screen
from pilotfish.tasks.episodes.procedural import Scene
from pilotfish.tasks.episodes.sites import Site, click_if, demands, equal, person, plain, publish, some
from pilotfish.tasks.episodes.steps import Expert, Steps, click, done, give_up
from pilotfish.tasks.episodes.widgets import CLOSERS, element, escape

_CHECKS = (
    "Autoplay,Hints,Large text,Spell check,Backups,Location,Bluetooth,Updates,Vibration,Captions,Animations,"
    "Line numbers,Cookies,Newsletter,Reminders,Pop-ups,Read receipts,High contrast,Tooltips,Sync,Status bar,"
    "Previews,Roaming,Caps warning,Night mode,Touch keys,Voice,Badges,Daily report,Thumbnails"
)
CHECKS = _CHECKS.split(",")
_GROUPS = (
    "Language:English,German,French,Spanish;Size:Small,Medium,Large;View:List,Grid,Map;Units:Metric,Imperial;"
    "Order:Newest,Oldest,Popular;Quality:Low,Normal,High;Layout:Compact,Wide,Split;Colour:Red,Green,Blue,Grey;"
    "Currency:Euro,Dollar,Pound,Yen;Speed:Slow,Steady,Fast;Side:Left,Right;Font:Serif,Sans,Mono"
)
GROUPS = _GROUPS.split(";")
_TABS = "Account,Display,Privacy,Network,Editor,Advanced,Profile,Security,Audio,Files,Keyboard,Storage"
TABS = _TABS.split(",")
_VERBS = (
    "Accept,Block,Call,Copy,Decline,Delete,Download,Edit,Follow,Forward,Hide,Ignore,Like,Lock,Mark,Mute,Move,"
    "Pin,Print,Rate,Refresh,Rename,Reply,Report,Save,Send,Share,Skip,Star,Translate,Unlock"
)
VERBS = _VERBS.split(",")
_THINGS = "message,photo,ticket,order,note,page,letter,file,post,song,request,draft,contact,recipe,quote"
THINGS = _THINGS.split(",")
APPLY = ("Apply", "Save", "OK", "Save changes", "Update", "Confirm")
_ACTS = (
    "Order now,Buy ticket,Reserve,Continue,Join,Start,Sign up,Download,Check in,Pay,Rent,Vote,Add to list,"
    "Call us,Read more,Subscribe,Request help,Show map"
)
ACTS = _ACTS.split(",")
PAST = ("Saved", "Done", "OK", "Updated", "Applied", "Sent", "Stored")


def filling(values: dict[str, str], box: str | None, submit: str) -> Expert:
    """An expert that fills fields by name, ticks a box if there is one to tick, and presses a button."""

    async def expert(s: Screen) -> Steps:
        for name, value in values.items():
            async for step in fill(s, element(name), value):
                yield step
        if box is not None:
            async for step in click_if(s, box, "!e.checked"):
                yield step
        yield click(await s.target(element(submit)))
        yield done()

    return expert


def apply_said(rng: random.Random, caption: str) -> str:
    """The demand to press the button at the end."""
    return rng.choice((f"press {caption}", f'press "{caption}"', f"click {caption}", f"{caption.lower()}"))


def settings_scene(rng: random.Random, seed: int) -> Scene:
    """Tick boxes and choose options on one to three tabs, then apply all of it."""
    site = Site(rng)
    tabs = some(rng, TABS, rng.choice((1, 2, 2, 2, 3)), 1)
    per = [rng.randint(2, 4) for _ in tabs]
    checks = some(rng, CHECKS, sum(per))
    groups = rng.sample(GROUPS, len(tabs))
    space = 130 // max(site.theme.height - 4, site.theme.size + 7)  # lines between tabs and button
    state: dict[str, bool | str] = {}
    asked: list[tuple[int, str, bool, str]] = []  # tab, box, whether it is to be ticked, in words
    rivals: dict[str, list[str]] = {}
    panels = []
    for i in range(len(tabs)):
        html = ""
        for text in [checks.pop() for _ in range(per[i])]:
            on = rng.random() < 0.45
            name, block = site.option(text, "checkbox", "", on=on)
            state[name] = on
            html += block
            said = plain(rng, text)
            way = ("on", "off")[on]
            how = [f"turn {said} {way}", f"turn {way} {said}", f"switch {said} {way}"]
            how += [f"{'untick' if on else 'tick'} {said}", f"{'disable' if on else 'enable'} {said}"]
            asked.append((i, name, not on, rng.choice(how)))
        group, _, listed = groups[i].partition(":")
        options = listed.split(",")
        if rng.random() < 0.7 and per[i] + len(options) + 1 <= space:
            chosen, wanted = rng.sample(range(len(options)), 2)
            made = [site.option(text, "radio", group, on=n == chosen) for n, text in enumerate(options)]
            head = f"<div>{group}</div>" if rng.random() < 0.4 and len(options) < 4 else ""
            html += head + "".join(block for _, block in made)
            state |= {name: n == chosen for n, (name, _) in enumerate(made)}
            option = options[wanted]
            how = [f"choose {option} as the {group.lower()}", f"set the {group.lower()} to {option}"]
            how += [f"choose the {option.lower()} {group.lower()}", f'choose "{option}"']
            asked.append((i, made[wanted][0], True, rng.choice(how)))
            rivals[made[wanted][0]] = [name for name, _ in made]
        panels.append(html)
    start = rng.randrange(len(tabs))
    heads, bodies = [site.new_id() for _ in tabs], [site.new_id() for _ in tabs]
    t = site.theme
    if len(tabs) > 1:
        look = f"flex:1;height:{t.height}px;border:0;font:inherit;padding:0 2px;color:{t.ink}"
        row = "".join(
            f'<button role="tab" id="{head}" style="{look}">{escape(text)}</button>'
            for head, text in zip(heads, tabs, strict=True)
        )
        edge = f"border-bottom:{rng.randint(0, 2)}px solid {t.line}"
        site.add(f'<div style="display:flex;margin:-8px -12px 8px;{edge}">{row}</div>')
    elif rng.random() < 0.7:
        site.title(tabs[0])
    for name, html in zip(bodies, panels, strict=True):
        site.add(f'<div id="{name}">{html}</div>')
    caption = rng.choice(APPLY)
    submit, knob = site.button(caption)
    place = "position:absolute;left:12px;bottom:8px" if rng.random() < 0.7 else "margin-top:4px"
    site.add(f'<div style="{place}">{knob}{site.answer()}</div>')
    site.script.append(
        f"const heads = {json.dumps(heads)}, bodies = {json.dumps(bodies)};"
        "const open = (i) => heads.forEach((h, j) => { show(bodies[j], i === j); if ($(h)) {"
        f"$(h).style.background = i === j ? '{t.back}' : '#8884'; $(h).ariaSelected = String(i === j);"
        "$(h).style.fontWeight = i === j ? 'bold' : ''; } });"
        f"heads.forEach((h, i) => $(h)?.addEventListener('click', () => open(i))); open({start});"
    )
    wanted_now = sorted(
        rng.sample(asked, min(len(asked), rng.choice((1, 2, 2, 3)))), key=lambda a: a[0] != start
    )
    for _, name, on, _ in wanted_now:
        for rival in rivals.get(name, ()):
            state[rival] = False
        state[name] = on
    site.on(submit, f"judge({equal(state)}); say({json.dumps(rng.choice(PAST))});")
    site.needed += [submit, *(name for i, name, _, _ in wanted_now if i == start)]
    parts = []
    for i, _, _, said in wanted_now:
        tell = i != start and (len(tabs) > 2 or rng.random() < 0.5)
        there = rng.choice((" in {}", " under {}", " on the {} tab")).format(tabs[i])
        parts.append(said + there if tell else said)
    parts.append(rng.choice((apply_said(rng, caption), "apply the settings", "save the settings")))

    async def expert(s: Screen) -> Steps:
        for i, name, on, _ in wanted_now:
            async for step in click_if(s, heads[i], "e && e.ariaSelected !== 'true'"):
                yield step
            async for step in click_if(s, name, f"e.checked !== {str(on).lower()}"):
                yield step
        yield click(await s.target(element(submit)))
        yield done()

    return publish("site-settings", seed, site, demands(rng, parts), expert)


def notice_scene(rng: random.Random, seed: int) -> Scene:
    """Something lies over the page: get rid of it, then press a button of the page."""
    site = Site(rng)
    t = site.theme
    site.title(words.label(rng, 3))
    acts = some(rng, ACTS, rng.randint(1, 3))
    knobs = [site.button(text, "100%") for text in acts]
    gap = rng.randint(0, 70)
    site.add(f"<p>{escape(words.sentence(rng, rng.randint(3, 8)))}</p><div style='height:{gap}px'></div>")
    site.add("".join(f'<div style="margin-bottom:6px">{html}</div>' for _, html in knobs) + site.answer())
    kind = rng.choice(("notice", "message", "window", "dialog", "cookie banner", "offer", "advert", "tip"))
    veil, corner = site.new_id(), site.new_id()
    answer, knob = site.button(
        rng.choice(("OK", "Got it", "No thanks", "Dismiss", "Close", "Not now", "Accept"))
    )
    by_corner = rng.random() < 0.6
    shade = rng.choice(("rgba(0,0,0,.55)", "rgba(0,0,0,.3)", "rgba(255,255,255,.6)", "transparent"))
    back, ink = ("#fff", "#111") if rng.random() < 0.6 else (t.panel, t.ink)
    size = rng.randint(16, 24)
    cross = (
        f'<button id="{corner}" data-name="close" style="position:absolute;right:0;top:0;'
        f"width:{size}px;height:{size}px;border:0;padding:0;font:inherit;"
        f"background:{rng.choice(('#e33', 'transparent', '#ccc'))};"
        f'color:{rng.choice(("#fff", "#111")) if size > 19 else "#a00"}">{rng.choice(CLOSERS)}</button>'
    )
    top, left, width = rng.randint(4, 90), rng.randint(0, 30), rng.randint(116, 138)
    header = (
        f'<div style="height:{size}px;line-height:{size}px;padding-left:6px;'
        f'background:{t.bar};color:{t.on_bar}">'
        f"{escape(kind.capitalize() if rng.random() < 0.4 else words.label(rng, 1))}</div>"
    )
    site.add(
        f'<div id="{veil}" style="position:absolute;inset:0;background:{shade}"><div style="'
        f"position:absolute;left:{left}px;top:{top}px;width:{width}px;background:{back};color:{ink};"
        f'border:1px solid {t.line};border-radius:{min(t.radius, 8)}px;overflow:hidden">'
        f"{header}{cross if by_corner else ''}"
        f'<div style="padding:6px;font-size:{max(9, t.size - 1)}px">'
        f"<p>{escape(words.sentence(rng, rng.randint(4, 11)))}</p>"
        f"{'' if by_corner and rng.random() < 0.8 else knob}</div></div></div>"
    )
    closer = corner if by_corner else answer
    (goal, _), text = rng.choice(list(zip(knobs, acts, strict=True)))
    after = rng.choice(
        ("event.target.textContent = 'Done'", "event.target.className = 'on'", "say('Thank you')")
    )
    for name in (corner, answer):
        site.script.append(f"$('{name}')?.addEventListener('click', () => $('{veil}').remove());")
    for (name, _), _ in zip(knobs, acts, strict=True):
        site.on(name, f"judge({str(name == goal).lower()} && !$('{veil}')); {after};")
    site.needed.append(closer)
    away = rng.choice(
        ("close the {}", "dismiss the {}", "get rid of the {}", "close the {} that is in the way")
    )
    press = rng.choice(('press "{}"', "press {}", 'click "{}"', "click on {}", 'press the button "{}"'))
    parts = [away.format(kind), press.format(text)]

    async def expert(s: Screen) -> Steps:
        if await s.js(f"!!{element(veil)}"):
            yield click(await s.target(element(closer)))
        yield click(await s.target(element(goal)))
        yield done()

    return publish(
        "site-notice", seed, site, demands(rng, parts if rng.random() < 0.85 else parts[1:]), expert
    )


def sign_in_scene(rng: random.Random, seed: int) -> Scene:
    """Sign in, or join, with a name and a password."""
    site = Site(rng)
    if rng.random() < 0.7:
        site.labels = "inside"
    if rng.random() < 0.8:
        site.title(words.label(rng, 2).title())
    user = rng.choice((rng.choice(words.NAMES).lower(), words.word(rng), words.entry(rng), person(rng)))
    secret = rng.choice((words.code(rng, rng.randint(4, 9)), f"{words.word(rng)}-{rng.randint(1, 999)}"))
    fields = [(rng.choice(("User", "Login name", "Name", "E-mail", "Account", "User name")), user, "text")]
    fields.append((rng.choice(("Password", "Password", "Secret word", "Passphrase")), secret, "password"))
    if rng.random() < 0.15:
        fields.append(("Repeat password", secret, "password"))
    made = [(*site.field(text, kind=kind), value) for text, value, kind in fields]
    site.add("".join(html for _, html, _ in made))
    stay, box = site.option(
        rng.choice(("Stay signed in", "Remember me", "This is my computer")), "checkbox", ""
    )
    tick = rng.random() < 0.2
    if tick or rng.random() < 0.2:
        site.add(box)
    caption = rng.choice(("Sign in", "Log in", "Enter", "Continue", "Go on", "Let me in"))
    submit, knob = site.button(caption, rng.choice(("100%", "140px", "")))
    site.add(f"<div>{knob}</div><p>{site.answer()}</p>")
    state: dict[str, bool | str] = {name: value for name, _, value in made}
    if tick:
        state[stay] = True
    both = " && ".join(f"$('{name}').value" for name, _, _ in made)
    welcome = rng.choice(("'Welcome, ' + $('{0}').value", "'Signed in'", "'Hello ' + $('{0}').value")).format(
        made[0][0]
    )
    site.on(submit, f"judge({equal(state)}); say({both} ? {welcome} : 'Fill in all fields.');")
    site.needed += [submit, *(name for name, _, _ in made)]
    instruction = rng.choice(
        (
            'Log in as "{u}" with the password "{p}"{t}.',
            'Sign in as {u} with the password "{p}"{t}.',
            'Use the name "{u}" and the password "{p}" to sign in{t}.',
            'Sign in with "{u}" and the password {p}{t}.',
            'The account is "{u}", its password "{p}". Sign in{t}.',
        )
    ).format(u=user, p=secret, t=" and tick the box" if tick else "")

    values = {name: value for name, _, value in made}
    expert = filling(values, stay if tick else None, submit)

    return publish("site-sign-in", seed, site, instruction, expert)


def form_scene(rng: random.Random, seed: int) -> Scene:
    """A form of one to four labelled fields, perhaps with a box or a choice, and a button."""
    site = Site(rng)
    kinds = {
        "Name": person(rng),
        "Full name": person(rng),
        "City": words.word(rng).capitalize(),
        "Phone": f"0{rng.randint(100, 999)}-{rng.randint(1000, 99999)}",
        "E-mail": f"{words.word(rng).lower()}@{words.word(rng).lower()}.org",
        "Street": f"{words.word(rng).capitalize()} Street {rng.randint(1, 99)}",
        "Company": f"{words.word(rng).capitalize()} & Co",
        "Subject": words.label(rng, 3),
        "Message": words.sentence(rng, rng.randint(2, 5)),
        "Age": str(rng.randint(18, 90)),
        "Code": words.code(rng, 6),
        "Guests": str(rng.randint(1, 9)),
        "Title": words.label(rng, 2),
        "Comment": words.sentence(rng, 3),
    }
    texts = rng.sample(list(kinds), rng.choice((1, 1, 2, 2, 3, 4)))
    if rng.random() < 0.25:
        texts[0] = words.label(rng, 2)
    made = [(text, *site.field(text), kinds.get(text) or words.entry(rng)) for text in texts]
    if rng.random() < 0.5 and len(texts) < 4:
        site.title(words.label(rng, 2))
    site.add("".join(html for _, _, html, _ in made))
    state: dict[str, bool | str] = {name: value for _, name, _, value in made}
    box = rng.choice(("I agree to the terms", "Send me a copy", "Urgent", "Keep it private", "Call me back"))
    tick, html = site.option(box, "checkbox", "")
    ticked = len(texts) < 4 and rng.random() < 0.3
    if ticked or (len(texts) < 3 and rng.random() < 0.2):
        site.add(html)
        state[tick] = ticked
    caption = rng.choice(("Save", "Send", "Submit", "Register", "Book", "Next", "Add", "OK"))
    submit, knob = site.button(caption, rng.choice(("", "72px", "100%")))
    site.add(f'<div style="margin-top:{rng.randint(0, 10)}px">{knob}</div><p>{site.answer()}</p>')
    site.on(submit, f"judge({equal(state)}); say({json.dumps(rng.choice(PAST))});")
    site.needed += [submit, *(name for _, name, _, _ in made)]
    sayings = (
        'type "{v}" into the {n} field',
        'enter "{v}" as the {n}',
        "the {n} is {v}",
        'put "{v}" into {n}',
        'fill in the {n} "{v}"',
        'write "{v}" into the field for the {n}',
    )
    same = rng.choice(sayings)
    parts = [
        (same if rng.random() < 0.5 else rng.choice(sayings)).format(
            v=value, n=text.lower() if text in kinds else text
        )
        for text, _, _, value in made
    ]
    if ticked:
        parts.append(rng.choice((f'tick "{box}"', "tick the box", f'check the box "{box}"')))
    parts.append(apply_said(rng, caption) if rng.random() < 0.75 else f"press the {caption} button")

    values = {name: value for _, name, _, value in made}
    expert = filling(values, tick if ticked else None, submit)

    return publish("site-form", seed, site, demands(rng, parts), expert)


def verb_scene(rng: random.Random, seed: int, *, missing: bool = False) -> Scene:
    """Something to read and a grid of verbs; one or two of them are asked for, or one that is not there."""
    site = Site(rng)
    t = site.theme
    thing = rng.choice(THINGS)
    texts = rng.sample(VERBS, rng.randint(2, 7) + 1)
    absent = texts.pop()
    columns = rng.choice((1, 2, 2, 2, 3)) if len(texts) < 6 else rng.choice((2, 2, 3))
    knobs = [site.button(text, "100%") for text in texts]
    sender = f"From {person(rng)}: " if rng.random() < 0.4 else ""
    look = rng.choice(
        ("", f"border-bottom:1px solid {t.line};padding-bottom:6px", f"background:{t.panel};padding:4px")
    )
    body = escape(sender + words.sentence(rng, rng.randint(3, 10)))
    if rng.random() < 0.25:
        lines = [(words.label(rng, 1), rng.randint(1, 999)) for _ in range(rng.randint(2, 3))]
        body = "".join(f"<div>{escape(text)}<span style='float:right'>{n}</span></div>" for text, n in lines)
    site.add(f'<div style="{look}">{body}</div>')
    cells = "".join(html for _, html in knobs)
    grid = f"display:grid;grid-template-columns:{'1fr ' * columns};gap:{rng.randint(2, 8)}px;margin-top:8px"
    site.add(f'<div style="{grid}">{cells}</div><p>{site.answer()}</p>')
    ids = [name for name, _ in knobs]
    picked = rng.sample(range(len(texts)), 1 if len(texts) < 3 or rng.random() < 0.8 else 2)
    goal = [ids[i] for i in picked]
    after = rng.choice(
        ("event.target.classList.add('on');", "say(event.target.textContent + ': done');", "say('OK');")
    )
    site.script.append(f"const pressed = [], goal = {json.dumps([] if missing else goal)};")
    for name in ids:
        site.on(name, f"pressed.push('{name}'); judge(String(pressed) === String(goal)); {after}")
    site.needed += ids
    if missing:
        site.script.append("window.__pfGiveUp = () => judge(!pressed.length);")
    verbs = [absent] if missing else [texts[i] for i in picked]
    named = rng.choice(("this {}", "the {}", "this {}", "the {} above")).format(thing)
    if rng.random() < 0.7:
        how = f' with the button "{verbs[0]}"' if rng.random() < 0.3 else ""
        parts = [f"{verbs[0].lower()} {named}{how}", *(f"{verb.lower()} it" for verb in verbs[1:])]
    else:
        parts = [rng.choice(('press "{}"', "use the button {}", "click {}")).format(verb) for verb in verbs]

    async def expert(s: Screen) -> Steps:
        if missing:
            yield give_up()
            return
        for name in goal:
            yield click(await s.target(element(name)))
        yield done()

    task = "site-missing" if missing else "site-verb"
    return publish(task, seed, site, demands(rng, parts), expert, remembers=len(goal) > 1)


def missing_scene(rng: random.Random, seed: int) -> Scene:
    """What is asked for is not on the page: say so and touch nothing."""
    return verb_scene(rng, seed, missing=True)


SCENES = {
    "site-settings": (settings_scene, 0.0),
    "site-notice": (notice_scene, 0.0),
    "site-sign-in": (sign_in_scene, 0.0),
    "site-form": (form_scene, 0.0),
    "site-verb": (verb_scene, 0.0),
    "site-missing": (missing_scene, 0.0),
}
