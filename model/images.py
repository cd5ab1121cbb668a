"""Pictures and clips as the patches the vision tower reads.

A picture is resized so that both sides are multiples of 28 (a 2x2 square of 14-pixel patches becomes one
token), normalised with CLIP's mean and deviation, and cut into patches of two frames by 14 by 14 pixels. A
single picture stands for two equal frames. A clip of four frames gives two temporal patches, which the tower
attends over as one segment; a longer video is cut into segments of at most four temporal patches.

Shapes: T frames, H/W pixels, P patches. A grid is (t, h, w) counted in patches; its tokens are t * h * w / 4.
Source: the checkpoint's image and video processors, as in transformers' `minimax_m3_vl`.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from pilotfish.model.protocol import Clip, Image, ModelError

PATCH = 14
MERGE = 2
FACTOR = PATCH * MERGE
FRAMES_PER_PATCH = 2
PATCHES_PER_SEGMENT = 4
PATCH_VALUES = 3 * FRAMES_PER_PATCH * PATCH * PATCH
MAX_ASPECT = 200

_MEAN = np.array([0.48145466, 0.4578275, 0.40821073])
_STD = np.array([0.26862954, 0.26130258, 0.27577711])
_SCALE = (1 / (255 * _STD)).astype(np.float32).reshape(3, 1, 1, 1)
_SHIFT = (-_MEAN / _STD).astype(np.float32).reshape(3, 1, 1, 1)

Grid = tuple[int, int, int]
Media = Clip | Image


@dataclass(frozen=True)
class ResizeRule:
    """How large a frame may be, in pixels.

    By default the area decides: between `min_pixels` and `max_pixels`, aspect ratio kept as far as multiples
    of 28 allow. With `long_side` set (a multiple of 28 from 112 to 3584), the longer side is shrunk to it, a
    shorter side under 112 is enlarged to 112, and the longer side's limit wins where both apply.
    """

    min_pixels: int = 56 * 56
    max_pixels: int = 672 * 672
    long_side: int | None = None

    def __post_init__(self) -> None:
        if self.long_side is not None and (self.long_side % FACTOR or not 112 <= self.long_side <= 3584):
            raise ModelError(
                f"long_side is {self.long_side}; give a multiple of {FACTOR} between 112 and 3584."
            )
        if not FACTOR * FACTOR <= self.min_pixels <= self.max_pixels:
            raise ModelError(
                f"min_pixels {self.min_pixels} and max_pixels {self.max_pixels} leave no size to choose; "
                f"give {FACTOR * FACTOR} <= min_pixels <= max_pixels."
            )


IMAGE_RULE = ResizeRule()
CLIP_RULE = ResizeRule(max_pixels=768 * FACTOR * FACTOR)


def smart_resize(height: int, width: int, rule: ResizeRule = IMAGE_RULE) -> tuple[int, int]:
    """Return the (height, width) in pixels, multiples of 28, to which a picture of that size is resized.

    Where public implementations differ (a side that rounds to zero, as in 10x1500) this follows
    transformers 5.24. Raises ModelError for an empty picture and for an aspect ratio above 200.
    """
    if height < 1 or width < 1:
        raise ModelError(f"A picture of {width}x{height} pixels is empty; give one of at least 1x1.")
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ModelError(
            f"A picture of {width}x{height} pixels is more than {MAX_ASPECT} times as long as it is wide; "
            "crop or pad it first."
        )
    if rule.long_side is not None:
        return _long_side_resize(height, width, rule.long_side)
    # Python's round is banker's rounding, which the published sizes depend on.
    new_height, new_width = round(height / FACTOR) * FACTOR, round(width / FACTOR) * FACTOR
    if new_height * new_width > rule.max_pixels:
        ratio = math.sqrt(height * width / rule.max_pixels)
        new_height = max(FACTOR, math.floor(height / ratio / FACTOR) * FACTOR)
        new_width = max(FACTOR, math.floor(width / ratio / FACTOR) * FACTOR)
    elif new_height * new_width < rule.min_pixels:
        ratio = math.sqrt(rule.min_pixels / (height * width))
        new_height = math.ceil(height * ratio / FACTOR) * FACTOR
        new_width = math.ceil(width * ratio / FACTOR) * FACTOR
    return new_height, new_width


def _long_side_resize(height: int, width: int, limit: int) -> tuple[int, int]:
    longer, shorter = max(height, width), min(height, width)
    scale = min(max(1.0, 112 / shorter), limit / longer)
    return (
        max(FACTOR, round(height * scale / FACTOR) * FACTOR),
        max(FACTOR, round(width * scale / FACTOR) * FACTOR),
    )


def clip_grid(media: Media, rule: ResizeRule | None = None) -> list[Grid]:
    """Return the grids of a clip or picture, one per segment of the vision tower, from its size alone."""
    frames, rule = _frames(media, rule)
    height, width = smart_resize(frames.shape[1], frames.shape[2], rule)
    return segment_grids(len(frames), height, width)


def clip_patches(media: Media, rule: ResizeRule | None = None) -> tuple[npt.NDArray[np.float32], list[Grid]]:
    """Return the patches [P, 1176] of a clip or picture in the tower's order, and its grids."""
    frames, rule = _frames(media, rule)
    return frame_patches(frames, rule)


