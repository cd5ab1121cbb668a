"""The replay page in a real browser, with a run whose every text is hostile, and the ATIF export."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.async_api import Page, async_playwright

from pilotfish.agent import events as log
from pilotfish.agent.atif import to_atif
from pilotfish.agent.replay import write_replay
from pilotfish.model.protocol import Usage
from pilotfish.sandbox.pieces import find_chromium

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u2028{}"
)


USAGE = Usage(
    input_tokens=30,
    cached_tokens=20,
    output_tokens=5,
    queue_s=0.25,
    prefill_s=1.5,
    decode_s=0.5,
    cache_bytes=3 << 20,
    device="cpu",
    sequences=2,
)


def record(folder: Path, text: str) -> log.RunLog:
    """A run of one step whose clip has three different frames."""
    with log.EventLog(folder) as events:
        frames = [events.frames.put(np.full((42, 34, 3), shade, np.uint8)) for shade in (0, 128, 255)]
        before = _clip(frames[0], frames[0], frames[0], frames[0], "unchanged")
        after = _clip(frames[0], frames[1], frames[2], frames[2], "settled")
        call = log.CallData(
            id="c1",
            name="computer",
            arguments={"action": "type", "coordinate": [500, 250], "text": text},
            confidence=0.934,
        )
        events.append(log.RunStarted(run=text, pilotfish="1", command="run", model=text))
        events.append(
            log.EpisodeStarted(
                episode=0,
                task=text,
                seed=7,
                instruction=text,
                screen=(34, 42),
                clip=before,
                tools=[{"name": "computer"}],
            )
        )
        events.append(log.Answered(step=1, text="hm", kept=False))
        events.append(log.Told(step=1, text=text))
        events.append(
            log.Answered(
                step=1,
                text=text,
                reasoning=text,
                calls=[call],
                usage=USAGE,
                logprobs=[-0.5, -0.25],
                seconds=3,
            )
        )
        events.append(log.Intended(step=1, call=call))
        events.append(log.Resulted(step=1, call_id="c1", ok=True, text=text, clip=after))
        events.append(log.EpisodeEnded(episode=0, end="done", passed=True, score=1, reason=text, steps=1))
        events.append(log.RunEnded(status="finished"))
    return log.read_run(folder)


def _clip(a: str, b: str, c: str, d: str, word: Any) -> log.ClipData:
    return log.ClipData(frames=(a, b, c, d), times_s=(0.0, 0.1, 0.2, 0.3), settled=True, word=word)


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(find_chromium().host))
        yield await browser.new_page()
        await browser.close()


async def test_hostile_text_is_shown_and_does_nothing(tmp_path: Path, page: Page) -> None:
    errors: list[str] = []
    requests: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    path = write_replay(record(tmp_path, HOSTILE))
    await page.goto(path.as_uri())
    assert await page.title() == "Pilotfish replay"
    assert await page.text_content("#title") == HOSTILE
    assert errors == []
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]


async def test_the_keys_walk_through_steps_and_frames(tmp_path: Path, page: Page) -> None:
    await page.goto(write_replay(record(tmp_path, "Type it")).as_uri())
    titles = await page.locator("nav button").all_text_contents()
    assert titles == ["start", "sampled again", "1. type 500 250 (0.93)", "done: passed, score 1"]
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    assert await page.locator("nav button[aria-current=true]").text_content() == "1. type 500 250 (0.93)"
    assert await page.locator("#strip button").count() == 4
    assert await page.locator("#marks ellipse").count() == 1, "the place of the action is drawn"
    assert "“Type it”" in (await page.locator("#marks text").first.text_content() or "")
    first = await page.get_attribute("#frame", "src")
    await page.keyboard.press("ArrowDown")
    assert await page.get_attribute("#frame", "src") != first
    assert await page.locator("#marks ellipse").count() == 0, "it is drawn on the frame it was decided on"
    account = (
        "30 tokens in (20 cached), 5 out · waiting 0.25 s · prefill 1.50 s · decode 0.50 s · cache 3.0 MiB"
    )
    assert f"3.000 s · {account} · cpu · 2 conversations at once" in await page.inner_text("#notes")
    assert 'computer 0.93 {"action"' in await page.inner_text("#notes")
    assert account in (await page.text_content("#facts") or "")
    widths = await page.evaluate("[...document.images].map((image) => image.naturalWidth)")
    assert set(widths) == {34}


def test_equal_frames_are_embedded_once(tmp_path: Path) -> None:
    html = write_replay(record(tmp_path, "x")).read_text()
    assert html.count("data:image/png;base64,") == 3


def test_a_missing_frame_leaves_a_gap(tmp_path: Path) -> None:
    run = record(tmp_path, "x")
    next((tmp_path / "frames").iterdir()).unlink()
    assert write_replay(run).read_text().count("data:image/png;base64,") == 2


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(log.LogError, match="choose another file"):
        write_replay(record(tmp_path, "x"), tmp_path / "no" / "where.html")


def test_atif(tmp_path: Path) -> None:
    document = json.loads(json.dumps(to_atif(record(tmp_path, "Type it"))))
    assert document["schema_version"] == "ATIF-v1.8"
    assert document["agent"]["tool_definitions"][0]["function"]["name"] == "computer"
    steps = document["steps"]
    assert [step["step_id"] for step in steps] == [1, 2, 3]
    assert [step["source"] for step in steps] == ["user", "user", "agent"]
    agent = steps[2]
    assert agent["reasoning_content"] == "Type it"
    assert agent["tool_calls"] == [
        {
            "tool_call_id": "c1",
            "function_name": "computer",
            "arguments": {"action": "type", "coordinate": [500, 250], "text": "Type it"},
            "extra": {"confidence": 0.934},
        }
    ]
    rest = {"queue_s": 0.25, "prefill_s": 1.5, "decode_s": 0.5, "cache_bytes": 3 << 20, "sequences": 2}
    assert agent["metrics"] == {
        "prompt_tokens": 30,
        "completion_tokens": 5,
        "cached_tokens": 20,
        "logprobs": [-0.5, -0.25],
        "extra": rest | {"device": "cpu", "retries": 0, "seconds": 3},
    }
    totals = document["final_metrics"]
    assert (totals["total_prompt_tokens"], totals["total_cached_tokens"]) == (30, 20)
    assert totals["extra"] == rest | {"answers": 2, "devices": ["cpu"], "retries": 0, "seconds": 3}
    (result,) = agent["observation"]["results"]
    assert result["source_call_id"] == "c1"
    text, *images = result["content"]
    assert text == {"type": "text", "text": "Type it\nsettled"}
    assert all((tmp_path / image["source"]["path"]).is_file() for image in images)
    assert document["extra"]["end"]["passed"] is True


def test_an_episode_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(log.LogError, match="no episode 3"):
        to_atif(record(tmp_path, "x"), 3)
    with pytest.raises(log.LogError, match="no episode 3"):
        write_replay(log.read_run(tmp_path), episodes=[3])


def test_what_is_not_known_is_left_out_of_atif(tmp_path: Path) -> None:
    with log.EventLog(tmp_path) as events:
        events.append(log.RunStarted(run="r", pilotfish="1", command="run", model="m"))
        events.append(log.EpisodeStarted(episode=0, task="t", instruction="i"))
        call = log.CallData(id="a", name="shell")
        events.append(log.Answered(step=1, calls=[call], usage=Usage(output_tokens=4)))
    document = to_atif(log.read_run(tmp_path))
    agent = document["steps"][1]
    assert agent["metrics"] == {"completion_tokens": 4, "extra": {"retries": 0, "seconds": 0.0}}
    assert "extra" not in agent["tool_calls"][0]
    assert "total_prompt_tokens" not in document["final_metrics"]
