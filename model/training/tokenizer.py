"""Make nano's tokenizer: `python -m pilotfish.model.training.tokenizer OUT`.

2048 ids: the 1987 ordinary ones first, then M3's 61 added tokens in the published order, so that a marker's
id is its published id minus 198013. An ordinary token is a byte or a whole pre-token; there are no merges
between the two. What every conversation repeats (tags, the tools' schemas, the words of instructions) is one
token a word; any other word, such as a label on the screen or a string to type, is spelled letter by letter,
so that a small model can match it against the letters that it sees and copy it.

The corpus is what the small model reads and writes: renderings of its own chat format, the tools' schemas,
MiniWoB++'s sentences, English and Python from the standard library. Nothing of a held-out MiniWoB++ task is
read. Other versions of Python or miniwob change the result.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import itertools
import json
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from pilotfish.model.chat import compile_template, render_template
from pilotfish.model.protocol import Message, ToolCall, ToolSpec
from pilotfish.model.tokenizer import DOCUMENT_START, TURN_END
from pilotfish.model.training.words import training_words

VOCAB_SIZE = 2048
COMMON_WORDS = 250  # of code and prose that become tokens
SPOKEN = ("conversations", "sentences")

# M3's added tokens, in the order of their ids from 200000 on.
ADDED_TOKENS = (
    "]!p~[ <fim_prefix> <fim_middle> <fim_suffix> <fim_pad> <reponame> <filename> <gh_stars> "
    "<issue_start> <issue_comment> <issue_closed> <jupyter_start> <jupyter_text> <jupyter_code> "
    "<jupyter_output> <empty_output> <commit_before> <commit_msg> <commit_after> ]~b] [e~[ ]!d~[ "
    "<function_call> <code_interpreter> ]<]speech[>[ ]<]image[>[ ]<]video[>[ ]<]start_of_speech[>[ "
    "]<]end_of_speech[>[ ]<]start_of_image[>[ ]<]end_of_image[>[ ]<]start_of_video[>[ ]<]end_of_video[>[ "
    "]<]vision_pad[>[ ]~!b[ <jupyter_error> <add_file> <delete_file> <rename_file> <edit_file> "
    "<commit_message> <empty_source_file> <repo_struct> <code_context> <file_content> <source_files> "
    "<pr_start> <review_comment> <filepath> <file_sep> <think> </think> <tool_call> </tool_call> "
    "]<]frame[>[ ]<]start_of_frame[>[ ]<]end_of_frame[>[ <|content_altered_placeholder|> ]<]minimax[>[ "
    "<mm:think> </mm:think>"
)

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PRE_TOKENS = "|".join(
    (
        # A whole tag of the tool-call grammar, then a snake_case name: each becomes one token.
        r'</?[A-Za-z_]+(?: name="[A-Za-z_]+")?>',
        r" ?[a-z]+(?:_[a-z]+)+",
        # Words as in o200k, but only a blank may lead them: a label is spelled alike in "Ok" and <text>Ok.
        f" ?{_UPPER}*{_LOWER}+{_SUFFIX}",
        f" ?{_UPPER}+{_LOWER}*{_SUFFIX}",
        # One digit is one token, so that a place keeps its meaning. Punctuation stops before a tag.
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}][^\s\p{L}\p{N}<]*[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

HELD_OUT_TASKS = (
    "click-test-transfer click-checkboxes-transfer click-dialog-2 click-color enter-text-2 "
    "login-user-popup multi-orderings social-media-some email-inbox-noscroll use-slider-2"
)

ACTIONS = (
    "key type mouse_move left_click right_click middle_click double_click triple_click left_click_drag "
    "scroll wait screenshot hold_key left_mouse_down left_mouse_up cursor_position zoom done infeasible"
)
KEYS = (
    "Return Tab Escape BackSpace Delete Home End Page_Up Page_Down Up Down Left Right space F5 ctrl+a "
    "ctrl+c ctrl+v ctrl+x ctrl+z ctrl+s shift+Tab alt+Tab alt+F4"
)
TEMPLATES = (
    'Click on the "{a}" button.',
    "Click the {a} button.",
    'Enter "{a}" into the text field and press Submit.',
    'Enter the username "{a}" and the password "{b}" into the text fields and press login.',
    "Select {a} and click Submit.",
    "Select {a}, {b} and click Submit.",
    "Select {a} from the list and click Submit.",
    'Click on the link "{a}".',
    "Enter {a} as the date and hit submit.",
    'Type "{a}" into the search box, then press Search.',
    'Find the email by {a} and click the trash icon to delete it. Send "{b}" to {a}.',
    "Focus into the {a} input textbox. Click on the {b} colored box.",
    'Copy the text in the textarea below, paste it into the textbox and press "{a}".',
    "Locate {a}",
    "Read {a}",
    "List the screen",
)


def added_tokens() -> list[str]:
    """The published spellings; inside the bracketed ones the words are parted by blanks."""
    return [t.replace("_", " ") if t.startswith("]<]") else t for t in ADDED_TOKENS.split()]


def train(corpus: Iterable[tuple[str, str]]) -> tokenizers.Tokenizer:
    """Choose the words of (source, text) pairs; the same pairs give the same tokenizer."""
    markers = added_tokens()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = choose_words(corpus, VOCAB_SIZE - len(markers) - len(alphabet))
    vocab = {token: i for i, token in enumerate([*alphabet, *words])}
    # Without merges a pre-token is one token when the vocabulary has it, and its bytes otherwise.
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in markers])
    if tokenizer.get_vocab_size() != VOCAB_SIZE or tokenizer.token_to_id(markers[-1]) != VOCAB_SIZE - 1:
        raise ValueError(
            f"the corpus is too small for {VOCAB_SIZE} ids: it gave {tokenizer.get_vocab_size()}"
        )
    return tokenizer


def choose_words(corpus: Iterable[tuple[str, str]], count: int) -> list[str]:
    """The `count` pre-tokens of more than one byte that become tokens, in the byte-level alphabet.

    First everything that recurs in conversations and task sentences, then the commonest words of code and
    prose, then whatever is no word (blanks, brackets, tags) by how many bytes it saves.
    """
    at_markers = re.compile("|".join(map(re.escape, sorted(added_tokens(), key=len, reverse=True))))
    cut = _pre_tokenizer()
    seen: dict[str, Counter[str]] = {}
    for source, text in corpus:
        counter = seen.setdefault(source, Counter())
        for piece in at_markers.split(text):
            counter.update(token for token, _ in cut.pre_tokenize_str(piece) if len(token) > 1)
    spoken = Counter({t: n for source in SPOKEN for t, n in seen.pop(source, Counter()).items() if n > 1})
    written = sum(seen.values(), Counter[str]())
    is_word = re.compile("\u0120?[A-Za-z]+").fullmatch  # U+0120 is the blank that leads a word

    def saved(tokens: Iterable[str]) -> list[str]:
        return sorted(tokens, key=lambda t: (-written[t] * (len(t) - 1), t))

    common = saved(t for t in written if is_word(t))[:COMMON_WORDS]
    chosen = dict.fromkeys([*sorted(spoken), *common, *saved(t for t in written if not is_word(t))])
    return list(chosen)[:count]


def _pre_tokenizer() -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def write(tokenizer: tokenizers.Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, as transformers' `AutoTokenizer` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {
        str(tokenizer.token_to_id(marker)): {
            "content": marker,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": False,
        }
        for marker in added_tokens()
    }
    config = {
        "added_tokens_decoder": added,
        "bos_token": DOCUMENT_START,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_max_length": 4096,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def corpus(miniwob: Path, template_text: str) -> Iterator[tuple[str, str]]:
    """The training texts as (source, text)."""
    yield from (("sentences", text) for text in miniwob_sentences(miniwob))
    yield from (("conversations", text) for text in conversations(random.Random(0), template_text))
    yield from standard_library()


def miniwob_sentences(html: Path) -> list[str]:
    """Sentences in the string literals of MiniWoB++'s pages, held-out tasks left out."""
    pages = [p for p in sorted((html / "miniwob").glob("*.html")) if p.stem not in HELD_OUT_TASKS.split()]
    literal = re.compile(r"""'((?:[^'\\\n]|\\.){2,200})'|"((?:[^"\\\n]|\\.){2,200})\"""")
    sentences = []
    for page in [*pages, html / "common" / "ui_utils.js"]:
        for match in literal.finditer(page.read_text(encoding="utf-8")):
            text = re.sub(r"<[^>]*>", "", match.group(1) or match.group(2)).strip()
            if len(re.findall(r"\b[A-Za-z]+\b", text)) >= 3 and not re.search(r"[{}=;$/#]", text):
                sentences.append(text)
    return sentences


