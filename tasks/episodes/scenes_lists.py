"""Procedural tasks on pages that hold many alike things: lists, tables, baskets, calendars."""

from __future__ import annotations

import calendar
import json
import random

from pilotfish.tasks.episodes import words
from pilotfish.tasks.episodes.expert_tools import fill
from pilotfish.tasks.episodes.pages import Screen, Unreachable
from pilotfish.tasks.episodes.procedural import Scene
from pilotfish.tasks.episodes.sites import Site, click_if, demands, person, publish, some
from pilotfish.tasks.episodes.steps import Steps, click, done, key
from pilotfish.tasks.episodes.widgets import element, escape

_GOODS = (
    "Lamp,Kettle,Chair,Rope,Tent,Mug,Clock,Ladder,Scarf,Basket,Candle,Drum,Hammer,Mirror,Pillow,Radio,Shovel,Towel,"
    "Umbrella,Vase,Wallet,Blanket,Teapot,Bicycle,Notebook,Pencil,Globe,Compass,Stove,Fan"
)
GOODS = _GOODS.split(",")
_CHORES = (
    "Water plants,Buy milk,Call Anna,Pay rent,Fix bike,Wash car,Book flight,Send parcel,Clean desk,Feed cat,"
    "Write report,"
    "Mow lawn,Return books,Paint door,Order paper,Bake bread,Sort mail,Charge phone,Pack bag,Renew pass"
)
CHORES = _CHORES.split(",")
MONTHS = list(calendar.month_name)[1:]


def filter_scene(rng: random.Random, seed: int) -> Scene:
    """Narrow a list by typing into its box, or turn its pages, and choose an entry."""
    site = Site(rng)
    t = site.theme
    count, per = rng.randint(6, 18), rng.randint(3, 5)
    texts = some(rng, [person(rng) for _ in range(count)] if rng.random() < 0.5 else GOODS, count)
    at = rng.randrange(per, count)
    typed = rng.random() < 0.6
    query = texts[at] if rng.random() < 0.5 else texts[at].split()[0]
    names = [site.new_id() for _ in texts]
    site.labels = "inside"
    if rng.random() < 0.3:
        site.title(words.label(rng, 2))
    word = rng.choice(("Filter", "Search", "Find", "Type to filter"))
    box, html = site.field(word)
    site.add(html)
    line = rng.choice((f"border-bottom:1px solid {t.line}", f"background:{t.panel};margin-bottom:2px", ""))
    site.add(
        "".join(
            f'<div id="{name}" data-pf="row" '
            f'style="padding:{rng.choice((2, 3))}px 4px;cursor:pointer;{line}">'
            f"{escape(text)}</div>"
            for name, text in zip(names, texts, strict=True)
        )
    )
    before, back = site.button(rng.choice(("‹", "Back", "<")), mark="back")
    after, onward = site.button(rng.choice(("›", "Next", ">")), mark="next")
    where = site.new_id()
    site.add(f'<div style="margin-top:4px">{back} <span id="{where}"></span> {onward} {site.answer()}</div>')
    site.script.append(
        f"const rows = {json.dumps(names)}; let page = 0; const draw = () => {{"
        f"const q = $('{box}').value.toLowerCase();"
        "const fit = rows.filter((r) => $(r).textContent.toLowerCase().includes(q));"
        f"const last = Math.max(0, Math.ceil(fit.length / {per}) - 1);"
        "page = Math.min(Math.max(page, 0), last); rows.forEach((r) => show(r, false));"
        f"fit.slice(page * {per}, page * {per} + {per}).forEach((r) => show(r, true));"
        f"$('{where}').textContent = (page + 1) + ' / ' + (last + 1); }};"
        f"$('{box}').addEventListener('input', () => {{ page = 0; draw(); }});"
        f"$('{before}').addEventListener('click', () => {{ page--; draw(); }});"
        f"$('{after}').addEventListener('click', () => {{ page++; draw(); }}); draw();"
    )
    goal = names[at]
    for name in names:
        site.on(
            name,
            "rows.forEach((r) => $(r).classList.remove('on')); event.target.classList.add('on');"
            f"judge({str(name == goal).lower()});",
        )
    site.needed += [box, after]
    text = texts[at]
    if typed:
        first = rng.choice(
            ('{w} the list for "{q}"', 'type "{q}" into the {w} box', 'look for "{q}" with the {w} box')
        )
        parts = [
            first.format(w=word.split()[-1].lower(), q=query),
            rng.choice(('choose "{}"', "select {}", "open {}")),
        ]
    else:
        parts = [
            rng.choice(
                ("go through the pages of the list", "turn the pages", "use the button for the next page")
            )
        ]
        parts.append(rng.choice(("choose {}", 'click "{}"', "select {}")))

    async def expert(s: Screen) -> Steps:
        if typed:
            async for step in fill(s, element(box), query):
                yield step
        for _ in range(8):
            if await s.js(f"pf.shown({element(goal)})"):
                break
            yield click(await s.target(element(after)))
        yield click(await s.target(element(goal)))
        yield done()

    return publish("site-filter", seed, site, demands(rng, [part.format(text) for part in parts]), expert)


