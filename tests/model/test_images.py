"""Sizes, patch order and values of pictures and clips."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from pilotfish.model.images import (
    CLIP_RULE,
    PATCH_VALUES,
    ResizeRule,
    clip_grid,
    clip_patches,
    content_hash,
    frame_patches,
    smart_resize,
)
from pilotfish.model.protocol import Clip, Image, ModelError

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


@pytest.mark.parametrize(
    ("size", "resized"),
    [
        ((480, 640), (476, 644)),
        ((1080, 1920), (504, 896)),
        ((720, 1280), (504, 896)),
        ((672, 672), (672, 672)),
        ((336, 420), (336, 420)),
        ((1, 1), (56, 56)),
        ((14, 14), (56, 56)),
        ((42, 42), (56, 56)),
        ((70, 70), (56, 56)),
        ((100, 15000), (28, 8204)),
        ((28, 5000), (28, 5012)),
        ((10, 1500), (28, 700)),
    ],
)
def test_published_sizes(size: tuple[int, int], resized: tuple[int, int]) -> None:
    assert smart_resize(*size) == resized


@pytest.mark.parametrize("size", [(1080, 1920), (2160, 3840)])
def test_a_clip_frame_may_be_larger_than_a_picture(size: tuple[int, int]) -> None:
    assert smart_resize(*size, CLIP_RULE) == (560, 1008)


@pytest.mark.parametrize(
    ("size", "resized"),
    [
        ((1080, 1920), (1092, 1932)),
        ((3000, 4000), (1512, 2016)),
        ((50, 60), (112, 140)),
        ((50, 5000), (28, 2016)),
        ((50, 2000), (56, 2016)),
    ],
)
def test_long_side_rule(size: tuple[int, int], resized: tuple[int, int]) -> None:
    assert smart_resize(*size, ResizeRule(long_side=2016)) == resized


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_sizes_keep_the_rule(height: int, width: int) -> None:
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ModelError):
            smart_resize(height, width)
        return
    new_height, new_width = smart_resize(height, width)
    assert new_height % 28 == new_width % 28 == 0
    assert new_height >= 28
    assert new_width >= 28
    assert new_height * new_width >= 56 * 56 or min(new_height, new_width) == 28
    assert new_height * new_width <= 672 * 672 or min(new_height, new_width) == 28


def slow_patches(frames: np.ndarray) -> np.ndarray:
    """Patches written the long way: one value at a time."""
    if len(frames) % 2:
        frames = np.concatenate([frames, frames[-1:]])
    patches = []
    for t in range(0, len(frames), 2):
        for row in range(0, frames.shape[1], 28):
            for column in range(0, frames.shape[2], 28):
                for y, x in [(0, 0), (0, 14), (14, 0), (14, 14)]:
                    top, left = row + y, column + x
                    patches.append(
                        [
                            (pixel / 255 - MEAN[channel]) / STD[channel]
                            for channel in range(3)
                            for frame in frames[t : t + 2]
                            for pixel in frame[top : top + 14, left : left + 14, channel].flatten().tolist()
                        ]
                    )
    return np.array(patches)


def test_patches_equal_the_slow_way(make_clip: Callable[..., Clip]) -> None:
    clip = make_clip(height=56, width=84)
    patches, grids = clip_patches(clip)
    assert patches.dtype == np.float32
    assert patches.flags.c_contiguous
    assert grids == clip_grid(clip) == [(2, 4, 6)]
    np.testing.assert_allclose(patches, slow_patches(clip.frames), atol=2e-6)


def test_a_picture_is_two_equal_frames(make_image: Callable[..., Image]) -> None:
    image = make_image(height=56, width=84)
    patches, grids = clip_patches(image)
    assert grids == clip_grid(image) == [(1, 4, 6)]
    np.testing.assert_allclose(patches, slow_patches(np.stack([image.pixels] * 2)), atol=2e-6)


@pytest.mark.parametrize(
    ("frames", "grids"),
    [(1, [1]), (4, [2]), (5, [3]), (8, [4]), (9, [4, 1]), (16, [4, 4]), (21, [4, 4, 3])],
)
def test_long_videos_are_cut_into_segments(frames: int, grids: list[int]) -> None:
    video = np.random.default_rng(0).integers(0, 256, (frames, 56, 56, 3), dtype=np.uint8)
    patches, found = frame_patches(video)
    assert found == [(t, 4, 4) for t in grids]
    np.testing.assert_allclose(patches, slow_patches(video), atol=2e-6)


def test_resizing_is_pillows_bicubic(make_image: Callable[..., Image]) -> None:
    image = make_image(height=100, width=333)
    patches, grids = clip_patches(image)
    resized = np.asarray(Pillow.fromarray(image.pixels).resize((336, 112), Pillow.Resampling.BICUBIC))
    assert grids == clip_grid(image) == [(1, 8, 24)]
    np.testing.assert_array_equal(patches, clip_patches(Image(resized))[0])


def test_strided_frames_are_read_as_they_look(make_clip: Callable[..., Clip]) -> None:
    """A screen crop is a view into a larger picture, and may be mirrored."""
    wide = make_clip(height=84, width=140).frames
    view = wide[:, 14:70, 110:26:-1]
    assert not view.flags.c_contiguous
    clip, copy = Clip(view, (0.0, 1.0, 2.0, 3.0)), Clip(view.copy(), (0.0, 1.0, 2.0, 3.0))
    np.testing.assert_array_equal(clip_patches(clip)[0], clip_patches(copy)[0])
    assert content_hash(clip) == content_hash(copy)


def test_a_tiny_picture_is_enlarged() -> None:
    white = Image(np.full((1, 1, 3), 255, dtype=np.uint8))
    patches, grids = clip_patches(white)
    assert grids == [(1, 4, 4)]
    assert patches.shape == (16, PATCH_VALUES)
    expected = [(1 - mean) / std for mean, std in zip(MEAN, STD, strict=True)]
    np.testing.assert_allclose(patches.reshape(16, 3, -1).mean((0, 2)), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (np.zeros((10, 20_000, 3), np.uint8), "20000x10"),
        (np.zeros((0, 10, 3), np.uint8), "empty"),
        (np.zeros((56, 56, 3), np.float32), "float32"),
        (np.zeros((56, 56, 4), np.uint8), "(1, 56, 56, 4)"),
        (np.zeros((56, 56), np.uint8), "(1, 56, 56)"),
        ("picture.png", "str"),
    ],
)
def test_bad_pictures_are_named(pixels: np.ndarray, words: str) -> None:
    with pytest.raises(ModelError) as error:
        clip_patches(Image(pixels))
    assert words in str(error.value)
    assert str(error.value).count(". ") == 0


def test_bad_rules_are_named() -> None:
    for rule in ({"long_side": 2000}, {"long_side": 84}, {"min_pixels": 10}, {"max_pixels": 100}):
        with pytest.raises(ModelError):
            ResizeRule(**rule)


def test_equal_pixels_have_equal_hashes(
    make_clip: Callable[..., Clip], make_image: Callable[..., Image]
) -> None:
    assert content_hash(make_clip(1)) == content_hash(make_clip(1))
    assert content_hash(make_clip(1)) != content_hash(make_clip(2))
    image = make_image(height=28, width=56)
    turned = Image(image.pixels.reshape(56, 28, 3))
    assert content_hash(image) != content_hash(turned), "the shape is part of the content"


def test_a_screen_is_not_resampled(make_clip: Callable[..., Clip]) -> None:
    clip = make_clip(height=336, width=420)
    patches, grids = clip_patches(clip)
    assert grids == clip_grid(clip) == [(2, 24, 30)]
    np.testing.assert_allclose(patches[:4], slow_patches(clip.frames[:, :28, :28])[:4], atol=2e-6)