def segment_grids(frames: int, height: int, width: int) -> list[Grid]:
    """Return the grids of so many frames of a size in pixels: at most 4 temporal patches in each."""
    temporal = math.ceil(frames / FRAMES_PER_PATCH)
    starts = range(0, temporal, PATCHES_PER_SEGMENT)
    return [(min(PATCHES_PER_SEGMENT, temporal - s), height // PATCH, width // PATCH) for s in starts]


def frame_patches(
    frames_THWC: npt.NDArray[np.uint8], rule: ResizeRule = CLIP_RULE
) -> tuple[npt.NDArray[np.float32], list[Grid]]:
    """Return the patches [P, 1176] of uint8 RGB frames [T, H, W, 3] of one size, and their grids.

    An odd number of frames is completed by the last one. Patches run over temporal patches, then over 2x2
    squares row by row, then over the four patches of a square; a patch holds (channel, frame, row, column).
    """
    check_frames(frames_THWC)
    height, width = smart_resize(frames_THWC.shape[1], frames_THWC.shape[2], rule)
    frames = resize_frames(frames_THWC, height, width)
    if len(frames) % FRAMES_PER_PATCH:
        frames = np.concatenate([frames, frames[-1:]])
    t, h, w = len(frames) // FRAMES_PER_PATCH, height // FACTOR, width // FACTOR
    squares = frames.reshape(t, FRAMES_PER_PATCH, h, MERGE, PATCH, w, MERGE, PATCH, 3)
    ordered = np.ascontiguousarray(squares.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7))
    values = ordered.astype(np.float32)
    values *= _SCALE
    values += _SHIFT
    return values.reshape(-1, PATCH_VALUES), segment_grids(len(frames), height, width)


def resize_frames(frames_THWC: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """Resize frames with Pillow's bicubic filter; frames that have the size already come back as they are."""
    if frames_THWC.shape[1:3] == (height, width):
        return frames_THWC
    resized = [
        np.asarray(Pillow.fromarray(frame).resize((width, height), Pillow.Resampling.BICUBIC))
        for frame in frames_THWC
    ]
    return np.stack(resized)


def check_frames(frames: npt.NDArray[np.uint8]) -> None:
    """Raise ModelError unless `frames` is a non-empty uint8 array of shape [T, H, W, 3]."""
    if not isinstance(frames, np.ndarray) or frames.dtype != np.uint8:
        kind = getattr(frames, "dtype", type(frames).__name__)
        raise ModelError(f"Pixels are {kind}; give a uint8 array of RGB values from 0 to 255.")
    if frames.ndim != 4 or frames.shape[3] != 3:
        raise ModelError(f"Pixels have shape {frames.shape}; give [frames, height, width, 3].")
    if 0 in frames.shape:
        raise ModelError(f"Pixels of shape {frames.shape} are empty; give at least one frame of 1x1.")


_HASHES: weakref.WeakKeyDictionary[Media, bytes] = weakref.WeakKeyDictionary()


def content_hash(media: Media) -> bytes:
    """Return 32 bytes that identify the pixels: equal pictures have equal hashes, whatever object holds them.

    A clip or picture is hashed once in its life, so its pixels must not be changed after it was made.
    """
    known = _HASHES.get(media)
    if known is None:
        frames, _ = _frames(media, None)
        digest = hashlib.blake2b(repr((type(media).__name__, frames.shape)).encode(), digest_size=32)
        digest.update(np.ascontiguousarray(frames).data)
        known = _HASHES[media] = digest.digest()
    return known


def _frames(media: Media, rule: ResizeRule | None) -> tuple[npt.NDArray[np.uint8], ResizeRule]:
    if isinstance(media, Image):
        pixels = media.pixels
        check_frames(pixels[None] if isinstance(pixels, np.ndarray) else pixels)
        return pixels[None], rule or IMAGE_RULE
    check_frames(media.frames)
    return media.frames, rule or CLIP_RULE
