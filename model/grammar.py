"""The grammar of M3's tool calls, built from the tools' JSON schemas, in the Lark dialect of llguidance.

What the grammar lets through is what `arguments.py` reads back as a value that fits the schema. The two agree
on M3's spelling: a parameter's name is its tag, a list is repeated `<item>`, an object is nested tags, the
namespace token stands before every tag, and nothing is escaped. Maps with free keys are written as JSON,
which the reader takes too. An object's properties come in any order, each once.

A word of a schema that the grammar cannot hold a model to (`uniqueItems`, `not`, `multipleOf`, ...) is named
in `CallGrammar.loose` and left to the tool, which checks its arguments anyway.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from pilotfish.model.arguments import MalformedCall, choices_of, element_value, typed_as, types_of
from pilotfish.model.decimals import INTEGER, NUMBER, PLAIN_INTEGER, PLAIN_NUMBER, within
from pilotfish.model.lark import MAX_FREE_ORDER, object_lines, quoted, writable, written
from pilotfish.model.patterns import finds_empty, searched
from pilotfish.model.protocol import ModelError, ToolSpec
from pilotfish.model.schemas import (
    Schema,
    TooManyAlternatives,
    Work,
    fits,
    identity,
    ignored_words,
    plain_schemas,
)

_NAME = re.compile(r"[^\s<>/\]][^\s<>\]]*")
_OWN = ("invoke", "tool_call")  # they end a call wherever they close
_ANY_NUMBER = r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_BLANKS = r"[\s\x1c-\x1f]*"
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

Fault = Literal["nothing fits", "too much"]


@dataclass(frozen=True)
class CallGrammar:
    """lark: the grammar of one whole block of calls. loose: what of the schemas it does not enforce."""

    lark: str
    loose: tuple[str, ...]


@dataclass(frozen=True)
class _Form:
    """One way to write a value: `text` in Lark, the rules it cannot do without, and `least` of others."""

    text: str
    needs: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    least: int = 0

    def possible(self, rules: set[str]) -> bool:
        """Whether it can be written when these rules match something."""
        return rules.issuperset(self.needs) and len(rules.intersection(self.others)) >= self.least


@dataclass
class _Rules:
    """Rules by name; each is a list of forms, and one without forms matches nothing."""

    forms: dict[str, list[_Form]] = field(default_factory=dict)
    after: dict[str, Callable[[set[str]], list[str]]] = field(default_factory=dict)
    """Rules whose lines can only be written when it is known which others match something."""

    def possible(self) -> set[str]:
        """The rules that match at least one finite text."""
        found: set[str] = set()
        while True:
            more = {
                name
                for name, forms in self.forms.items()
                if name not in found and any(form.possible(found) for form in forms)
            }
            if not more:
                return found
            found |= more


def call_grammar(
    tools: Sequence[ToolSpec], namespace_id: int, fault: Callable[[str], Fault | None] = lambda _: None
) -> CallGrammar:
    """The grammar of one block of calls, from its first namespace token through `</tool_call>`.

    namespace_id: the token M3 writes before every tag. fault: why llguidance cannot hold a text to
    a rule, if it cannot.
    Raises ModelError when a tool can never be called, since its schema or name cannot be written.
    """
    builder = _Builder(f"<[{namespace_id}]>", fault)
    names = [builder.tool(n, tool) for n, tool in enumerate(tools)]
    possible = builder.rules.possible()
    for tool, name in zip(tools, names, strict=True):
        if name not in possible:
            raise ModelError(
                f"The tool {tool.name!r} takes no arguments that could be written (its schema allows none); "
                "mend its parameters."
            )
    lines = [
        f'start: {builder.marker} "<tool_call>" "\\n"? ({" | ".join(names)})+ {builder.marker} "</tool_call>"'
    ]
    for name, forms in builder.rules.forms.items():
        if name in possible:
            if name in builder.rules.after:
                lines += builder.rules.after[name](possible)
            else:
                kept = [form.text for form in forms if form.possible(possible)]
                lines.append(f"{name}: {' | '.join(kept)}")
    # Text that can only be one is left to the model to cut into tokens, since it was trained on one way.
    lines.insert(0, '%llguidance {"no_forcing": true}')
    return CallGrammar("\n".join([*lines, *builder.terminals.values()]), tuple(dict.fromkeys(builder.loose)))


class _Builder:
    """Writes the rules: one for each schema, so that recursive schemas become recursive rules."""

    def __init__(self, marker: str, fault: Callable[[str], Fault | None]) -> None:
        self.marker, self.fault = marker, fault
        self.rules = _Rules()
        self.terminals: dict[str, str] = {}
        self.loose: list[str] = []
        self._known: dict[str, str] = {}
        self._tool = ""
        self._root: dict[str, Any] = {}
        self._work = Work()

    def tool(self, number: int, tool: ToolSpec) -> str:
        """The rule of one call of a tool."""
        schema = tool.parameters if tool.exact is None else tool.exact
        self._tool, self._root, self._known = tool.name, schema, {}
        self._work = Work()
        quote = "'" if '"' in tool.name else '"'
        if not tool.name.strip() or quote in tool.name or tool.name != tool.name.strip():
            raise ModelError(f"A tool is called {tool.name!r}; a name has no blanks around it and no quotes.")
        if not writable(tool.name):
            raise ModelError(
                f"A tool is called {tool.name!r}, which a call cannot spell; give it another name."
            )
        try:
            plain = plain_schemas(schema, schema, self._work)
            options = [s for s in plain if "object" in s.get("type", ["object"])]
            for option in options:
                self._note(option if "enum" not in option else {**option, "enum at the top": True})
            body = self._rule(f"t{number}_body", [self._object(option, top=True) for option in options])
        except (TooManyAlternatives, RecursionError):
            raise ModelError(
                f"The schema of the tool {tool.name!r} branches or nests too much for a grammar; simplify it."
            ) from None
        opening = quoted(f"<invoke name={quote}{tool.name}{quote}>")
        text = f'{self.marker} {opening} {body} {self.marker} "</invoke>" "\\n"?'
        return self._rule(f"t{number}", [_Form(text, (body,))])

    def _rule(self, name: str, forms: Sequence[_Form | None]) -> str:
        self.rules.forms[name] = [form for form in forms if form is not None]
        return name

    def _fresh(self, kind: str) -> str:
        return f"{kind}{len(self.rules.forms)}"

    def _terminal(self, expression: str) -> str:
        """The terminal of one expression over `/regex/`, `&` and `~`."""
        line = self.terminals.get(expression)
        if line is None:
            line = self.terminals[expression] = f"X{len(self.terminals)}: {expression}"
        return line.partition(":")[0]

    def _value(self, schema: Any) -> str:
        """The rule of what stands between the tags of a value."""
        key = json.dumps(schema, sort_keys=True, default=str)
        if key in self._known:
            return self._known[key]
        self._work.spend(1 + len(key) // 100)
        name = self._known[key] = self._fresh("v")
        self.rules.forms[name] = []
        read = types_of(schema, self._root) if isinstance(schema, dict) else set()
        for plain in plain_schemas(schema, self._root, self._work):
            self._note(plain)
            if "enum" in plain:
                self.rules.forms[name] += self._choices(plain, schema)
                continue
            for kind in plain.get("type", ["string"] if not read else [t for t in _TYPES if t in read]):
                form = self._typed(kind, plain, read)
                self.rules.forms[name] += [form] if form is not None else []
        return name

    def _note(self, plain: Schema) -> None:
        self.loose += [
            f"{word} in the schema of {self._tool!r} is left to the tool" for word in ignored_words(plain)
        ]

    def _typed(self, kind: str, plain: Schema, read: set[str]) -> _Form | None:
        """One form of one JSON type. read: the types among which the reader chooses for this value."""
        canonical = "string" in read or not read
        if kind == "string":
            return self._string(plain, read)
        if kind in ("integer", "number"):
            return self._number(kind, plain, canonical)
        if kind == "boolean":
            return _Form('("true" | "false")')
        if kind == "null":
            return _Form('"null"')
        if kind == "array":
            return self._array(plain, canonical)
        if kind == "object":
            return self._object(plain, read=read)
        return None

    def _choices(self, plain: Schema, schema: Any) -> list[_Form]:
        """The values an `enum` lists, those that the reader gives back as one of them."""
        allowed = [value for value in plain["enum"] if fits(value, plain)]
        kept = {identity(value) for value in allowed}
        types, words = types_of(schema, self._root), dict.fromkeys(choices_of(schema, self._root))
        texts: dict[str, None] = {}
        forms = []
        for value in allowed:
            if isinstance(value, dict | list):
                with contextlib.suppress(MalformedCall):
                    if identity(element_value(written(value), schema, self._root)) in kept:
                        forms.append(_Form(self._spelled(value) or '""'))
                continue
            text = value if isinstance(value, str) else json.dumps(value)
            if writable(text) and identity(typed_as(text, types, words)) in kept:
                texts[text] = None
        if "" in texts:
            forms.append(_Form('""'))
        spelled = "|".join(quoted(text) for text in texts if text)
        return [*forms, _Form(self._terminal(spelled))] if spelled else forms

    def _spelled(self, value: Any) -> str:
        """A fixed value in Lark."""
        if isinstance(value, dict | list):
            pairs = value.items() if isinstance(value, dict) else (("item", item) for item in value)
            return " ".join(
                f"{self.marker} {quoted(f'<{name}>')} {self._spelled(item) or quoted('')} "
                f"{self.marker} {quoted(f'</{name}>')}"
                for name, item in pairs
                if item is not None
            )
        return quoted(value if isinstance(value, str) else json.dumps(value))

    def _string(self, plain: Schema, read: set[str]) -> _Form | None:
        least, most = plain.get("minLength", 0), plain.get("maxLength")
        if most is not None and most < least:
            return None
        length = rf"/(?s:.{{{max(least, 1)},{'' if most is None else most}}})/"
        parts = [length]
        for pattern in plain.get("pattern", []):
            expression = searched(pattern)
            if expression is None or self.fault(f"{length} & {expression}") == "too much":
                self.loose.append(f"the pattern {pattern[:60]!r} of {self._tool!r} is left to the tool")
            else:
                parts.append(expression)
        held = len(parts) > 1
        # What the reader would take for another type is not written as a string.
        if read & {"integer", "number"}:
            parts.append(f"~/{_ANY_NUMBER}/")
        if "boolean" in read:
            parts.append("~/true|false/")
        if "null" in read:
            parts.append(f"~/{_BLANKS}null{_BLANKS}/")
        can_be_empty = least == 0 and all(finds_empty(pattern) for pattern in plain.get("pattern", []))
        terminal = " & ".join(parts)
        if most == 0 or (held and self.fault(terminal) == "nothing fits"):
            return _Form('""') if can_be_empty else None
        text = self._terminal(terminal)
        return _Form(f'(""|{text})' if can_be_empty else text)

    def _number(self, kind: str, plain: Schema, canonical: bool) -> _Form | None:
        def bound(word: str) -> Decimal | None:
            value = plain.get(word)
            return value if value is None else Decimal(repr(value) if isinstance(value, float) else value)

        bounded = any(
            word in plain for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        )
        # Python's own spelling and bounds together leave llguidance in states without a way on.
        whole = kind == "integer" or (canonical and bounded)
        shape = (PLAIN_INTEGER if whole else PLAIN_NUMBER) if canonical else (INTEGER if whole else NUMBER)
        limits = within(
            whole=whole,
            low=bound("minimum"),
            high=bound("maximum"),
            above=bound("exclusiveMinimum"),
            below=bound("exclusiveMaximum"),
        )
        if limits is None:
            return None
        parts = [f"/{shape}/", *(f"/{pattern}/" if wanted else f"~/{pattern}/" for pattern, wanted in limits)]
        number = " & ".join(parts)
        return _Form(self._terminal(number)) if not limits or self.fault(number) is None else None

    def _array(self, plain: Schema, or_string: bool) -> _Form | None:
        first = [self._item(schema) for schema in plain.get("prefixItems", [])]
        rest = self._item(plain.get("items", {}))
        # Between strings, an empty element is the empty string.
        least = max(plain.get("minItems", 0), 1 if or_string else 0)
        most = plain.get("maxItems")
        if most is not None and most < least:
            return None
        fixed = first[: most if most is not None else len(first)]
        needed = fixed[:least]
        more = max(0, least - len(fixed))
        room = None if most is None else most - len(fixed)
        needs = [*needed, *([rest] if more else [])]
        tail = f"({rest}){{{more},{'' if room is None else room}}}" if room != 0 else ""
        name = self._fresh("a")
        self.rules.forms[name] = [_Form("", tuple(needs))]

        def lines(possible: set[str]) -> list[str]:
            # From the back: each optional item brings those before it along.
            text = tail if rest in possible else ""
            reach = next((n for n, item in enumerate(fixed) if item not in possible), len(fixed))
            if reach < len(fixed):
                text = ""
            for n in range(reach - 1, -1, -1):
                inner = f"{fixed[n]} {text}".strip()
                text = inner if n < least else f"({inner})?"
            return [f"{name}: {text or quoted('')}"]

        self.rules.after[name] = lines
        return _Form(name, (name,))

    def _item(self, schema: Any) -> str:
        return self._element("item", schema)

    def _element(self, tag: str, schema: Any) -> str:
        """The rule of a value with its tags."""
        value = self._value(schema)
        opening, closing = quoted(f"<{tag}>"), quoted(f"</{tag}>")
        key = f"element {tag} {value}"
        if key not in self._known:
            self._known[key] = self._rule(
                self._fresh("e"),
                [_Form(f"{self.marker} {opening} {value} {self.marker} {closing}", (value,))],
            )
        return self._known[key]

    def _object(self, plain: Schema, top: bool = False, read: set[str] | None = None) -> _Form | None:
        properties = dict(plain.get("properties", {}))
        required = [name for name in plain.get("required", ()) if name in properties]
        if set(plain.get("required", ())) - set(properties):
            for name in plain["required"]:
                properties.setdefault(name, plain.get("additionalProperties", {}))
            required = list(plain["required"])
        read = read or set()
        if not properties and not top:
            return self._map(plain, read)
        for name in [
            n
            for n in properties
            if not _NAME.fullmatch(n) or n in _OWN or not writable(n) or (n == "item" and "array" in read)
        ]:
            if name in required:
                return None
            self.loose.append(f"the property {name[:60]!r} of {self._tool!r} cannot be written as a tag")
            del properties[name]
        least, most = plain.get("minProperties", 0), min(plain.get("maxProperties", 1 << 30), len(properties))
        if not top and ("array" in read or "string" in read):
            least = max(least, 1)  # an empty element would be the list or the string
        if most < max(least, len(required)):
            return None
        elements = {name: self._element(name, schema) for name, schema in properties.items()}
        rule = self._fresh("o")
        self.rules.forms[rule] = [
            _Form("", tuple(elements[name] for name in required), tuple(elements.values()), least)
        ]
        self.rules.after[rule] = lambda possible: object_lines(
            rule, [(elements[n], n in required) for n in properties if elements[n] in possible], least, most
        )
        free = len(properties) <= MAX_FREE_ORDER
        if not free and (least > len(required) or most < len(properties)):
            self._note({"minProperties and maxProperties": True})
        return _Form(f"{rule}::0" if free else rule, (rule,))

    def _map(self, plain: Schema, read: set[str]) -> _Form | None:
        """An object with free keys, as JSON; where a string may stand too it would be read as one."""
        if "string" in read:
            return None
        words = ("additionalProperties", "patternProperties", "minProperties", "maxProperties")
        schema: Schema = {word: plain[word] for word in words if word in plain}
        schema |= {"x-guidance": {"lenient": True}}
        schema |= {word: self._root[word] for word in ("$defs", "definitions") if word in self._root}
        body = f"%json {json.dumps({'type': 'object', **schema})}"
        can_be_empty = "array" not in read and not plain.get("minProperties")
        if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
            return _Form('""') if can_be_empty else None
        if self.fault(body) is not None:
            self.loose.append(f"what a map of {self._tool!r} may hold is left to the tool")
            body = '%json {"type": "object"}'
        return _Form(f'(""|{body})' if can_be_empty else body)
