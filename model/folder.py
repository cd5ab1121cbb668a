"""Which folder a model's name means, and whether it holds a whole checkpoint: told without loading torch."""

from __future__ import annotations

from pathlib import Path

from pilotfish.model.config import M3Config
from pilotfish.model.protocol import ModelError

NANO = Path(__file__).parent / "nano"
WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
TOKENIZER = "tokenizer.json"


def find_folder(name: Path | str) -> Path:
    """The folder that a model's name means: `nano` is the checkpoint that ships, anything else a path.

    Raises ModelError for what is no folder.
    """
    folder = NANO if str(name) == NANO.name else Path(name)
    if folder.is_file():
        raise ModelError(f"{folder} is a file; give the folder of a checkpoint, or nano.")
    if not folder.is_dir():
        raise ModelError(f"there is no model {str(name)!r}; give nano, or the folder of a checkpoint.")
    return folder


def check_folder(name: Path | str) -> None:
    """Raise ModelError for what cannot be a checkpoint, from its configuration and the names of its files."""
    folder = find_folder(name)
    M3Config.from_folder(folder)
    for wanted in ((TOKENIZER,), (WEIGHTS, INDEX)):
        if not any((folder / file).is_file() for file in wanted):
            raise ModelError(f"{folder} holds no {' or '.join(wanted)}; copy the whole checkpoint.")
