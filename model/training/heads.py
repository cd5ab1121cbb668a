"""Dense targets for the vision side, used in training only and dropped on export.

A 20 M model told only "click here" learns to read screens slowly. Per merged patch these heads ask for what
the page itself knows: which letters have their centre in this cell, and, at the text tower's picture
positions, which cell this is and where the widget under it has its centre.

Shape legend: L letter classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pilotfish.model.config import M3Config
from pilotfish.model.regions import region

LETTERS = "".join(chr(code) for code in range(33, 127))
CELL = 28  # pixels per merged cell


@dataclass
class Targets:
    """Per vision token, in token order. letters: bool [tokens, L]; centre: float [tokens, 2] in 0..1; row and
    column of its cell: int64 [tokens].

    A centre is NaN where no widget covers the cell.
    """

    letters: Tensor
    centre: Tensor
    row: Tensor
    column: Tensor


class DenseHeads(nn.Module):
    """Linear readers on vision tokens and on final hidden states at picture positions.

    rows, columns: cells of the largest picture.
    """

    def __init__(self, config: M3Config, rows: int, columns: int):
        super().__init__()
        width = config.text.hidden_size
        self.rows, self.columns = rows, columns
        self.letters = nn.Linear(width, len(LETTERS))
        self.row = nn.Linear(width, rows)
        self.column = nn.Linear(width, columns)
        self.centre = nn.Linear(width, 2)

    @region
    def loss(self, vision: Tensor, hidden: Tensor, targets: Targets) -> dict[str, Tensor]:
        """Losses from vision tokens and final hidden states at their places, both [tokens, width]."""
        letters = targets.letters.float()
        reading = F.binary_cross_entropy_with_logits(
            self.letters(vision).float(),
            letters,
            pos_weight=torch.full((letters.shape[1],), 4.0, device=vision.device),
        )
        place = F.cross_entropy(self.row(hidden).float(), targets.row)
        place = place + F.cross_entropy(self.column(hidden).float(), targets.column)
        centre = targets.centre
        known = ~centre[:, :1].isnan()
        misses = F.smooth_l1_loss(
            self.centre(hidden).float(), centre.nan_to_num(0.0), beta=0.02, reduction="none"
        )
        miss = (misses * known).sum() / (2 * known.sum()).clamp(min=1)
        return {"letters": reading * 10, "place": place, "centre": miss * 5}
