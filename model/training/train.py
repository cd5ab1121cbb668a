"""Train nano from step zero: `python -m pilotfish.model.training.train CONFIG.toml`, or flags of its names.

Text and clips share every step. The schedule follows whichever is further along, steps or seconds, so that
a run on limited time ends with its learning rate at zero. A checkpoint holds all that a session is: `--go-on`
goes on with the one in OUT as if it had never stopped, and `--resume FILE` begins a new session, with a
schedule of its own, from what an earlier one has learned. `--init FOLDER` begins with an exported model
instead of random weights.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pilotfish.model.checkpoint import write_json
from pilotfish.model.folder import CONFIG, WEIGHTS
from pilotfish.model.m3 import M3, count_parameters
from pilotfish.model.regions import prepare_compiler
from pilotfish.model.text import MoE
from pilotfish.model.training.journal import Journal, picture, read_log
from pilotfish.model.training.loader import Batch, Cursor, EpisodeBatches, Mix, Onto, batches, by_age
from pilotfish.model.training.muon import Muon, split_parameters
from pilotfish.model.training.parallel import Group
from pilotfish.model.training.settings import Settings, TrainingError, parse_settings
from pilotfish.model.training.texts import TEXT_SHARDS
from pilotfish.model.training.trainee import NANO, Masters, Trainee, build

SYNC_EVERY = 10  # steps between looks at the clock, which all processes must read alike
CHECKPOINT, LOG, PICTURE = "checkpoint.pt", "train.jsonl", "train.svg"
MAY_DIFFER = {"log_every", "save_every", "patience"}  # settings that a session may change when it goes on


def schedule(progress: float, step: int, s: Settings) -> float:
    """Linear warm-up, constant, linear decay to zero over the last `decay_share`."""
    warm = min(1.0, (step + 1) / s.warmup)
    return warm * min(1.0, max(0.0, (1 - progress) / s.decay_share))


def balance(model: M3, rate: float, group: Group) -> None:
    """Nudge each router's selection bias toward equal load (its only use; weights never see it)."""
    for module in model.modules():
        if isinstance(module, MoE) and module.load is not None:
            load = group.average(module.load)
            module.e_score_correction_bias.add_(rate * (load.mean() - load).sign())


def export(model: M3, folder: Path) -> None:
    """Make the folder a checkpoint that can be played with: tensors in bf16 under their published names,
    sizes, tokenizer.
    """
    tensors = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(NANO / name, folder / name)
    write_json(folder / CONFIG, model.config.to_dict("bfloat16"))
    save_file(tensors, folder / f".{WEIGHTS}", metadata={"format": "pt"})
    (folder / f".{WEIGHTS}").replace(folder / WEIGHTS)


