"""The grammar of M3's tool calls, built from the tools' JSON schemas, in the Lark dialect of llguidance.

What the grammar lets through is what `arguments.py` reads back as a value that fits the schema. The two agree
on M3's spelling: a parameter's name is its tag, a list is repeated `<item>`, an object is nested tags, the
namespace token stands before every tag, and nothing is escaped. Maps with free keys are written as JSON,
which the reader takes too. An object's properties come in any order, each once.

A word of a schema that the grammar cannot hold a model to (`uniqueItems`, `not`, `multipleOf`, ...) is named
in `CallGrammar.loose` and left to the tool, which checks its arguments anyway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pilotfish.model.arguments import typed, types_of
from pilotfish.model.decimals import INTEGER, NUMBER, PLAIN_INTEGER, PLAIN_NUMBER, within
from pilotfish.model.protocol import ModelError, ToolSpec
from pilotfish.model.schemas import Schema, TooManyAlternatives, ignored_words, json_type, plain_schemas, same

MAX_FREE_ORDER = 60
"""Properties up to which any order is allowed; more come in the schema's order."""
_NAME = re.compile(r"[^\s<>/\]][^\s<>\]]*")
_ANY_NUMBER = r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_BLANKS = r"[\s\x1c-\x1f]*"
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


@dataclass(frozen=True)
class CallGrammar:
    """lark: the grammar of one whole block of calls. loose: what of the schemas it does not enforce."""

    lark: str
    loose: tuple[str, ...]


@dataclass(frozen=True)
class _Form:
    """One way to write a value: `text` in Lark, and the rules that it cannot do without."""

    text: str
    needs: tuple[str, ...] = ()


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
                if name not in found and any(found.issuperset(form.needs) for form in forms)
            }
            if not more:
                return found
            found |= more


def call_grammar(
    tools: Sequence[ToolSpec], namespace_id: int, accepts: Callable[[str], bool] = lambda _: True
) -> CallGrammar:
    """The grammar of one block of calls, from its first namespace token through `</tool_call>`.

    namespace_id: the token M3 writes before every tag. accepts: whether llguidance can take an expression.
    Raises ModelError when a tool can never be called, since its schema or name cannot be written.
    """
    builder = _Builder(f"<[{namespace_id}]>", accepts)
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
                kept = [form.text for form in forms if possible.issuperset(form.needs)]
                lines.append(f"{name}: {' | '.join(kept)}")
    return CallGrammar("\n".join([*lines, *builder.terminals.values()]), tuple(dict.fromkeys(builder.loose)))


