"""The command that trains a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[Path, typer.Argument(help="TOML file: docs/model.md lists its fields.")],
    anew: Annotated[
        bool,
        typer.Option("--anew", help="Begin anew, even where `out` holds a session to go on with."),
    ] = False,
) -> None:
    """Train a model from recorded episodes, or go on with a session that was stopped.

    The folder `out` of the config gets checkpoints, the model in a form that --model takes, the losses
    (train.jsonl) and their picture (train.svg). Ctrl-C and SIGTERM end it with a checkpoint.
    """
    from pilotfish.model.training.settings import read_config
    from pilotfish.model.training.train import CHECKPOINT, Trainer

    settings = read_config(config)
    go_on = not anew and (Path(settings.out) / CHECKPOINT).exists()
    trainer = Trainer(settings, go_on=go_on)
    trainer.run()
    if trainer.stopped_by:
        raise typer.Exit(128 + trainer.stopped_by)


def add_to(app: typer.Typer) -> None:
    """Give the application this file's command."""
    app.command()(train)
