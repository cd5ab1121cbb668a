"""The tokenizer: nano's own, and one of another checkpoint's shape."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import pilotfish.model
from pilotfish.model.protocol import ModelError
from pilotfish.model.tokenizer import (
    CUTTABLE,
    DOCUMENT_START,
    IMAGE,
    NAMESPACE,
    THINK_END,
    TURN_END,
    TURN_START,
    VIDEO,
    Tokenizer,
    byte_alphabet,
)
from pilotfish.model.training.tokenizer import HELD_OUT_TASKS, added_tokens, miniwob_sentences

NANO = Path(pilotfish.model.__file__).parent / "nano"
TOKENIZER = Tokenizer.from_folder(NANO)
LIBRARY = tokenizers.Tokenizer.from_file(str(NANO / "tokenizer.json"))
MARKERS = sorted(TOKENIZER.markers)

# Text that spells markers, whole and in halves, among ordinary text.
TRICKY = st.lists(
    st.one_of(
        st.sampled_from(MARKERS), st.sampled_from(["]~", "b]", "]<]", "[>[", "<", ">"]), st.text(max_size=8)
    ),
    max_size=8,
).map("".join)


def of_o200k() -> Tokenizer:
    """Nano's vocabulary behind the pattern of o200k, which M3's own tokenizer is of the family of."""
    described = json.loads((NANO / "tokenizer.json").read_text())
    split = described["pre_tokenizer"]["pretokenizers"][0]
    (split["pattern"]["Regex"],) = CUTTABLE - {split["pattern"]["Regex"]}
    return Tokenizer(described)


CUT_TEXT = st.lists(
    st.one_of(
        st.sampled_from(
            ["\n", "\r\n", "a", "Ab", " ", "  ", "\n\n", "\t", "'s", "1", "/", "<a", "</b>", "_x", "."]
        ),
        st.sampled_from(
            ["\N{GRINNING FACE}", "\u0301", "\ud83d", "\ude00", "\x85", "\u2028", "\u017f", *MARKERS]
        ),
        st.text(max_size=3),
    ),
    max_size=30,
).map("".join)


@pytest.mark.parametrize("tokenizer", [TOKENIZER, of_o200k()], ids=["nano", "o200k"])
@settings(max_examples=300, deadline=None)
@given(texts=st.lists(CUT_TEXT, max_size=4), piece=st.integers(0, 9), at_once=st.integers(1, 40))
def test_cutting_a_text_changes_no_id(
    tokenizer: Tokenizer, texts: list[str], piece: int, at_once: int
) -> None:
    def whole(text: str) -> list[int]:
        valid = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return tokenizer._ordinary.encode(valid, add_special_tokens=False).ids

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pilotfish.model.tokenizer._PIECE", piece)
        patch.setattr("pilotfish.model.tokenizer._AT_ONCE", at_once)
        assert list(tokenizer.encode_each(texts)) == [whole(text) for text in texts]
        assert [tokenizer.encode(text) for text in texts] == [whole(text) for text in texts]


def test_long_texts_are_cut() -> None:
    text = "Say it.\n" * 9000
    assert len(list(TOKENIZER._pieces(text))) == 5
    other = json.loads((NANO / "tokenizer.json").read_text())
    other["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\s*\w+"
    assert len(list(Tokenizer(other)._pieces(text))) == 1, "who knows where another pattern may be cut"


def test_nanos_ids_are_m3s_in_small() -> None:
    assert TOKENIZER.vocab_size == 2048
    assert len(added_tokens()) == 61
    # Published ids, less the 198013 ordinary tokens nano does without.
    published = {
        "]!p~[": 200000,
        "<fim_prefix>": 200001,
        "<fim_pad>": 200004,
        TURN_START: 200019,
        TURN_END: 200020,
        "]!d~[": 200021,
        "<code_interpreter>": 200023,
        "]<]speech[>[": 200024,
        IMAGE: 200025,
        VIDEO: 200026,
        "]<]start of image[>[": 200029,
        "]<]end of video[>[": 200032,
        "]<]vision pad[>[": 200033,
        DOCUMENT_START: 200034,
        "<think>": 200050,
        "</tool_call>": 200053,
        NAMESPACE: 200058,
        "<|content_altered_placeholder|>": 200057,
        "<mm:think>": 200059,
        THINK_END: 200060,
    }
    assert {marker: TOKENIZER.id(marker) for marker in published} == {
        marker: number - 198013 for marker, number in published.items()
    }
    assert (TOKENIZER.eos_id, TOKENIZER.bos_id) == (2007, 2021)
    described = json.loads((NANO / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    assert not any(token["special"] for token in described)


@pytest.mark.parametrize(
    "word",
    [
        *(
            "button",
            " button",
            "Click",
            "left_click",
            "type",
            "scroll",
            "screenshot",
            "done",
        ),
        *(
            "infeasible",
            "coordinate",
            "settled",
            "unchanged",
            "unsettled",
            "ok",
        ),
        *(
            '<invoke name="computer">',
            "</invoke>",
            "<action>",
            "</action>",
            "<coordinate>",
            "<item>",
            "</item>",
        ),
        *('<invoke name="shell">', '<invoke name="edit">', "<text>", "</text>", "<response>", "</response>"),
    ],
)
def test_words_of_the_interface_are_one_token(word: str) -> None:
    assert len(TOKENIZER.encode(word)) == 1


def test_digits_and_labels_are_spelled_alike_everywhere() -> None:
    one, two = TOKENIZER.encode("1"), TOKENIZER.encode("2")
    assert TOKENIZER.encode("12") == one + two
    label = TOKENIZER.encode("Ok")
    assert TOKENIZER.encode('"Ok"')[1:-1] == TOKENIZER.encode("<text>Ok</text>")[1:-1] == label
    assert [TOKENIZER.decode([i]) for i in TOKENIZER.encode("Kasie vestibulum")] == [*"Kasie", *" vestibulum"]


@settings(max_examples=300, deadline=None)
@given(TRICKY)
def test_ordinary_text_is_never_a_marker_and_comes_back_whole(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert not set(ids) & set(TOKENIZER.markers.values())
    assert TOKENIZER.decode(ids) == text


@settings(max_examples=300, deadline=None)
@given(TRICKY)
def test_trusted_text_reads_as_the_library_reads_it(text: str) -> None:
    ids = TOKENIZER.encode_markers(text)
    assert ids == LIBRARY.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids) == text


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2047), max_size=30))
def test_the_incremental_decoder_never_hands_out_half_a_character(ids: list[int]) -> None:
    decoder = TOKENIZER.decoder()
    parts = [decoder.feed(token) for token in ids]
    assert "".join(parts) + decoder.close() == TOKENIZER.decode(ids)


def test_a_character_of_several_tokens_comes_out_at_its_last() -> None:
    decoder = TOKENIZER.decoder()
    ids = TOKENIZER.encode("\U0001f41f")
    assert len(ids) == 4
    assert [decoder.feed(token) for token in ids] == ["", "", "", "\U0001f41f"]
    cut = TOKENIZER.decoder()
    assert [cut.feed(token) for token in ids[:2]] + [cut.close()] == ["", "", "\N{REPLACEMENT CHARACTER}"]


def test_surrogates_and_unused_ids_have_a_text() -> None:
    assert (
        TOKENIZER.decode(TOKENIZER.encode("a\ud83d\udc1fb\ud800c"))
        == "a\U0001f41fb\N{REPLACEMENT CHARACTER}c"
    )
    assert TOKENIZER.decode([5000]) == "\N{REPLACEMENT CHARACTER}"


def test_the_byte_alphabet_is_the_librarys() -> None:
    assert set(byte_alphabet().values()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def test_missing_and_broken_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*tokenizer.json"):
        Tokenizer.from_folder(tmp_path)
    for content in ["", "{", "[]", "{}", '{"added_tokens": [], "model": {"vocab": 3}}', "\x00"]:
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ModelError, match="fetch the checkpoint again") as caught:
            Tokenizer.from_folder(tmp_path)
        assert "\n" not in str(caught.value)
    (tmp_path / "tokenizer.json").write_bytes(b'{"added_tokens": "\xff')
    with pytest.raises(ModelError, match="fetch the checkpoint again"):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(ModelError, match="no token '<nothing>'"):
        TOKENIZER.id("<nothing>")


@pytest.fixture
def other() -> dict[str, Any]:
    """nano's file in another shape: markers special, also in the vocabulary, with other ids and a gap."""
    described: dict[str, Any] = json.loads((NANO / "tokenizer.json").read_text(encoding="utf-8"))
    for token in described["added_tokens"]:
        token["id"] += 1000
        token["special"] = True
        described["model"]["vocab"][token["content"]] = token["id"]
    described["model"]["ignore_merges"] = True
    return described


