"""Episodes drawn here, without a browser."""

from __future__ import annotations

import io
import random

from PIL import Image, ImageDraw

from pilotfish.model.training.samples import grid_point
from pilotfish.tasks.episodes import shards as recorder_shards


def drawn_episode(seed: int, screens: int = 1) -> recorder_shards.Episode:
    """An episode of clicks on drawn buttons."""
    draw = random.Random(seed)
    ep = recorder_shards.Episode("drawn", seed, "", True)
    for n in range(screens):
        picture = Image.new("RGB", (336, 420), "white")
        pen = ImageDraw.Draw(picture)
        widgets, letters = [], []
        for row in range(3):
            word = "".join(draw.choice("abcdefgh") for _ in range(5))
            x, y = draw.randrange(5, 220), 20 + row * 130 + draw.randrange(60)
            pen.rectangle((x, y, x + 80, y + 24), fill="#ddd")
            pen.text((x + 6, y + 6), word, fill="black")
            widgets.append((word, "button", x, y, x + 80, y + 24))
            letters += [(c, x + 6 + 6 * i, y + 10) for i, c in enumerate(word)]
        target = draw.choice(widgets)
        box = list(target[2:])
        point = grid_point((box[0] + box[2]) / 2, (box[1] + box[3]) / 2, 336, 420)
        ep.instruction = f'Click on "{target[0]}".'
        png = io.BytesIO()
        picture.save(png, "PNG")
        ep.frames.append(png.getvalue())
        ep.widgets.append(widgets)
        ep.letters.append(letters)
        ep.steps.append(
            {"frame": n, "action": {"action": "left_click", "coordinate": point}, "train": True, "box": box}
        )
    return ep
