"""Constrained decoding: from the moment a model opens a block of calls, only tokens that keep it valid.

Thinking and text stay free, at no cost. The namespace token opens the block; from there on a grammar built
from the tools' schemas (`grammar.py`, run by llguidance) says which tokens may come, up to the end of the
answer. Outside the block one thing is kept: the namespace marker is written as its token or not at all, since
spelt out in letters it would open a block unseen.
"""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

import llguidance
import numpy as np
import numpy.typing as npt

from pilotfish.model.grammar import CallGrammar, Fault, call_grammar
from pilotfish.model.protocol import ModelError, ToolSpec
from pilotfish.model.tokenizer import NAMESPACE, THINK_END, THINK_START, Tokenizer

_log = logging.getLogger(__name__)

ToolChoice = Literal["auto", "required", "none"]
Mask = npt.NDArray[np.bool_]

KEPT_GRAMMARS = 8
MAX_ITEMS = 20_000
"""llguidance's bound on what one position may branch into: enough for tools of several thousand fields."""
MAX_SCHEMAS = 4_000_000
"""Characters of all tools' schemas: more cannot fit into a context, and would take long to compile."""
_MARKER = NAMESPACE.encode()
_SPECIAL = re.compile(rb"\xff\[(\d+)\]")  # as llguidance writes tokens that no text spells


class CallConstraints:
    """The grammars of one checkpoint's tokenizer; those of the last few sets of tools are kept."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: frozenset[int]) -> None:
        self.tokenizer, self.stop_ids = tokenizer, stop_ids
        self.marker_id = tokenizer.id(NAMESPACE)
        self.vocab_size = tokenizer.vocab_size
        self.only_marker = self._mask(frozenset({self.marker_id}))
        self._library: llguidance.LLTokenizer | None = None
        self._matchers: OrderedDict[str, tuple[llguidance.LLMatcher, CallGrammar]] = OrderedDict()
        self._completing: dict[int, Mask] = {}
        self._with_last_byte: list[tuple[int, bytes]] | None = None

    def start(
        self, tools: Sequence[ToolSpec], *, in_thinking: bool, choice: ToolChoice = "auto"
    ) -> CallConstraint:
        """The constraint of one answer.

        in_thinking: the prompt ends inside the model's thinking. choice: "required" makes everything behind
        the thinking a call, "none" lets no call begin. Raises ModelError for tools that can never be called.
        """
        if choice == "required" and not tools:
            raise ModelError("A call is required but there is no tool; give tools or choose auto.")
        if tools and choice != "none":
            self._compiled(tools)
        return CallConstraint(self, tools, in_thinking, choice if tools else "none")

    def loose(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """What of the tools' schemas is not enforced, a sentence each."""
        return self._compiled(tools)[1].loose

    def matcher(self, tools: Sequence[ToolSpec]) -> llguidance.LLMatcher:
        """A fresh matcher of a block of calls of these tools."""
        return self._compiled(tools)[0].deep_copy()

    def _compiled(self, tools: Sequence[ToolSpec]) -> tuple[llguidance.LLMatcher, CallGrammar]:
        try:
            key = json.dumps([(tool.name, tool.parameters, tool.exact) for tool in tools], sort_keys=True)
        except RecursionError:
            raise ModelError("A tool's schema nests too deeply to be read; simplify it.") from None
        if len(key) > MAX_SCHEMAS:
            raise ModelError(
                f"The tools' schemas have {len(key):,} characters, more than a model reads; "
                f"give at most {MAX_SCHEMAS:,}."
            )
        if key not in self._matchers:
            grammar = call_grammar(tools, self.marker_id, self._fault)
            matcher = llguidance.LLMatcher(
                self._tokens(),
                llguidance.LLMatcher.grammar_from_lark(grammar.lark),
                log_level=0,
                limits=llguidance.LLParserLimits(max_items_in_row=MAX_ITEMS, verbose_errors=False),
            )
            if matcher.is_error():
                reason = matcher.get_error().strip().splitlines()[0]
                raise ModelError(f"The tools' schemas make no grammar ({reason}); simplify them.")
            self._matchers[key] = matcher, grammar
            while len(self._matchers) > KEPT_GRAMMARS:
                self._matchers.popitem(last=False)
        self._matchers.move_to_end(key)
        return self._matchers[key]

    def _tokens(self) -> llguidance.LLTokenizer:
        if self._library is None:
            self._library = llguidance.LLTokenizer(_Vocabulary(self.tokenizer), n_vocab=self.vocab_size)
        return self._library

    def _fault(self, rule: str) -> Fault | None:
        """Why no text can be held to a rule, which may be a terminal's expression; None if one can."""
        lark = f"start: {rule}" if rule.startswith("%") else f"start: X\nX: {rule}"
        matcher = llguidance.LLMatcher(
            self._tokens(), llguidance.LLMatcher.grammar_from_lark(lark), log_level=0
        )
        if not matcher.is_error():
            matcher.compute_bitmask()
        if not matcher.is_error():
            return None
        return "nothing fits" if "NoExtensionBias" in matcher.get_error() else "too much"

    def _mask(self, ids: frozenset[int]) -> Mask:
        mask = np.zeros(self.vocab_size, dtype=np.bool_)
        mask[[i for i in ids if i < self.vocab_size]] = True
        return mask

    def completing(self, begun: int) -> Mask:
        """The tokens that would complete the marker's spelling when its first `begun` bytes are written."""
        if begun not in self._completing:
            if self._with_last_byte is None:
                ordinary = set(range(self.vocab_size)) - set(self.tokenizer.markers.values())
                spelled = ((i, self.tokenizer.token_bytes(i)) for i in sorted(ordinary))
                self._with_last_byte = [(i, text) for i, text in spelled if _MARKER[-1:] in text]
            self._completing[begun] = self._mask(
                frozenset(i for i, text in self._with_last_byte if _MARKER in _MARKER[:begun] + text)
            )
        return self._completing[begun]


