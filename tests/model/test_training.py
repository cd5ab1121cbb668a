"""The trainer's parts against their twins, and a short run that must learn."""

from __future__ import annotations

import io
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pilotfish.agent import prompt
from pilotfish.agent.conversation import Conversation
from pilotfish.model.images import clip_patches as reference_patches
from pilotfish.model.protocol import Clip, Message, ToolCall
from pilotfish.model.protocol import Image as Picture
from pilotfish.model.training import drills, train, trainee
from pilotfish.model.training.heads import LETTERS
from pilotfish.model.training.loader import (
    BUCKETS,
    Batch,
    EpisodeBatches,
    Mix,
    collate,
    letter_cells,
    widget_cells,
)
from pilotfish.model.training.muon import Muon, split_parameters
from pilotfish.model.training.parallel import Group
from pilotfish.model.training.samples import Sample, SampleMaker, grid_point, unambiguous
from pilotfish.model.training.shards import Episode, Widget, read_shard
from pilotfish.model.training.words import WORDS_PATH, training_words
from pilotfish.tasks.episodes import shards as recorder_shards
from pilotfish.tools.base import Screen, tool_schema
from pilotfish.tools.computer import ComputerTool
from pilotfish.tools.grid import grid_to_pixel

from .drawing import drawn_episode

NANO = trainee.NANO


@pytest.fixture(scope="module")
def shard_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    episodes = [drawn_episode(seed, 1 + seed % 3) for seed in range(24)]
    recorder_shards.write_shard(folder / "shard-0-0.bin", episodes)
    return folder


@pytest.fixture(scope="module")
def maker() -> SampleMaker:
    return SampleMaker(NANO, 0)


def test_the_words_trained_on_are_the_words_the_agent_says() -> None:
    words = json.loads(WORDS_PATH.read_text(encoding="utf-8"))
    tool = ComputerTool()
    assert words["developer"] == prompt.DEVELOPER
    assert words["pruned_clip"] == prompt.PRUNED_CLIP
    assert words["tool"] == {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool_schema(tool),
    }


def test_both_readers_of_a_shard_agree(shard_folder: Path) -> None:
    path = shard_folder / "shard-0-0.bin"
    for mine, theirs in zip(read_shard(path), recorder_shards.read_shard(path), strict=True):
        assert mine.frames == theirs.frames
        assert mine.steps == theirs.steps
        assert [[tuple(w) for w in frame] for frame in mine.widgets] == [
            [tuple(w) for w in frame] for frame in theirs.widgets
        ]
        assert [[tuple(c) for c in frame] for frame in mine.letters] == [
            [tuple(c) for c in frame] for frame in theirs.letters
        ]


def test_a_file_that_is_no_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "shard-x.bin").write_bytes(b"not a shard at all")
    with pytest.raises(ValueError, match=r"shard-x\.bin is not an episode shard"):
        read_shard(tmp_path / "shard-x.bin")


def test_batched_muon_equals_torch() -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((32, 64), (64, 32), (32, 64), (48, 48))]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    a = Muon(ours, 1e-2, 0.01, 0.95)
    b = torch.optim.Muon(theirs, lr=1e-2, weight_decay=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        a.step()
        b.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-2, atol=2e-4)


def test_patches_made_on_the_device_equal_the_runtime_s() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (4, 420, 336, 3), dtype=np.uint8)
    wanted, grids = reference_patches(Clip(frames, (0.0, 0.1, 0.2, 0.3)))
    got, grid = trainee.frame_patches(
        trainee.noisy_pixels(torch.from_numpy(frames), 0.0), torch.tensor([[0, 1, 2, 3]])
    )
    assert grids == [grid]
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-5)
    wanted, grids = reference_patches(Picture(frames[1]))
    got, grid = trainee.frame_patches(
        trainee.noisy_pixels(torch.from_numpy(frames), 0.0), torch.tensor([[1, 1]])
    )
    assert grids == [grid] == [(1, 30, 24)]
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-5)


def test_a_grid_point_maps_back_to_its_pixel() -> None:
    screen = Screen(":0", 0, 0, 336, 420)
    for x, y in ((0, 0), (335, 419), (100, 7), (1, 210)):
        gx, gy = grid_point(x, y, 336, 420)
        px, py = grid_to_pixel((gx, gy), screen)
        assert abs(px - x) <= 1
        assert abs(py - y) <= 1


