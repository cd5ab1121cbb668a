"""Prompts and their caches: what is reused, and that reuse changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pilotfish.model.images import Media, clip_patches
from pilotfish.model.m3 import M3
from pilotfish.model.protocol import Clip, Image, ModelError
from pilotfish.model.sequence import Tokens, TokenSequence

IMAGE_ID, VIDEO_ID = 500, 501
CHUNK = 32

Build = Callable[..., tuple[Tokens, list[Media]]]


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def model(tiny_model: Callable[..., M3], request: pytest.FixtureRequest) -> M3:
    return tiny_model(0).to(request.param).requires_grad_(False)


def features_of(model: M3, media: list[Media]) -> Callable[[int], Tensor]:
    def features(number: int) -> Tensor:
        patches, grids = clip_patches(media[number])
        with torch.no_grad():
            return model.encode_media(torch.from_numpy(patches), grids)

    return features


def prompt(*parts: int | list[int] | Media) -> tuple[Tokens, list[Media]]:
    """A prompt of text (a seed and how many tokens, or the ids) and media, as a chat template lays it out."""
    ids: list[int] = []
    media: list[Media] = []
    for part in parts:
        if isinstance(part, Clip):
            ids += [3, 4, *[VIDEO_ID] * 6, 5, 3, 4, *[VIDEO_ID] * 6, 5]
            media.append(part)
        elif isinstance(part, Image):
            ids += [4, *[IMAGE_ID] * 4, 5]
            media.append(part)
        elif isinstance(part, list):
            ids += part
        else:
            ids += text(part, 50)
    return Tokens.lay_out(ids, media, (IMAGE_ID, VIDEO_ID)), media


def text(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(10, IMAGE_ID, length).tolist()


def cold(model: M3, tokens: Tokens, media: list[Media]) -> Tensor:
    scores = TokenSequence(model, chunk=CHUNK).extend(tokens, features_of(model, media))
    assert scores is not None
    return scores


def test_chunks_give_what_one_pass_gives(
    tiny_model: Callable[..., M3], make_clip: Callable[..., Clip], make_image: Callable[..., Image]
) -> None:
    model = tiny_model(0).requires_grad_(False)
    tokens, media = prompt(1, make_clip(0), 2, make_image(0), 3)
    whole = torch.cat([features_of(model, media)(n) for n in range(2)])
    expected = model(torch.from_numpy(tokens.ids)[None], media=whole)[0, -1]
    assert torch.allclose(cold(model, tokens, media), expected, atol=1e-5)


def test_reuse_gives_the_same_bits(
    model: M3, make_clip: Callable[..., Clip], make_image: Callable[..., Image]
) -> None:
    """Conversations that grow, shrink and change their pictures, on one sequence and on fresh ones."""
    rng = random.Random(0)
    sequence = TokenSequence(model, chunk=CHUNK)
    parts: list[int | Media] = [0]
    reused = 0
    for turn in range(25):
        match rng.choice(["grow", "grow", "grow", "replace", "shrink"]):
            case "grow":
                parts += [rng.choice([make_clip(turn), make_image(turn), turn])]
            case "replace":
                place = rng.randrange(len(parts))
                old = parts[place]
                new: int | Media = turn
                if not isinstance(old, int):
                    new = make_clip(turn) if isinstance(old, Clip) else make_image(turn)
                parts[place] = new
            case _:
                del parts[max(1, rng.randrange(len(parts))) :]
        if rng.random() < 0.3:
            sequence.truncate(rng.randint(0, sequence.length))
        tokens, media = prompt(*parts)
        reused += sequence.reusable(tokens)
        scores = sequence.extend(tokens, features_of(model, media))
        assert scores is not None
        fresh = TokenSequence(model, chunk=CHUNK)
        expected = fresh.extend(tokens, features_of(model, media))
        assert expected is not None
        for _ in range(rng.randint(0, 5)):
            assert torch.equal(scores, expected)
            token = int(scores[:IMAGE_ID].argmax())
            scores, expected = sequence.append(token), fresh.append(token)
        assert torch.equal(scores, expected)
        assert sequence.length == fresh.length
    assert reused > 1000


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 64, 100])
def test_truncation_anywhere(model: M3, make_clip: Callable[..., Clip], length: int) -> None:
    tokens, media = prompt(1, make_clip(0), 2)
    sequence = TokenSequence(model, chunk=CHUNK)
    expected = sequence.extend(tokens, features_of(model, media))
    sequence.truncate(length)
    assert sequence.length == length
    assert sequence.reusable(tokens) == length // CHUNK * CHUNK
    again = sequence.extend(tokens, features_of(model, media))
    assert expected is not None
    assert again is not None
    assert torch.equal(expected, again)


def test_a_fork_is_independent(model: M3) -> None:
    (left, _), (right, _) = prompt(1, 2, 3), prompt(1, 2, 4)
    trunk = TokenSequence(model, chunk=CHUNK)
    trunk.extend(prompt(1, 2)[0], features_of(model, []))
    branch = trunk.fork()
    assert branch.reusable(right) == trunk.reusable(left) == 96
    one = trunk.extend(left, features_of(model, []))
    two = branch.extend(right, features_of(model, []))
    assert one is not None
    assert two is not None
    assert torch.equal(one, cold(model, left, []))
    assert torch.equal(two, cold(model, right, []))
    branch.truncate(0)
    assert trunk.length == len(left)


def test_the_last_token_is_always_computed(model: M3) -> None:
    tokens, _ = prompt(text(1, 2 * CHUNK))
    sequence = TokenSequence(model, chunk=CHUNK)
    first = sequence.extend(tokens, features_of(model, []))
    assert sequence.reusable(tokens) == CHUNK
    second = sequence.extend(tokens, features_of(model, []))
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)


def test_cancelling_anywhere_keeps_whole_chunks(model: M3, make_clip: Callable[..., Clip]) -> None:
    """Before any layer of either tower; what is kept is whole and gives the same scores."""
    tokens, media = prompt(1, make_clip(0), 2)
    expected = cold(model, tokens, media)
    asked, most, kept = 0, 0, set()

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > most

    for most in range(100):
        sequence, asked = TokenSequence(model, chunk=CHUNK), 0
        scores = sequence.extend(tokens, features_of(model, media), cancelled)
        if scores is not None:
            break
        assert asked == most + 1, "it ends as soon as it is told"
        assert sequence.length == len(sequence.tokens) == sequence.whole
        kept.add(sequence.length)
        again = sequence.extend(tokens, features_of(model, media))
        assert again is not None
        assert torch.equal(again, expected)
    layers, vision = 3 * (len(tokens) // CHUNK + 1), 2
    assert most > layers + vision
    assert kept == set(range(0, len(tokens), CHUNK))


def test_pixels_count_not_objects(make_clip: Callable[..., Clip]) -> None:
    one, twin, other = (prompt(1, make_clip(seed), 2)[0] for seed in (0, 0, 9))
    assert one.common(twin) == len(one)
    assert one.common(other) == one.spans[0].start == 52
    assert one.cut(60).common(twin) == 60, "the first half of a known clip is known"
    assert one.cut(60).common(other) == 52


def test_another_shape_of_picture_is_another_picture(make_image: Callable[..., Image]) -> None:
    wide, high = make_image(height=56, width=112), make_image(height=112, width=56)
    assert (wide.pixels.reshape(-1) == high.pixels.reshape(-1)).all()
    ids = [1, 2, 3, *[IMAGE_ID] * 8, 4]
    left, right = (Tokens.lay_out(ids, [item], (IMAGE_ID, VIDEO_ID)) for item in (wide, high))
    assert left.common(right) == 3


def test_a_picture_of_another_size_parts_at_its_start(make_image: Callable[..., Image]) -> None:
    small, large = make_image(height=56, width=56), make_image(height=56, width=112)
    left = Tokens.lay_out([1, 2, *[IMAGE_ID] * 4, 4], [small], (IMAGE_ID,))
    right = Tokens.lay_out([1, 2, *[IMAGE_ID] * 8, 4], [large], (IMAGE_ID,))
    assert left.common(right) == right.common(left) == 2


def test_placeholders_must_add_up(make_image: Callable[..., Image]) -> None:
    with pytest.raises(ModelError, match=r"3 placeholders .* need 4"):
        Tokens.lay_out([1, *[IMAGE_ID] * 3], [make_image()], (IMAGE_ID,))
    with pytest.raises(ModelError, match=r"1 placeholders .* need 0"):
        Tokens.lay_out([IMAGE_ID], [], (IMAGE_ID,))