class _Builder:
    """Writes the rules: one for each schema, so that recursive schemas become recursive rules."""

    def __init__(self, marker: str, accepts: Callable[[str], bool]) -> None:
        self.marker, self.accepts = marker, accepts
        self.rules = _Rules()
        self.terminals: dict[str, str] = {}
        self.loose: list[str] = []
        self._known: dict[str, str] = {}
        self._tool = ""
        self._root: dict[str, Any] = {}

    def tool(self, number: int, tool: ToolSpec) -> str:
        """The rule of one call of a tool."""
        self._tool, self._root, self._known = tool.name, tool.parameters, {}
        quote = "'" if '"' in tool.name else '"'
        if not tool.name.strip() or quote in tool.name or tool.name != tool.name.strip():
            raise ModelError(f"A tool is called {tool.name!r}; a name has no blanks around it and no quotes.")
        try:
            plain = plain_schemas(tool.parameters, tool.parameters)
            options = [s for s in plain if "object" in s.get("type", ["object"])]
            body = self._rule(f"t{number}_body", [self._object(option, top=True) for option in options])
        except (TooManyAlternatives, RecursionError):
            raise ModelError(
                f"The schema of the tool {tool.name!r} branches or nests too much for a grammar; simplify it."
            ) from None
        opening = _quoted(f"<invoke name={quote}{tool.name}{quote}>")
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
        name = self._known[key] = self._fresh("v")
        self.rules.forms[name] = []
        read = types_of(schema, self._root) if isinstance(schema, dict) else set()
        for plain in plain_schemas(schema, self._root):
            self.loose += [
                f"{word} in the schema of {self._tool!r} is left to the tool" for word in ignored_words(plain)
            ]
            if "enum" in plain:
                self.rules.forms[name] += self._choices(plain, schema)
                continue
            for kind in plain.get("type", ["string"] if not read else [t for t in _TYPES if t in read]):
                form = self._typed(kind, plain, read)
                self.rules.forms[name] += [form] if form is not None else []
        return name

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
        allowed = [value for value in plain["enum"] if _fits(value, plain)]
        forms = []
        for value in allowed:
            if isinstance(value, dict | list):
                if value or isinstance(value, list):
                    forms.append(_Form(self._spelled(value) or '""'))
                continue
            text = value if isinstance(value, str) else json.dumps(value)
            back = typed(text, schema, self._root)
            if any(same(back, choice) for choice in allowed):
                forms.append(_Form(_quoted(text)))
        return forms

    def _spelled(self, value: Any) -> str:
        """A fixed value in Lark."""
        if isinstance(value, dict | list):
            pairs = value.items() if isinstance(value, dict) else (("item", item) for item in value)
            return " ".join(
                f"{self.marker} {_quoted(f'<{name}>')} {self._spelled(item) or _quoted('')} "
                f"{self.marker} {_quoted(f'</{name}>')}"
                for name, item in pairs
                if item is not None
            )
        return _quoted(value if isinstance(value, str) else json.dumps(value))

    def _string(self, plain: Schema, read: set[str]) -> _Form | None:
        least, most = plain.get("minLength", 0), plain.get("maxLength")
        if most is not None and most < least:
            return None
        parts = [rf"/(?s:.{{{max(least, 1)},{'' if most is None else most}}})/"]
        for pattern in plain.get("pattern", []):
            expression = _searched(pattern)
            if expression is None or not self.accepts(expression):
                self.loose.append(f"the pattern {pattern[:60]!r} of {self._tool!r} is left to the tool")
            else:
                parts.append(expression)
        # What the reader would take for another type is not written as a string.
        if read & {"integer", "number"}:
            parts.append(f"~/{_ANY_NUMBER}/")
        if "boolean" in read:
            parts.append("~/true|false/")
        if "null" in read:
            parts.append(f"~/{_BLANKS}null{_BLANKS}/")
        can_be_empty = least == 0 and not plain.get("pattern")
        if most == 0:
            return _Form('""') if can_be_empty else None
        terminal = self._terminal(" & ".join(parts))
        return _Form(f'(""|{terminal})' if can_be_empty else terminal)

    def _number(self, kind: str, plain: Schema, canonical: bool) -> _Form | None:
        def bound(word: str) -> Decimal | None:
            return Decimal(repr(plain[word])) if word in plain else None

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
        return _Form(self._terminal(" & ".join(parts)))

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
        tails = [_Form(tail, (rest,) if more else ())] if tail else [_Form("")]
        name = self._fresh("a")
        self.rules.forms[name] = [_Form("", tuple(needs))]

        def lines(possible: set[str]) -> list[str]:
            # From the back: each optional item brings those before it along.
            text = tails[0].text if rest in possible else ""
            reach = next((n for n, item in enumerate(fixed) if item not in possible), len(fixed))
            if reach < len(fixed):
                text = ""
            for n in range(reach - 1, -1, -1):
                inner = f"{fixed[n]} {text}".strip()
                text = inner if n < least else f"({inner})?"
            return [f"{name}: {text or _quoted('')}"]

        self.rules.after[name] = lines
        return _Form(name, (name,))

    def _item(self, schema: Any) -> str:
        return self._element("item", schema)

    def _element(self, tag: str, schema: Any) -> str:
        """The rule of a value with its tags."""
        value = self._value(schema)
        opening, closing = _quoted(f"<{tag}>"), _quoted(f"</{tag}>")
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
        for name in [n for n in properties if not _NAME.fullmatch(n) or (n == "item" and "array" in read)]:
            if name in required:
                return None
            self.loose.append(f"the property {name[:60]!r} of {self._tool!r} cannot be written as a tag")
            del properties[name]
        least, most = plain.get("minProperties", 0), plain.get("maxProperties", len(properties))
        if not top and ("array" in read or "string" in read):
            least = max(least, 1)  # an empty element would be the list or the string
        if most < max(least, len(required)):
            return None
        elements = {name: self._element(name, schema) for name, schema in properties.items()}
        rule = self._fresh("o")
        self.rules.forms[rule] = [_Form("", tuple(elements[name] for name in required))]
        self.rules.after[rule] = lambda possible: _object_lines(
            rule, [(elements[n], n in required) for n in properties if elements[n] in possible], least, most
        )
        free = len(properties) <= MAX_FREE_ORDER
        return _Form(f"{rule}::0" if free else rule, (rule,))

    def _map(self, plain: Schema, read: set[str]) -> _Form | None:
        """An object with free keys, as JSON; where a string may stand too it would be read as one."""
        if "string" in read:
            return None
        words = ("additionalProperties", "patternProperties", "minProperties", "maxProperties")
        schema: Schema = {word: plain[word] for word in words if word in plain}
        schema |= {word: self._root[word] for word in ("$defs", "definitions") if word in self._root}
        body = f"%json {json.dumps({'type': 'object', **schema})}"
        can_be_empty = "array" not in read and not plain.get("minProperties")
        return _Form(f'(""|{body})' if can_be_empty else body)