def lived(ep: Episode, steps: int) -> Conversation:
    """What the agent's own conversation holds when it takes the step after these."""
    words = training_words()
    conversation = Conversation(max_clips=words.max_clips, block=words.clip_block)
    clip = Clip(np.zeros((4, 420, 336, 3), np.uint8), (0.0, 0.1, 0.2, 0.3))
    conversation.append(prompt.developer_turn())
    conversation.append(prompt.first_turn(ep.instruction, clip))
    for n in range(steps):
        call = ToolCall(str(n), "computer", ep.steps[n]["action"])
        conversation.append(Message("assistant", (), None, (call,)))
        conversation.append(prompt.tool_turn("ok", "settled", clip))
    return conversation


def test_a_long_episode_is_told_as_the_agent_remembers_it(maker: SampleMaker) -> None:
    drawn = drawn_episode(3, 17)
    ep = Episode("t", 3, drawn.instruction, drawn.frames, [[]] * 17, [[]] * 17, drawn.steps)
    tokens = []
    for steps in range(1, 18):
        sample = maker.episode(ep, steps)
        clips = sum(isinstance(part, Clip) for m in lived(ep, steps - 1).messages for part in m.parts)
        assert len(sample.clips) == clips
        said = maker.tokenizer.decode(sample.ids.tolist())
        assert said.count("Clip removed.") == steps - clips
        assert said.count("<action>left_click") == steps
        answers = maker.tokenizer.decode(sample.ids[sample.weights > 0].tolist())
        assert answers.count("<action>left_click") == (steps if steps <= 6 else (steps - 7) % 4 + 1)
        tokens.append(len(sample.ids))
    assert max(tokens) <= BUCKETS[-1]
    shown = {len(maker.episode(ep).clips) for _ in range(40)}
    assert shown == {5, 6}  # the last stretch is cut short by the end


def test_only_what_the_model_says_is_a_target(shard_folder: Path, maker: SampleMaker) -> None:
    ep = next(e for e in read_shard(shard_folder / "shard-0-0.bin") if len(e.steps) == 3)
    ep.steps[1]["train"] = False
    sample = maker.episode(ep)
    said = maker.tokenizer.decode(sample.ids[sample.weights > 0].tolist())
    assert said.count("left_click") == 2
    assert "Click on" not in said
    assert said.endswith("[e~[")
    assert len(sample.clips) == 3


def test_every_form_of_question_is_answered_in_full(shard_folder: Path, maker: SampleMaker) -> None:
    episodes = read_shard(shard_folder / "shard-0-0.bin")
    said, pictures = "", 0
    for ep in episodes * 2:
        sample = maker.questions(ep)
        assert sample is not None
        answer = maker.tokenizer.decode(sample.ids[sample.weights > 0].tolist())
        assert any(w.text in answer or "0" <= answer[0] <= "9" for w in ep.widgets[sample.frames[0]]) or (
            "left_click" in answer
        )
        said += maker.tokenizer.decode(sample.ids.tolist())
        pictures += sample.is_picture
        ids = maker.tokenizer.image_id if sample.is_picture else maker.tokenizer.video_id
        assert (sample.ids == ids).sum() == (180 if sample.is_picture else 360)
    for question in ("Locate ", "Locate\n", "Read ", "List the screen", "left_click"):
        assert question in said
    assert 0 < pictures < len(episodes) * 2


def test_what_stands_at_a_place_is_read_and_typed(shard_folder: Path, maker: SampleMaker) -> None:
    for ep in read_shard(shard_folder / "shard-0-0.bin")[:6]:
        reads = maker.questions(ep, form="reads")
        assert reads is not None
        widgets = ep.widgets[reads.frames[0]]
        at = {(place, w.text) for w in widgets for place in (maker._place(ep, w),)}
        answer = maker.tokenizer.decode(reads.ids[reads.weights > 0].tolist()).split("[e~[")[0]
        for line in answer.split("\n"):
            assert (line[:7], line[8:]) in at
        types = maker.questions(ep, form="types")
        assert types is not None
        typed = maker.tokenizer.decode(types.ids[types.weights > 0].tolist()).split("<text>")[1:]
        assert typed
        assert {part.split("]<]")[0] for part in typed} <= {w.text for w in ep.widgets[types.frames[0]]}


