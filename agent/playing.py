"""A run from its first record to its last: its log, who is beside it, and what plays in it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pilotfish import __version__
from pilotfish.agent import events as log
from pilotfish.agent.control.attending import NOBODY, People, attended
from pilotfish.agent.models import attention_of, model_name
from pilotfish.agent.player import Player
from pilotfish.agent.policy import Policy, Rule
from pilotfish.agent.reply import OnProgress
from pilotfish.agent.resume import messages_left, rules_added
from pilotfish.agent.settings import Settings
from pilotfish.agent.show import sandbox_note
from pilotfish.agent.stopping import Stop
from pilotfish.sandbox import HostDesktop

OnEvent = Callable[[log.Event], None]


def run_started(
    folder: Path,
    command: Literal["run", "demo", "bench", "code"],
    settings: Settings,
    host: HostDesktop | None = None,
    **options: Any,
) -> log.RunStarted:
    """The first record of a run. host: the user's own desktop, if it works there. options: what it is gone on
    with, beside the settings.
    """
    options |= {"settings": settings.model_dump(mode="json")}
    return log.RunStarted(
        run=folder.name,
        pilotfish=__version__,
        command=command,
        model=model_name(settings),
        attention=attention_of(settings),
        sandbox_level=settings.sandbox_level,
        on_host=settings.sandbox_level == 0 or host is not None,
        network=list(settings.network),
        host_desktop=_host_warning(host, settings),
        host_stop="" if host is None else host.hot_key,
        options=json.loads(json.dumps(options)),
    )


@contextlib.contextmanager
def recording(folder: Path, stop: Stop, on_event: OnEvent | None = None) -> Iterator[log.EventLog]:
    """The log of a run, in which its end is written, whatever happens in the block. Raises `LogError`."""
    with log.EventLog(folder, on_event) as events:
        try:
            yield events
        except log.LogError:
            raise
        except BaseException as error:
            status: Literal["failed", "interrupted"] = (
                "failed" if isinstance(error, Exception) else "interrupted"
            )
            events.append(log.RunEnded(status=status, reason=str(error) or type(error).__name__))
            raise
        if stop.is_set():
            events.append(log.RunEnded(status="interrupted", reason=stop.reason))
        else:
            events.append(log.RunEnded(status="finished"))


@contextlib.asynccontextmanager
async def playing(
    events: log.EventLog,
    stop: Stop,
    settings: Settings,
    people: People = NOBODY,
    on_progress: OnProgress | None = None,
    *,
    host: HostDesktop | None = None,
    before: Sequence[log.Event] = (),
) -> AsyncIterator[Player]:
    """What plays in a run, which people beside it can reach meanwhile. host: see `run_started`. before: what
    the run has on record, of which the rules and messages of people count still. Raises `LogError`.
    """
    policy = policy_of(settings, on_host=host is not None, added=rules_added(before))
    notes = [_host_warning(host, settings), sandbox_note(0) if settings.sandbox_level == 0 else ""]
    warning = ". ".join(filter(None, notes))
    async with (
        attended(events, policy, stop, people, warning, messages_left(before)) as steering,
        Player(settings, events, policy, stop, on_progress, steering) as player,
    ):
        yield player


def policy_of(settings: Settings, *, on_host: bool = False, added: Sequence[Rule] = ()) -> Policy:
    """The policy of a run. added: rules that people have added to it before."""
    rules = (*settings.rules, *added)
    return Policy(rules, default=settings.default_verdict, on_host=on_host, yes=settings.yes)


def _host_warning(host: HostDesktop | None, settings: Settings) -> str:
    if host is None:
        return ""
    return f"{host.protection}{', AND NOBODY IS ASKED (--yes)' if settings.yes else ''}"