def _object_lines(rule: str, elements: Sequence[tuple[str, bool]], least: int, most: int) -> list[str]:
    """The lines of an object's rule: (element's rule, whether it is required), each at most once."""
    if len(elements) > MAX_FREE_ORDER:
        return [f"{rule}: {' '.join(name if needed else f'{name}?' for name, needed in elements)}"]
    if not elements:
        return [f'{rule}::_: "" %if bit_clear(63)']
    bits = f"[0:{len(elements)}]"
    needed = [f"bit_set({n})" for n, (_, required) in enumerate(elements) if required]
    if least > len(needed):
        needed.append(f"bit_count_ge({bits}, {least})")
    ends = ""
    for condition in needed:
        ends = f"and({condition}, {ends})" if ends else condition
    lines = [f'{rule}::_: ""' + (f" %if {ends}" if ends else "")]
    for n, (name, _) in enumerate(elements):
        condition = f"bit_clear({n})"
        if most < len(elements):
            condition = f"and({condition}, bit_count_lt({bits}, {most}))"
        lines.append(f"  | {name} {rule}::set_bit({n}) %if {condition}")
    return lines


def _quoted(text: str) -> str:
    """A literal of the Lark dialect."""
    return json.dumps(text)


def _searched(pattern: str) -> str | None:
    """A terminal for texts in which a JSON schema's pattern is found; None for a pattern that needs more."""
    start = "" if pattern.startswith("^") else "(?s:.*)"
    end = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
    core = pattern.removeprefix("^")
    core = core if end else core[:-1]
    if re.search(r"(?<!\\)(?:\\\\)*[$]|(?<![\[\\])\^|\(\?[=!<]|\\[bB1-9]", core):
        return None
    return "/" + re.sub(r"(?<!\\)/", r"\\/", f"{start}(?:{core}){end}") + "/"


def _fits(value: Any, plain: Schema) -> bool:
    """Whether a listed value is of a type its schema names."""
    if "type" not in plain:
        return True
    name = json_type(value)
    return name in plain["type"] or (name == "integer" and "number" in plain["type"])