def table_scene(rng: random.Random, seed: int) -> Scene:
    """Change a value in one row of a table."""
    site = Site(rng)
    t = site.theme
    count = rng.randint(2, 5)
    texts = some(rng, GOODS, count, 1)
    column = rng.choice(("price", "amount", "stock", "room", "seat", "number", "weight"))
    values = [str(rng.randint(1, 500)) for _ in texts]
    at, value = rng.randrange(count), str(rng.randint(501, 999))
    if rng.random() < 0.4:
        value = f"{rng.randint(1, 99)}.{rng.randint(10, 99)}"
    sign = rng.choice(("Edit", "Change", "✎", "…"))
    site.labels = "above"
    rows, ids = "", []
    line = rng.choice((f"border-bottom:1px solid {t.line};", ""))
    for text, old in zip(texts, values, strict=True):
        cell, (knob, html) = site.new_id(), site.button(sign, mark=f"{sign} {text}")
        ids.append((cell, knob))
        rows += (
            f'<tr><td style="{line}">{escape(text[:10])}</td>'
            f'<td id="{cell}" style="{line}text-align:right">{old}</td>'
            f'<td style="{line}">{html}</td></tr>'
        )
    if rng.random() < 0.7:
        rows = f"<tr><th align=left>Name</th><th>{column.capitalize()}</th><th></th></tr>" + rows
    site.add(f'<table style="width:144px;border-collapse:collapse">{rows}</table>')
    box, field = site.field(f"New {column}")
    caption = rng.choice(("Save", "OK", "Set", "Update"))
    save, html = site.button(caption)
    form = site.new_id()
    look = f"position:absolute;left:8px;bottom:6px;padding:5px;background:{t.back};border:1px solid {t.line}"
    site.add(f'<div id="{form}" class="hide" style="{look}">{field}{html}</div>')
    site.script.append(
        f"let row = null; const now = () => {json.dumps([c for c, _ in ids])}.map((c) => $(c).textContent);"
    )
    for cell, knob in ids:
        site.on(knob, f"row = '{cell}'; show('{form}', true); $('{box}').value = $(row).textContent;")
    wanted = [value if i == at else old for i, old in enumerate(values)]
    site.on(
        save,
        f"$(row).textContent = $('{box}').value; show('{form}', false);"
        f"judge(String(now()) === String({json.dumps(wanted)}));",
    )
    site.needed += [knob for _, knob in ids]
    said = (
        'Change the {c} of "{t}" to {v} and press {s}.',
        "Set the {c} of {t} to {v}, and save it.",
        "The {c} of {t} is {v} now: put that into the table and press {s}.",
        'In the table, edit "{t}": its {c} is to be {v}.',
    )
    instruction = rng.choice(said).format(c=column, t=texts[at][:10], v=value, s=caption)

    async def expert(s: Screen) -> Steps:
        cell, knob = ids[at]
        if await s.js(f"{element(cell)}.textContent !== {json.dumps(value)}"):
            if not await s.js(f"pf.shown({element(box)})"):
                yield click(await s.target(element(knob)))
            async for step in fill(s, element(box), value):
                yield step
            yield click(await s.target(element(save)))
        yield done()

    return publish("site-table", seed, site, instruction, expert)