def same_each_time() -> None:
    """Have torch take, from here on in this process, the kernels that give the same bits in each run."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch._C._set_deterministic_fill_uninitialized_memory(False)  # a check of torch's own, paid in bandwidth


class Trainer:
    """One training session; `go_on` takes up the one in `out` where it stopped."""

    def __init__(self, settings: Settings, *, go_on: bool = False):
        self.s = s = settings
        self.begun = time.monotonic()
        self.stopping = False
        self.stopped_by = 0  # the signal, if there was one
        self.out = Path(s.out)
        if s.device == "cuda" and not torch.cuda.is_available():
            raise TrainingError("device is 'cuda', and there is no GPU here; give cpu.")
        if s.deterministic and s.device == "cuda":
            same_each_time()
        self.group = Group.from_environment(s.device)
        torch.manual_seed(s.seed)
        torch.set_float32_matmul_precision("high")
        try:
            self.trainee = self._build()
        except (ValueError, RuntimeError, ArithmeticError, AssertionError) as error:
            raise TrainingError(f"sizes {s.sizes} make no model ({error}); mend them.") from error
        self.model = self.trainee.model
        self.trainee.fused = s.compile
        if s.compile:
            prepare_compiler(s.deterministic)
        self.onto = Onto(s.device)
        if s.init and not go_on:  # what goes on has its tensors in the checkpoint
            self._begin_with(Path(s.init))
        self.masters = Masters(self.trainee)
        matrices, rest = split_parameters(self.masters.named.items())
        fused = s.device == "cuda"
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(matrices, s.muon_lr, s.weight_decay),
            torch.optim.AdamW(rest, s.adam_lr, betas=(0.9, 0.98), weight_decay=s.weight_decay, fused=fused),
        ]
        self.step = self.first = 0
        self.rate = 0.0  # of the last step
        self.seed: int | None = None  # of the data
        self.cursors: dict[int, Cursor] = {}
        self.next_stream = 0
        self.saved_step: int | None = None
        self.journal = Journal(self.out / LOG, s.log_every)
        if go_on:
            self._go_on(self._load(self.out / CHECKPOINT))
        elif s.resume:
            self._learned(self._load(Path(s.resume)))
            self.first = self.step
        with self._room("the folder of the run"):
            self.out.mkdir(parents=True, exist_ok=True)
        if self.seed is None:
            self.seed = (s.seed + self.step) * 64 + self.group.rank

    def _build(self) -> Trainee:
        s = self.s
        return build(s.width, s.height, s.device, s.bf16, s.sizes)

    def run(self) -> None:
        """Train until the steps or the seconds are used up, or SIGTERM or Ctrl-C comes; then save and export.

        Raises `TrainingError` for what cannot be gone on from; the last checkpoint is whole then.
        """
        s = self.s
        previous = {number: signal.signal(number, self._halt) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            data = self._data()
            if self.group.leads:
                print(f"{count_parameters(self.model) / 1e6:.2f} M parameters", flush=True)
            last_look = max(self.first, self.step - self.step % SYNC_EVERY)  # when it had not been stopped
            progress, saved = self._progress(last_look), time.monotonic()
            while progress < 1:
                self._one_step(data, progress)
                if self.step % SYNC_EVERY == 0 or self.step - self.first >= s.steps:
                    progress = self._progress(self.step)
                if self.step % s.log_every == 0 and self.group.leads:
                    self.journal.write(self.step, time.monotonic() - self.begun, self.rate)
                    if time.monotonic() - saved > s.save_every:
                        self.save(done=False)
                        saved = time.monotonic()
            if self.group.leads:
                self.save(done=not self.stopping)
        except torch.OutOfMemoryError as error:
            raise TrainingError(f"Memory ran out at step {self.step} ({error}); lower tokens.") from error
        except RuntimeError as error:
            if "CUDA" not in str(error) and "NCCL" not in str(error):
                raise
            first = str(error).splitlines()[0]
            raise TrainingError(f"The GPU failed at step {self.step} ({first}). {self._way_on()}") from error
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        self.group.close()

    def save(self, *, done: bool) -> None:
        """Write the model as a folder to play with, a checkpoint, and the picture; each appears when it is
        whole, and a checkpoint after its model, so that one which is `done` has it beside it. Raises
        `TrainingError` when the last losses are no numbers or there is no room.
        """
        pending = [[step, values, origin] for step, values, origin in self.journal.check()]
        state = {
            "trainee": self.trainee.state_dict(),
            "masters": {name: p.detach() for name, p in self.masters.named.items()},
            "optimisers": [o.state_dict() for o in self.optimisers],
            "step": self.step,
            "settings": asdict(self.s),
            "session": {
                "done": done,
                "first": self.first,
                "seconds": time.monotonic() - self.begun,
                "seed": self.seed,
                "cursors": self.cursors,
                "next_stream": self.next_stream,
                "pending": pending,
                "noise": [torch.get_rng_state(), *_gpu_noise(self.s.device)],
            },
        }
        draft = self.out / "checkpoint.tmp"
        with self._room(str(draft)):
            try:
                with draft.open("wb") as file:
                    torch.save(state, file)
                export(self.model, self.out)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
            draft.replace(self.out / CHECKPOINT)
            self.saved_step = self.step
            (self.out / PICTURE).write_text(picture(read_log(self.out / LOG)), encoding="utf-8")

    @contextlib.contextmanager
    def _room(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "CUDA" in str(error):
                raise
            why = (
                error.strerror
                if isinstance(error, OSError) and error.strerror
                else str(error).splitlines()[0]
            )
            raise TrainingError(
                f"{what} cannot be written ({why}); free some room. {self._way_on()}"
            ) from error

    def _way_on(self) -> str:
        if self.saved_step is None:
            return "Nothing had been saved yet in this session."
        return f"The checkpoint of step {self.saved_step} is whole; --go-on goes on from it."

    def _begin_with(self, folder: Path) -> None:
        try:
            self.model.load_state_dict(load_file(folder / WEIGHTS))
        except (OSError, SafetensorError) as error:
            raise TrainingError(
                f"{folder / WEIGHTS} cannot be read ({error}); give an exported model."
            ) from error
        except RuntimeError as error:
            raise TrainingError(f"init {folder} is a model of other sizes; give its sizes.") from error

    def _load(self, path: Path) -> dict[str, Any]:
        try:
            state: dict[str, Any] = torch.load(path, map_location=self.s.device, weights_only=True)
        except FileNotFoundError:
            raise TrainingError(f"There is no checkpoint {path}; begin without it.") from None
        except Exception as error:  # whatever a damaged archive makes its reader raise
            raise TrainingError(f"{path} is no whole checkpoint ({str(error).splitlines()[0]}).") from error
        for name, value in self.trainee.state_dict().items():
            saved = state["trainee"].get(name)
            if saved is None or saved.shape != value.shape:
                theirs = "is not there" if saved is None else f"has the sizes {tuple(saved.shape)}"
                raise TrainingError(
                    f"{path} is of a model of other sizes: {name} {theirs} instead of {tuple(value.shape)}; "
                    f"train with the sizes {state['settings'].get('sizes') or 'of nano'}."
                )
        return state

    def _learned(self, state: dict[str, Any]) -> None:
        self.trainee.load_state_dict(state["trainee"])
        for name, value in state["masters"].items():
            self.masters.named[name].data.copy_(value)
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step = state["step"]

    def _go_on(self, state: dict[str, Any]) -> None:
        session, settings = state["session"], state["settings"]
        if session["done"]:
            raise TrainingError(
                f"The session in {self.out} has finished; give another out, or begin a new one with "
                f"resume = '{self.out / CHECKPOINT}'."
            )
        mine = asdict(self.s)
        for name in sorted(mine.keys() - MAY_DIFFER):
            if mine[name] != settings.get(name, mine[name]):
                raise TrainingError(
                    f"{name} is {mine[name]!r}, and {settings[name]!r} in the session in {self.out}; give "
                    "that, or another out."
                )
        self._learned(state)
        self.first, self.seed, self.saved_step = session["first"], session["seed"], self.step
        self.begun = time.monotonic() - session["seconds"]
        self.cursors, self.next_stream = session["cursors"], session["next_stream"]
        self.journal.pending = [(step, values, origin) for step, values, origin in session["pending"]]
        self.journal.cut(self.step)
        noise, *gpu = session["noise"]
        torch.set_rng_state(noise.cpu())
        if gpu and self.s.device == "cuda":
            torch.cuda.set_rng_state(gpu[0].cpu())
        if self.group.world > 1:
            # Only the first process's data are in the checkpoint; the others' would begin anew.
            self.seed, self.cursors, self.next_stream = self.seed + self.step * 64 + self.group.rank, {}, 0

    def _data(self) -> Iterator[Batch]:
        s, shards = self.s, Path(self.s.shards)
        if not shards.is_dir():
            raise TrainingError(f"There is no folder of shards {shards}; record some first.")
        until = time.monotonic() + s.patience
        edits = Path(s.edits) if s.edits else None
        while not by_age(shards) and not (edits is not None and by_age(edits, TEXT_SHARDS)):
            if time.monotonic() > until or self.stopping:
                raise TrainingError(f"{shards} holds no shard after {s.patience:g} s; record some first.")
            time.sleep(0.2)
        shares = (s.question_share, s.text_share, s.copy_share, s.newest_bias, s.correction_share)
        mix = Mix(s.tokens, *shares, s.edit_share, s.longest, (s.height, s.width))
        corrections = Path(s.corrections) if s.corrections else None
        assert self.seed is not None
        data = EpisodeBatches(
            shards, NANO, mix, self.seed, corrections, self.cursors, self.next_stream, edits
        )
        return batches(data, s.workers)

    def _halt(self, number: int, _frame: FrameType | None) -> None:
        self.stopping, self.stopped_by = True, number

    def _progress(self, step: int) -> float:
        """How much of the session is over at a step, 0 to 1; the same in every process."""
        passed = max((step - self.first) / self.s.steps, (time.monotonic() - self.begun) / self.s.seconds)
        return self.group.agree(1.0 if self.stopping else passed, self.s.device)

    def _one_step(self, data: Iterator[Batch], progress: float) -> None:
        s = self.s
        wait = time.monotonic()
        batch = next(data)
        self.cursors[batch.stream] = batch.cursor
        self.next_stream = (batch.stream + 1) % max(1, s.workers)
        batch = self.onto(batch)
        told = self.trainee.told
        told("batch")
        waited = time.monotonic() - wait
        rate = self.rate = schedule(progress, self.step - self.first, s)
        for optimiser, base in zip(self.optimisers, (s.muon_lr, s.adam_lr), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = base * rate
        parts = self.trainee.losses(batch, s.noise, "dense" if progress < s.dense_share else "sparse")
        loss = parts["answer"] + s.kl_weight * parts["kl"]
        loss = loss + s.head_weight * sum(parts[k] for k in ("letters", "place", "centre") if k in parts)
        loss.backward()
        told("backward")
        heads_only = self.step - self.first < s.head_steps
        norm = self.masters.take_gradients(self.group, "heads." if heads_only else "")
        told("gradients")
        for optimiser in self.optimisers:
            optimiser.step()
            told(type(optimiser).__name__)
        self.masters.publish()
        told("publishing")
        if not heads_only:
            balance(self.model, s.balance_rate * rate, self.group)
        self.step += 1
        self.journal.add(self.step, parts | {"norm": norm}, batch, waited)


def _gpu_noise(device: str) -> list[Tensor]:
    return [torch.cuda.get_rng_state()] if device == "cuda" else []


def main(arguments: list[str] | None = None) -> int:
    """The command line; what is wrong is one sentence on standard error."""
    try:
        settings, go_on = parse_settings(arguments)
        Trainer(settings, go_on=go_on).run()
    except TrainingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