def test_markers_are_found_by_spelling_and_stay_out_of_text(other: dict[str, Any]) -> None:
    tokenizer = Tokenizer(other)
    assert tokenizer.id(TURN_END) == 3007
    assert tokenizer.vocab_size == 3048
    assert tokenizer.encode_markers("hi" + TURN_END) == [*tokenizer.encode("hi"), 3007]
    for marker in MARKERS:
        ids = tokenizer.encode(marker)
        assert max(ids) < 1987
        assert tokenizer.decode(ids) == marker
    assert tokenizer.decode([3007]) == TURN_END


def test_transformers_reads_nano_alike() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(NANO)
    assert (theirs.eos_token_id, theirs.bos_token_id, len(theirs)) == (2007, 2021, 2048)
    text = f'{DOCUMENT_START}{TURN_START}user\nClick on the "Ok" button at 053.{TURN_END}\n'
    assert theirs.encode(text, add_special_tokens=False) == TOKENIZER.encode_markers(text)
    assert theirs.decode(TOKENIZER.encode_markers(text), skip_special_tokens=False) == text


def test_held_out_tasks_are_not_in_the_corpus(tmp_path: Path) -> None:
    (tmp_path / "miniwob").mkdir()
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "ui_utils.js").write_text('words = ["lorem", "ipsum"]')
    for name in [*HELD_OUT_TASKS.split(), "click-test"]:
        (tmp_path / "miniwob" / f"{name}.html").write_text(f"x = 'secret'; y = 'Find the {name} now.'")
    assert miniwob_sentences(tmp_path) == ["Find the click-test now."]


def test_training_is_deterministic(tmp_path: Path) -> None:
    if importlib.util.find_spec("miniwob") is None:
        pytest.skip("the package miniwob is not installed")
    for name in "ab":
        subprocess.run(
            [sys.executable, "-m", "pilotfish.model.training.tokenizer", str(tmp_path / name)],
            check=True,
            capture_output=True,
            timeout=120,
        )
    for file in ["tokenizer.json", "tokenizer_config.json"]:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    config = "tokenizer_config.json"
    assert (tmp_path / "a" / config).read_bytes() == (NANO / config).read_bytes()
    assert Tokenizer.from_folder(tmp_path / "a").markers == TOKENIZER.markers