def chores_scene(rng: random.Random, seed: int) -> Scene:
    """A list of things to do: add some, tick some off, strike some from the list."""
    site = Site(rng)
    site.labels = "inside"
    count = rng.randint(1, 4)
    texts = some(rng, CHORES, count + 2)
    new, texts = texts[:2], texts[2:]
    if rng.random() < 0.5:
        site.title(rng.choice(("To do", "Tasks", "Shopping", "My day", "List")))
    word = rng.choice(("New task", "Add a task", "What is to do?", "New entry"))
    box, field = site.field(word)
    caption = rng.choice(("Add", "+", "Add task"))
    add, html = site.button(caption, mark="add")
    has_button = rng.random() < 0.7
    site.add(field + (html if has_button else ""))
    listed = site.new_id()
    cross = rng.choice(("×", "✕", "Remove"))
    look = f"display:flex;align-items:center;padding:{rng.randint(1, 3)}px 0"
    rows, ids = "", {}
    for text in texts:
        tick, remove = site.new_id(), site.new_id()
        ids[text] = (tick, remove)
        rows += (
            f'<div style="{look}"><input type="checkbox" id="{tick}" data-name="{escape(text)}" '
            f'><span style="flex:1">{escape(text)}</span><span id="{remove}" data-pf="button" '
            f'data-name="remove {escape(text)}" style="cursor:pointer;padding:0 4px">{cross}</span></div>'
        )
    site.add(f'<div id="{listed}" style="margin-top:4px">{rows}</div>')
    kinds = rng.sample(("add", "tick", "remove"), rng.choice((1, 1, 2)))
    picked = dict(zip(kinds, rng.sample(texts, min(len(texts), 2)) * 2, strict=False))
    if len(texts) == 1 and "add" not in kinds:
        kinds = kinds[:1]
    after = {text: "tick" in kinds and picked["tick"] == text for text in texts}
    if "remove" in kinds:
        after.pop(picked["remove"], None)
    if "add" in kinds:
        after[new[0]] = False
    site.script.append(
        f"const rows = () => [...$('{listed}').children], text = (r) => r.children[1].textContent;"
        "const check = () => {"
        "rows().forEach((r) => r.children[1].classList.toggle('past', r.firstChild.checked));"
        f"const wanted = Object.entries({json.dumps(after)});"
        "judge(rows().length === wanted.length && wanted.every(([t, d]) => "
        "rows().some((r) => text(r) === t && r.firstChild.checked === d))); };"
        "const live = (r) => { r.firstChild.addEventListener('change', check);"
        "r.lastChild.addEventListener('click', () => { r.remove(); check(); }); };"
        f"rows().forEach(live); const more = () => {{ const v = $('{box}').value.trim(); if (!v) return;"
        f"const r = document.createElement('div'); r.style.cssText = '{look}';"
        "r.innerHTML = '<input type=checkbox><span style=flex:1></span>"
        '<span style="padding:0 4px"></span>\';'
        f"r.lastChild.textContent = '{cross}';"
        f"r.children[1].textContent = v; $('{listed}').append(r); live(r);"
        f"$('{box}').value = ''; check(); }};"
        f"$('{box}').addEventListener('keydown', (e) => {{ if (e.key === 'Enter') more(); }});"
        f"$('{add}')?.addEventListener('click', more);"
    )
    site.needed += [box, *(name for pair in ids.values() for name in pair)]
    how = {
        "add": rng.choice(
            ('add "{}" to the list', "put {} on the list", 'add the task "{}"', 'note down "{}"')
        ),
        "tick": rng.choice(("tick off {}", 'mark "{}" as done', 'check "{}"', "{} is done, tick it off")),
        "remove": rng.choice(
            ("remove {}", 'delete "{}"', 'strike "{}" from the list', "take {} off the list")
        ),
    }
    parts = [how[kind].format(new[0] if kind == "add" else picked[kind]) for kind in kinds]

    async def expert(s: Screen) -> Steps:
        for kind in kinds:
            if kind == "add":
                listed_now = f"[...{element(listed)}.children].map((r) => r.children[1].textContent)"
                if await s.js(f"{listed_now}.includes({json.dumps(new[0])})"):
                    continue
                async for step in fill(s, element(box), new[0]):
                    yield step
                yield click(await s.target(element(add))) if has_button else key("Return")
            elif kind == "tick":
                async for step in click_if(s, ids[picked[kind]][0], "e && !e.checked"):
                    yield step
            else:
                async for step in click_if(s, ids[picked[kind]][1], "!!e"):
                    yield step
        yield done()

    return publish("site-chores", seed, site, demands(rng, parts), expert)