def conversations(rng: random.Random, template_text: str) -> Iterator[str]:
    """Renderings of whole conversations, coding ones among them, with made-up calls of every tool.

    Names and labels are digits here: they are not what should become a token.
    """
    template = compile_template(template_text)
    words = training_words()
    developer = Message("developer", (words.developer,))
    for n in range(1500):
        turns = [developer] if n % 10 == 0 else []
        turns.append(Message("user", (rng.choice(TEMPLATES).format(a="7", b="8"),)))
        for _ in range(4):
            turns.append(Message("assistant", tool_calls=(_call(rng, "7"),)))
            turns.append(Message("tool", (f"ok\n{rng.choice(['settled', 'unchanged', 'unsettled'])}",)))
        tools = [words.tool, *_tool_specs()] if n % 50 == 0 else []
        yield render_template(template, turns, tools)


def _call(rng: random.Random, word: str) -> ToolCall:
    if rng.random() < 0.1:
        command = rng.choice(
            ["ls -la", "git status", "pytest -q", "cat README.md", "python main.py", "make test"]
        )
        return ToolCall("", "shell", {"command": command, "timeout": rng.choice([10, 60, 120])})
    if rng.random() < 0.1:
        kind = rng.choice(["view", "create", "replace", "insert"])
        edit = {
            "command": kind,
            "path": f"src/{word.lower()}.py",
            "old_text": word,
            "new_text": f"{word}\n",
        }
        return ToolCall("", "edit", edit)
    action = rng.choice(ACTIONS.split())
    arguments: dict[str, Any] = {"action": action}
    if "click" in action or action in ("mouse_move", "scroll", "left_mouse_down", "left_mouse_up"):
        arguments["coordinate"] = [rng.randrange(1001), rng.randrange(1001)]
    if action == "left_click_drag":
        arguments["start_coordinate"] = [rng.randrange(1001), rng.randrange(1001)]
    if action == "scroll":
        arguments |= {
            "scroll_direction": rng.choice(["up", "down", "left", "right"]),
            "scroll_amount": rng.randrange(9),
        }
    if action in ("wait", "hold_key"):
        arguments["duration"] = rng.randrange(1, 6)
    if action in ("key", "hold_key"):
        arguments["text"] = rng.choice(KEYS.split())
    if action == "type":
        arguments["text"] = word
    if action == "zoom":
        arguments["region"] = [rng.randrange(1001) for _ in range(4)]
    return ToolCall("", "computer", arguments)


