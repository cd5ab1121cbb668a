"""What an engine has computed of a repository that is laid out stays valid when a file changes."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from pilotfish.model.engine import Engine
from pilotfish.model.protocol import EndChunk, Limits, Message, Usage
from pilotfish.model.tokenizer import Tokenizer
from pilotfish.tools.index.layout import follow, lay_out
from pilotfish.tools.index.repository import Index

REPOSITORY = Path(__file__).resolve().parents[2]
TOKENS = 52_000  # whole chunks of 512 are reused, so that one less is under a hundredth of it


async def test_a_changed_file_leaves_the_prefix(tiny_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "tools" / "index", tmp_path / "repo")
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    config = (folder / "config.json").read_text()
    assert config.count('"max_position_embeddings": 4096') == 1
    (folder / "config.json").write_text(
        config.replace('"max_position_embeddings": 4096', '"max_position_embeddings": 65536')
    )
    engine = Engine(folder, device="cpu", dtype="float32")
    tokenizer = Tokenizer.from_folder(tiny_folder)

    def count(text: str) -> int:
        return len(tokenizer.encode(text))

    async def ask(text: str) -> Usage:
        stream = engine.respond(
            (Message("user", (text,)),), (), stop=asyncio.Event(), limits=Limits(max_tokens=1)
        )
        *_, end = [chunk async for chunk in stream]
        assert isinstance(end, EndChunk)
        return end.usage

    with Index(tmp_path / "repo", tmp_path / "i.sqlite", above=False) as index:
        index.update(workers=1)
        laid = lay_out(index, TOKENS, count)
        assert TOKENS * 0.97 < laid.tokens <= TOKENS
        assert (await ask(laid.text)).cached_tokens == 0
        first = next(section.path for section in laid.sections if section.kind == "file")
        changed = tmp_path / "repo" / first
        changed.write_text("# a new first line\n" + changed.read_text())
        index.update(workers=1)
        after = follow(laid, index, 2 * TOKENS, count)
        assert after.text != laid.text
        reused = (await ask(after.text)).cached_tokens
        assert reused is not None
        assert reused >= 0.99 * laid.tokens
