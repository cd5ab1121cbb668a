"""How far a person reaches into a run: back to before a step, to mouse and keyboard, to the live screen.

What is wanted is heeded by the loop, which alone acts; who asked waits for it. A step back does not wait for
what is being done. Mouse and keyboard are lent between two steps, for which the model's answer is given up,
but not a call that runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pilotfish.agent.camera import Camera
from pilotfish.agent.control.hands import Hands
from pilotfish.agent.control.refusal import Refusal
from pilotfish.agent.control.screen import LiveScreen
from pilotfish.agent.control.wire import Input
from pilotfish.agent.control.wire import Screen as Shown
from pilotfish.agent.limits import GoBack, HandsWanted
from pilotfish.agent.waiting import Interrupt
from pilotfish.tools.base import Screen

NO_SCREEN = "This run has no screen."


class Reach:
    """Of one run, within its event loop. All that a person wants raises `Refusal`."""

    def __init__(self, change: Callable[..., None]) -> None:
        """change: changes what is said of the run."""
        self._change = change
        self.back_wanted = Interrupt()
        """Set while a step back is wanted."""
        self.hands_wanted = Interrupt()
        """Set while mouse and keyboard are wanted."""
        self.check_back: Callable[[int], None] | None = None
        """Raises `Refusal` where there is no way back to before a step; None while nothing is played."""
        self.no_hands = "The run is starting; wait until it has begun."
        """Why mouse and keyboard cannot be had now, as a sentence; '' if they can."""
        self.has_screen: bool | None = None
        """Whether the run has a screen; None until that is known."""
        self._back: asyncio.Future[str] | None = None
        self._taking: asyncio.Future[str] | None = None
        self._note: asyncio.Future[str] | None = None
        self._giving: list[asyncio.Future[str]] = []
        self._hands: Hands | None = None
        self._holder: int | None = None
        self._viewers: dict[Callable[[Shown], None], float] = {}
        self._live: LiveScreen | None = None

    # What a person wants.

    async def step_back(self, step: int) -> str:
        """Go back to before a step; what came of it."""
        if self.check_back is None:
            raise Refusal("The run has not begun or is over, so there is no step to go back to.")
        if self._back is not None:
            raise Refusal("The run is stepping back already; wait until it is there.")
        self.check_back(step)
        self._back = asyncio.get_running_loop().create_future()
        self.back_wanted.because(GoBack(step))
        return await self._back

    async def take_over(self, holder: int | None) -> str:
        """Have mouse and keyboard, as soon as no call runs. holder: the client who takes them."""
        if self._hands is not None or self._taking is not None:
            raise Refusal("Mouse and keyboard are taken over already.")
        if self.no_hands:
            raise Refusal(self.no_hands)
        self._holder = holder
        self._taking = asyncio.get_running_loop().create_future()
        self.hands_wanted.because(HandsWanted())
        return await self._taking

    async def give_back(self, note: str) -> str:
        """Hand them back; all that is held is released. note: what the agent is told besides."""
        if self._note is None or self._note.done():
            raise Refusal("Nobody has taken over mouse and keyboard.")
        self._note.set_result(note)
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._giving.append(done)
        return await done

    async def put_in(self, request: Input) -> str:
        """Something done by the one who took over."""
        if self._hands is None:
            raise Refusal("Nobody has taken over mouse and keyboard; do that first.")
        await self._hands.do(request)
        return ""

    def watch(self, say: Callable[[Shown], None], per_second: float) -> None:
        """Begin to be told what the screen shows, as soon as there is one."""
        if self.has_screen is False:
            raise Refusal(NO_SCREEN)
        self._viewers[say] = per_second
        if self._live is not None:
            self._live.watch(say, per_second)

    def unwatch(self, say: Callable[[Shown], None]) -> None:
        """Be told no more."""
        if self._viewers.pop(say, None) is not None and self._live is not None:
            self._live.unwatch(say)

    def attended(self, controller: int | None) -> None:
        """Someone controls the run now: who holds mouse and keyboard and is not it has handed them back."""
        if controller == self._holder:
            return
        if self._taking is not None:
            self.hands_wanted.clear()
            _refuse(self._taking, "The control of the run has gone to someone else.")
            self._taking = None
        if self._note is not None and not self._note.done():
            self._note.set_result("")

    # What the loop does.

    def went_back(self, note: str) -> bool:
        """The run is where a person wanted it to be again; whether one waits for that."""
        back, self._back = self._back, None
        if back is not None and not back.done():
            back.set_result(note)
        return back is not None

    async def lend(self, hands: Hands) -> str:
        """Let a person use them until they hand them back; returns what the agent is told besides."""
        taking, self._taking = self._taking, None
        self.hands_wanted.clear()
        self._hands = hands
        self._note = asyncio.get_running_loop().create_future()
        if taking is None:  # who wanted them has gone meanwhile
            self._note.set_result("")
        elif not taking.done():
            taking.set_result("Mouse and keyboard are yours; the run holds until you hand them back.")
        self._change(phase="taken_over")
        try:
            return await self._note
        finally:
            self._hands = self._holder = None

    def returned(self) -> None:
        """All that was held is released."""
        self._note = None
        for done in self._giving:
            if not done.done():
                done.set_result("The agent has mouse and keyboard again.")
        self._giving.clear()

    def show(self, screen: Screen, camera: Camera) -> None:
        """There is a screen to be seen."""
        self.has_screen = True
        self._live = LiveScreen(screen, camera)
        for say, per_second in self._viewers.items():
            self._live.watch(say, per_second)

    async def hide(self) -> None:
        """The screen goes."""
        live, self._live = self._live, None
        if live is not None:
            await live.close()

    def over(self) -> None:
        """Nothing is played any more: who still waits is told so."""
        self.check_back, self.no_hands = None, "The run has ended."
        self.back_wanted.clear()
        self.hands_wanted.clear()
        waiting: list[Any] = [self._back, self._taking, *self._giving]
        for future in waiting:
            _refuse(future, "The run has ended meanwhile; look at its log.")
        self._back = self._taking = None
        self._giving.clear()


def _refuse(future: asyncio.Future[str] | None, sentence: str) -> None:
    if future is not None and not future.done():
        future.set_exception(Refusal(sentence))