def shop_scene(rng: random.Random, seed: int) -> Scene:
    """Put goods into a basket, as many as asked for, and order."""
    site = Site(rng)
    count = rng.randint(2, 4)
    texts = some(rng, GOODS, count, 1)
    prices = rng.sample(range(2, 90), count)
    money = rng.choice(("{} €", "{}.00", "${}", "{} EUR"))
    site.title(rng.choice(("Shop", "Our goods", "Market", "Catalogue", words.label(rng, 2))))
    caption = rng.choice(("Add", "Buy", "+", "Into basket" if site.theme.size < 11 else "Add"))
    ids = {}
    for text, price in zip(texts, prices, strict=True):
        name, html = site.button(caption, mark=f"add {text}")
        ids[text] = name
        look = "display:flex;justify-content:space-between;align-items:center;margin-bottom:3px"
        site.add(f'<div style="{look}"><span>{escape(text[:9])} {money.format(price)}</span>{html}</div>')
    order = rng.choice(("Order", "Check out", "Pay", "Buy now"))
    submit, html = site.button(order)
    shown = site.new_id()
    site.add(f'<div style="margin-top:6px">Basket: <b id="{shown}">0</b> {html} {site.answer()}</div>')
    picked = rng.sample(texts, rng.choice((1, 1, 2)))
    wanted = {text: rng.choices((1, 2, 3), (6, 3, 1))[0] for text in picked}
    cheapest = texts[prices.index(min(prices))]
    by_price = picked[0] == cheapest and len(picked) == 1 and rng.random() < 0.6
    site.script.append("const basket = {};")
    for text, name in ids.items():
        said = json.dumps(text)
        site.on(
            name,
            f"basket[{said}] = (basket[{said}] || 0) + 1;"
            f"$('{shown}').textContent = Object.values(basket).reduce((a, b) => a + b);",
        )
    test = f"Object.keys(basket).length === {len(wanted)} && Object.entries({json.dumps(wanted)})"
    site.on(submit, f"judge({test}.every(([t, n]) => basket[t] === n)); say('Thank you');")
    site.needed += [submit, *ids.values()]
    number = {1: ("a {}", "one {}", "the {}"), 2: ("two of {}", "2 x {}"), 3: ("three of {}", "3 x {}")}
    things = [rng.choice(number[n]).format(t[:9]) for t, n in wanted.items()]
    if by_price:
        things = [f"{('', 'one', 'two', 'three')[wanted[cheapest]]} of the cheapest thing"]
    verb = rng.choice(("put {} into the basket", "add {} to the basket", "take {}"))
    last = rng.choice((f"press {order}", f'press "{order}"', f"{order.lower()}"))
    parts = [verb.format(" and ".join(things)), last]

    async def expert(s: Screen) -> Steps:
        for text, number_wanted in wanted.items():
            for _ in range(number_wanted):
                yield click(await s.target(element(ids[text])))
        yield click(await s.target(element(submit)))
        yield done()

    return publish("site-shop", seed, site, demands(rng, parts), expert, remembers=True)


