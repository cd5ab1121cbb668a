"""Conversations to prompts beside the event loop and the network, which go on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pilotfish.model.chat import ChatFormat, Thinking
from pilotfish.model.protocol import Limits, Message, ModelError, ToolSpec
from pilotfish.model.request import Laid
from pilotfish.model.sequence import Tokens

RENDERERS = 16
"""Prompts rendered at once; others wait."""


class Renderers:
    """Threads that render prompts for one checkpoint."""

    def __init__(self, chat: ChatFormat, name: str, context: int, place_ids: tuple[int, int]):
        """context: tokens that a prompt and its answer may have together. place_ids: the placeholders."""
        self._chat, self._name, self._context, self._place_ids = chat, name, context, place_ids
        self._threads = ThreadPoolExecutor(RENDERERS, "render")

    async def render(
        self, conversation: Sequence[Message], tools: Sequence[ToolSpec], limits: Limits, stop: asyncio.Event
    ) -> Laid | None:
        """A conversation as a prompt; None when it is stopped, or its time is up, before it is one.

        Raises ModelError when it cannot be rendered, or leaves no room for an answer.
        """
        left = threading.Event()

        def look() -> None:
            if left.is_set():
                raise ModelError("Nobody waits for this prompt any more.")

        job: asyncio.Future[Any] = asyncio.wrap_future(
            self._threads.submit(self._lay, conversation, tools, limits.thinking, look)
        )
        stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait(
                [job, stopping], timeout=limits.max_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            laid: Laid | None = job.result() if job.done() else None
            return laid
        finally:
            left.set()
            stopping.cancel()
            job.cancel()

    def close(self) -> None:
        """Wait for what is being rendered; what waits is not."""
        self._threads.shutdown(cancel_futures=True)

    def _lay(
        self,
        conversation: Sequence[Message],
        tools: Sequence[ToolSpec],
        thinking: Thinking,
        look: Callable[[], object],
    ) -> Laid:
        prompt = self._chat.render(conversation, tools, thinking, look=look)
        if len(prompt.ids) >= self._context:
            raise ModelError(
                f"The conversation has {len(prompt.ids)} tokens and {self._name} reads at most "
                f"{self._context - 1}; shorten it, by its oldest clips first, or start a new one."
            )
        return Laid(Tokens.lay_out(prompt.ids, prompt.media, self._place_ids), prompt.media)