class CallConstraint:
    """Which tokens may come next in one answer; told of every token that came."""

    def __init__(
        self, shared: CallConstraints, tools: Sequence[ToolSpec], in_thinking: bool, choice: ToolChoice
    ) -> None:
        self._shared, self._tools, self._choice = shared, tools, choice
        self._thinking, self._fresh = in_thinking, True
        self._matcher: llguidance.LLMatcher | None = None
        self._given_up = False
        self._begun = 0  # bytes of the marker's spelling at the end of the text
        markers = shared.tokenizer.markers
        self._think_start, self._think_end = markers.get(THINK_START), markers.get(THINK_END)

    @property
    def in_call(self) -> bool:
        """Whether a block of calls has been opened."""
        return self._matcher is not None

    def allowed(self, in_code: bool = False) -> Mask | None:
        """The ids that may come next [vocabulary], None for all.

        in_code: the text stands inside code, where no call is read and so none may begin.
        """
        if self._thinking:
            return None
        if self._matcher is not None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            mask = np.unpackbits(bits, bitorder="little")[: self._shared.vocab_size].astype(np.bool_)
            mask &= ~self._shared.completing(self._begun)
            if self._matcher.is_error() or not mask.any():
                self._give_up()
                return None
            return mask
        if self._given_up:
            return None
        if self._choice == "required":
            return self._shared.only_marker
        mask = ~self._shared.completing(self._begun)
        if in_code or self._choice == "none":
            mask[self._shared.marker_id] = False
        return mask

    def ahead(self) -> list[int]:
        """Tokens that will probably come next, since the schema leaves only one text."""
        if self._matcher is None:
            return []
        # Of a copy: the question leaves a matcher in a state in which it takes no more tokens.
        given: bytes = self._matcher.deep_copy().compute_ff_bytes()
        ids: list[int] = []
        for n, piece in enumerate(_SPECIAL.split(given)):
            if n % 2:
                ids.append(int(piece))
            elif piece:
                ids += self._shared.tokenizer.encode(piece.decode(errors="replace"))
        return ids

    def take(self, token: int) -> None:
        """One more token of the answer, one that `allowed` named."""
        first, self._fresh = self._fresh, False
        if self._thinking:
            self._thinking = token != self._think_end
            return
        if first and token == self._think_start:
            self._thinking = True
            return
        if self._matcher is None and token == self._shared.marker_id and not self._given_up:
            self._matcher = self._shared.matcher(self._tools)
        if self._matcher is not None and not self._matcher.consume_token(token):
            self._give_up()
        self._begun = self._spelled_so_far(token)

    def _give_up(self) -> None:
        """Leave the rest of the answer free: a fault of the library must not cost the answer."""
        assert self._matcher is not None
        reason = (self._matcher.get_error().strip().splitlines() or ["no reason given"])[0]
        _log.warning("A call is not held to its schema (%s); its tool checks it.", reason)
        self._matcher, self._given_up = None, True

    def _spelled_so_far(self, token: int) -> int:
        """How many bytes of the marker's spelling the text ends with."""
        if token in self._shared.tokenizer.markers.values():
            return 0
        text = _MARKER[: self._begun] + self._shared.tokenizer.token_bytes(token)
        return next((n for n in range(len(_MARKER) - 1, 0, -1) if text.endswith(_MARKER[:n])), 0)


class _Vocabulary(llguidance.TokenizerWrapper):
    """The vocabulary as llguidance takes it: M3's markers are special tokens, which no text can spell."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = tokenizer.eos_id, tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        # Tags such as <filename> are tokens of their own in M3's vocabulary, but plain text to the grammar.
        plain = {spelling for spelling in tokenizer.markers if _is_tag(spelling)}
        self.special_token_ids = [i for spelling, i in tokenizer.markers.items() if spelling not in plain]
        self._special = frozenset(self.special_token_ids)

    def __call__(self, text: str | bytes) -> list[int]:
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        ids: list[int] = []
        for piece in self._tokenizer.split_markers(text):
            if isinstance(piece, int) and piece in self._special:
                piece = self._tokenizer.token_bytes(piece).decode()
            ids += [piece] if isinstance(piece, int) else self._tokenizer.encode(piece)
        return ids


def _is_tag(spelling: str) -> bool:
    name = spelling.removeprefix("<").removeprefix("/").removesuffix(">")
    return spelling in (f"<{name}>", f"</{name}>") and name.replace("_", "a").isalnum()