def calendar_scene(rng: random.Random, seed: int) -> Scene:
    """Choose a day in a month's grid, perhaps in another month, then press a button."""
    site = Site(rng)
    t = site.theme
    site.make = "native"
    year, month = rng.randint(2020, 2032), rng.randint(1, 12)
    away = rng.choice((0, 0, 1, 1, 2, -1, -2))
    goal_year, goal_month = year + (month - 1 + away) // 12, (month - 1 + away) % 12 + 1
    day = rng.randint(1, calendar.monthrange(goal_year, goal_month)[1])
    if rng.random() < 0.4:
        site.title(rng.choice(("Book a room", "Your visit", "Day of departure", "Choose a day", "Calendar")))
    before, back = site.button(rng.choice(("‹", "<", "◀")), "24px", mark="previous month")
    after, onward = site.button(rng.choice(("›", ">", "▶")), "24px", mark="next month")
    head, grid = site.new_id(), site.new_id()
    bar = "display:flex;justify-content:space-between;align-items:center;margin-bottom:3px"
    site.add(
        f'<div style="{bar}">{back}<b id="{head}" style="font-size:{min(t.size, 11)}px"></b>{onward}</div>'
    )
    look = "display:grid;grid-template-columns:repeat(7,1fr);text-align:center;font-size:9px"
    site.add(f'<div id="{grid}" style="{look}"></div>')
    caption = rng.choice(("Book", "OK", "Confirm", "Choose", "Save"))
    submit, html = site.button(caption)
    site.add(f'<div style="margin-top:4px">{html}{site.answer()}</div>')
    height = rng.randint(14, 17)
    site.script.append(
        f"const months = {json.dumps(MONTHS)}; let y = {year}, m = {month - 1}, chosen = null;"
        "const draw = () => {"
        f"$('{head}').textContent = months[m] + ' ' + y; $('{grid}').replaceChildren();"
        "const put = (text, d) => { const c = document.createElement('span'); c.textContent = text;"
        f"c.style.cssText = 'line-height:{height}px'; if (d) {{ c.dataset.pf = 'day'; c.id = 'd' + d;"
        "c.style.cursor = 'pointer'; if (chosen === `${y}-${m + 1}-${d}`) c.className = 'on';"
        "c.addEventListener('click', () => { chosen = `${y}-${m + 1}-${d}`; draw(); }); }"
        f" $('{grid}').append(c); }};"
        "['M','T','W','T','F','S','S'].forEach((n) => put(n));"
        "for (let i = (new Date(y, m, 1).getDay() + 6) % 7; i > 0; i--) put('');"
        "for (let d = 1; d <= new Date(y, m + 1, 0).getDate(); d++) put(String(d), d); };"
        "const turn = (n) => { m += n; y += Math.floor(m / 12); m = (m + 12) % 12; draw(); };"
        f"$('{before}').addEventListener('click', () => turn(-1));"
        f"$('{after}').addEventListener('click', () => turn(1)); draw();"
    )
    goal = f"{goal_year}-{goal_month}-{day}"
    site.on(submit, f"judge(chosen === '{goal}'); say(chosen ? 'Booked' : 'No day');")
    site.needed += [submit, after]
    name = MONTHS[goal_month - 1]
    date = rng.choice(
        (f"{day} {name} {goal_year}", f"{name} {day}, {goal_year}", f"{goal_year}-{goal_month:02d}-{day:02d}")
    )
    if away == 0 and rng.random() < 0.4:
        date = f"{name} {day}"
    said = rng.choice(
        ("choose {}", "choose the day {}", "pick {} in the calendar", "set the date to {}", "select {}")
    )
    parts = [said.format(date), rng.choice((f"press {caption}", f'press "{caption}"', f"click {caption}"))]

    async def expert(s: Screen) -> Steps:
        title = f"{element(head)}.textContent"
        for _ in range(6):
            shown = str(await s.js(title)).split()
            apart = (goal_year - int(shown[1])) * 12 + goal_month - 1 - MONTHS.index(shown[0])
            if not apart:
                break
            yield click(await s.target(element(after if apart > 0 else before)))
        else:
            raise Unreachable("the calendar does not come to the month")
        async for step in click_if(s, f"d{day}", "e.className !== 'on'"):
            yield step
        yield click(await s.target(element(submit)))
        yield done()

    return publish("site-calendar", seed, site, demands(rng, parts), expert)


SCENES = {
    "site-filter": (filter_scene, 0.0),
    "site-table": (table_scene, 0.0),
    "site-chores": (chores_scene, 0.0),
    "site-shop": (shop_scene, 0.0),
    "site-calendar": (calendar_scene, 0.0),
}