def test_copies_ask_for_what_they_answer(maker: SampleMaker) -> None:
    sample = drills.copies(maker, 4)
    answer = maker.tokenizer.decode(sample.ids[sample.weights > 0].tolist())
    whole = maker.tokenizer.decode(sample.ids.tolist())
    texts = [part.split("]<]")[0] for part in answer.split("<text>")[1:]]
    assert len(texts) == 4
    assert all(whole.count(text) >= 2 for text in texts)
    assert "left_click" not in answer


def test_sums_are_answered_rightly(maker: SampleMaker) -> None:
    draw = random.Random(0)
    unknowns = 0
    for _ in range(600):
        question, answer = drills.problem(draw)
        found = re.search(r"\b(\d+|[a-z]) ([-+*x×]) (\d+|[a-z])\b(?: = (-?\d+))?", question)
        assert found is not None, question
        left, sign, right, result = found.groups()
        unknown = next((side for side in (left, right) if not side.isdecimal()), None)
        unknowns += unknown is not None
        a, b = (answer if side == unknown else int(side) for side in (left, right))
        computed = {"+": a + b, "-": a - b}.get(sign, a * b)
        assert computed == (answer if unknown is None else int(result)), (question, answer)
    assert 100 < unknowns < 300
    sample = drills.sums(maker, 5)
    answers = maker.tokenizer.decode(sample.ids[sample.weights > 0].tolist()).split("<text>")[1:]
    assert len(answers) == 5
    assert all(re.fullmatch(r"-?\d+", answer.split("]<]")[0]) for answer in answers)
    assert len({drills.drilled(maker).ids.tobytes() for _ in range(10)}) == 10


def test_pictures_and_clips_share_a_batch(shard_folder: Path, maker: SampleMaker) -> None:
    episodes = read_shard(shard_folder / "shard-0-0.bin")
    samples = [s for ep in episodes[:12] if (s := maker.questions(ep)) is not None]
    batch = collate([*samples, drills.copies(maker, 2)], maker.tokenizer.eos_id)
    assert len(batch.image_frames) + len(batch.clip_frames) == len(samples)
    is_image = (batch.ids == maker.tokenizer.image_id).any(1)
    is_clip = (batch.ids == maker.tokenizer.video_id).any(1)
    assert int(is_image.sum()) == len(batch.image_frames)
    assert is_image[: len(batch.image_frames)].all()
    assert not (is_image & is_clip).any()


def test_cells_hold_their_letters_and_widgets() -> None:
    ep = Episode(
        "t", 0, "", [b""], [[Widget("ok", "button", 28, 56, 84, 84)]], [[("o", 30, 60), ("é", 1, 1)]]
    )
    size = ep.height, ep.width
    letters, centres = letter_cells(ep, 0, size), widget_cells(ep, 0, size)
    assert letters.sum() == 1
    assert letters[2 * 12 + 1].any()
    np.testing.assert_allclose(centres[2 * 12 + 1], (56 / 336, 70 / 420))
    assert np.isnan(centres[0]).all()


def test_cells_of_a_large_screen_are_those_of_the_picture_that_is_seen() -> None:
    """1280x800 pixels are seen as 980x588, 35 cells in a row of 36.6 pixels each."""
    widgets = [Widget("ok", "button", 1240, 780, 1279, 799)]
    ep = Episode("t", 0, "", [b""], [widgets], [[("o", 1260, 790), ("k", 37, 1)]], [], 1280, 800)
    sample = Sample(np.zeros(1, np.int32), np.zeros(1, np.float32), ep, [0], [(0, 0, 0, 0)])
    assert sample.size == (588, 980)
    letters, centres = letter_cells(ep, 0, sample.size), widget_cells(ep, 0, sample.size)
    assert letters.shape == (21 * 35, len(LETTERS))
    assert [tuple(divmod(cell, 35)) for cell in letters.any(1).nonzero()[0]] == [(0, 1), (20, 34)]
    np.testing.assert_allclose(centres[-1], (1259.5 / 1280, 789.5 / 800))
    assert np.isfinite(centres).all(1).nonzero()[0].tolist() == [20 * 35 + 33, 20 * 35 + 34]