def _tool_specs() -> Iterator[ToolSpec]:
    """Schemas in the words the real ones use; the corpus needs their spelling, not their exact text."""
    text, number = {"type": "string"}, {"type": "integer"}
    yield ToolSpec(
        "shell",
        "Run a command in the sandbox and return its output and exit code.",
        {"type": "object", "properties": {"command": text, "timeout": number}, "required": ["command"]},
    )
    names = ("command", "path", "old_text", "new_text", "line", "start_line", "end_line")
    yield ToolSpec(
        "edit",
        "View, create or change a file: the command is view, create, replace or insert.",
        {"type": "object", "properties": dict.fromkeys(names, text), "required": ["command", "path"]},
    )


def standard_library() -> Iterator[tuple[str, str]]:
    """English from docstrings and Python from sources of the running interpreter's standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(folder.glob("*.py")):
        source = path.read_text(encoding="utf-8", errors="replace")
        for docstring in itertools.islice(re.findall(r'"""(.+?)"""', source, re.DOTALL), 20):
            yield "docstrings", inspect.cleandoc(docstring)
        yield "sources", source[:2000]


def main() -> None:
    """Train and write; says what was read."""
    parser = argparse.ArgumentParser(prog="pilotfish.model.training.tokenizer", description=__doc__)
    parser.add_argument("out", type=Path, help="folder to write tokenizer.json and tokenizer_config.json to")
    out: Path = parser.parse_args().out
    spec = importlib.util.find_spec("miniwob")
    if spec is None or spec.origin is None:
        parser.error("the package miniwob is missing; run `pip install miniwob`")
    template = Path(__file__).parents[1] / "nano" / "chat_template.jinja"
    texts = list(corpus(Path(spec.origin).parent / "html", template.read_text(encoding="utf-8")))
    for source, group in itertools.groupby(sorted(texts), key=lambda item: item[0]):
        sizes = [len(text) for _, text in group]
        print(f"{source}: {len(sizes)} texts, {sum(sizes)} characters")
    tokenizer = train(texts)
    write(tokenizer, out)
    print(f"{out}: {tokenizer.get_vocab_size()} ids")


if __name__ == "__main__":
    main()