@pytest.fixture
def sized_shards(tmp_path: Path) -> Path:
    """Half of the episodes on a screen of 336x420, half on one of 800x600, which is seen as 812x588 in clips
    and as 756x560 in pictures."""
    episodes = [drawn_episode(seed, 2) for seed in range(12)]
    for ep in episodes[::2]:
        ep.width, ep.height = 800, 600
        for n, png in enumerate(ep.frames):
            wide = Image.new("RGB", (800, 600), "white")
            wide.paste(Image.open(io.BytesIO(png)), (0, 0))
            file = io.BytesIO()
            wide.save(file, "PNG")
            ep.frames[n] = file.getvalue()
    recorder_shards.write_shard(tmp_path / "shard-0-0.bin", episodes)
    return tmp_path


def test_screens_of_several_sizes_train_together(sized_shards: Path, maker: SampleMaker) -> None:
    mix = Mix(tokens=6_000, question_share=0.5, text_share=0.1, copy_share=0.1, largest=(1008, 1008))
    stream = iter(EpisodeBatches(sized_shards, NANO, mix, 3))
    seen: dict[tuple[int, ...], list[Batch]] = {}
    for _ in range(40):
        batch = next(stream)
        seen.setdefault(tuple(batch.frames.shape[1:3]), []).append(batch)
    assert {(420, 336), (588, 812), (560, 756)} == seen.keys() - {(28, 28)}
    for (height, width), batches in seen.items():
        cells = (height // 28) * (width // 28)
        for batch in batches:
            if not len(batch.frames):
                continue
            placed = ((batch.ids == maker.tokenizer.image_id) | (batch.ids == maker.tokenizer.video_id)).sum()
            assert placed == cells * (len(batch.image_frames) + 2 * len(batch.clip_frames))
            assert batch.letters.shape[1] == batch.centre.shape[1] == cells
            assert batch.letters.any(2).sum() > 0
    chosen = [batches[0] for size, batches in seen.items() if size != (28, 28)]
    cursor = chosen[-1].cursor
    behind = iter(EpisodeBatches(sized_shards, NANO, mix, 3, cursors={0: cursor}))
    again = iter(EpisodeBatches(sized_shards, NANO, mix, 3))
    while next(again).cursor != cursor:
        pass
    for _ in range(8):
        expected, found = next(again), next(behind)
        assert torch.equal(found.ids, expected.ids)
        assert torch.equal(found.frames, expected.frames)
    torch.manual_seed(0)
    sizes = {"text": {"num_hidden_layers": 4}, "vision": {"num_hidden_layers": 1}}
    learner = trainee.build(1008, 1008, "cpu", False, sizes)
    for batch in chosen:
        losses = learner.losses(batch, 0.0)
        assert all(bool(value.isfinite()) for value in losses.values())
        assert float(losses["place"].detach()) > 0
    small = trainee.build(336, 420, "cpu", False, sizes)
    with pytest.raises(ValueError, match="larger than those of the heads, 336x420"):
        small.losses(next(batch for batch in chosen if batch.frames.shape[2] > 336), 0.0)


def test_pictures_too_large_for_the_heads_are_left_out(sized_shards: Path) -> None:
    mix = Mix(tokens=6_000, question_share=0.5, text_share=0.0, copy_share=0.0)
    stream = iter(EpisodeBatches(sized_shards, NANO, mix, 3))
    assert {tuple(next(stream).frames.shape[1:3]) for _ in range(12)} == {(420, 336)}


def test_matrices_and_the_rest_are_told_apart() -> None:
    model = torch.nn.ModuleDict({"lm_head": torch.nn.Linear(4, 4), "hidden": torch.nn.Linear(4, 4)})
    matrices, rest = split_parameters(model.named_parameters())
    assert [p.shape for p in matrices] == [(4, 4)]
    assert len(rest) == 3


def test_text_is_cut_in_equal_pieces(maker: SampleMaker) -> None:
    assert [len(maker.text(64).ids) for _ in range(3)] == [64, 64, 64]


def test_every_part_of_the_loss_falls_and_reaches_its_parameters(
    shard_folder: Path, maker: SampleMaker
) -> None:
    from dataclasses import replace

    from pilotfish.model.m3 import M3, initialise
    from pilotfish.model.training.nano import nano_config

    torch.manual_seed(0)
    config = nano_config(maker.tokenizer)
    flags = (False, True)
    small = replace(
        config,
        text=replace(
            config.text,
            num_hidden_layers=2,
            sparse_layers=flags,
            moe_layers=flags,
            hidden_size=128,
            num_attention_heads=2,
            dense_intermediate_size=128,
        ),
        vision=replace(
            config.vision, num_hidden_layers=1, hidden_size=64, num_attention_heads=1, intermediate_size=64
        ),
        projector_hidden_size=128,
    )
    model = M3(small)
    initialise(model)
    learner = trainee.Trainee(model, 15, 12).train()
    batch = collate(
        [maker.episode(e) for e in read_shard(shard_folder / "shard-0-0.bin")[:2]], maker.tokenizer.eos_id
    )
    matrices, rest = split_parameters(learner.named_parameters())
    optimisers = [Muon(matrices, 2e-3), torch.optim.AdamW(rest, 2e-3)]
    history = []
    for _ in range(8):
        parts = learner.losses(batch, 0.0)
        sum(parts.values()).backward()
        without = [n for n, p in learner.named_parameters() if p.grad is None and "experts" not in n]
        assert without == []
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        train.balance(model, 1e-3, Group())
        history.append({k: v.item() for k, v in parts.items()})
    for part in ("answer", "letters", "place"):
        assert history[-1][part] < history[0][part], part
    gate = model.language_model.model.layers[1].block_sparse_moe
    assert gate.e_score_correction_bias.abs().max() > 0


def test_the_warm_up_is_dense_and_still_teaches_the_index_branch(maker: SampleMaker) -> None:
    from pilotfish.model.m3 import M3, initialise
    from pilotfish.model.text import IndexLoss
    from pilotfish.model.training.nano import nano_config

    torch.manual_seed(0)
    model = M3(nano_config(maker.tokenizer))
    initialise(model)
    ids = torch.randint(0, 1900, (1, 640))
    loss = IndexLoss(rows=32)
    warm = model.hidden(ids, attention="dense", index_loss=loss)
    with torch.no_grad():
        dense, sparse = model.hidden(ids, attention="dense"), model.hidden(ids)
    torch.testing.assert_close(warm, dense)
    assert (warm - sparse).abs().max() > 1e-3
    loss.total().backward()
    index = [p for n, p in model.named_parameters() if ".index_" in n]
    assert all(p.grad is not None and p.grad.any() for p in index)


def test_the_index_branch_learns_from_the_kl_alone(shard_folder: Path, maker: SampleMaker) -> None:
    from pilotfish.model.m3 import M3, initialise
    from pilotfish.model.text import IndexLoss
    from pilotfish.model.training.nano import nano_config

    torch.manual_seed(0)
    model = M3(nano_config(maker.tokenizer))
    initialise(model)
    ids = torch.randint(0, 1900, (1, 640))
    loss = IndexLoss(rows=32)
    hidden = model.hidden(ids, index_loss=loss)
    hidden.sum().backward(retain_graph=True)
    index = {n: p for n, p in model.named_parameters() if ".index_" in n}
    assert all(p.grad is None or not p.grad.any() for p in index.values())
    model.zero_grad()
    loss.total().backward()
    assert all(p.grad is not None and p.grad.any() for p in index.values())
    others = [
        n for n, p in model.named_parameters() if p.grad is not None and p.grad.any() and n not in index
    ]
    assert others == []


def test_questions_name_what_can_be_used() -> None:
    box = Widget("Tab", "tab", 0, 0, 80, 30), Widget("Tab", "tab", 10, 5, 70, 25)
    caption, check = Widget("sun", "text", 40, 50, 70, 60), Widget("sun", "checkbox", 20, 50, 32, 62)
    twice = Widget("OK", "button", 0, 90, 30, 110), Widget("OK", "button", 60, 90, 90, 110)
    alone, blank = Widget("said", "word", 0, 130, 30, 140), Widget("  ", "input", 0, 150, 90, 170)
    long = Widget("x" * 41, "text", 0, 180, 300, 190)
    found = unambiguous([*box, caption, check, *twice, alone, blank, long])
    assert found == [box[1], check, alone]
