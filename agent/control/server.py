"""The private socket of a run: who is connected, who controls it, and what each of them is sent.

Nothing that a client does holds the run up: what it is sent waits in a queue of its own, in which newer
news of a kind takes the place of older, and one that does not read it is let go.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path

from pydantic import ValidationError

from pilotfish.agent.control.peer import is_own
from pilotfish.agent.control.refusal import Refusal
from pilotfish.agent.control.steering import Steering
from pilotfish.agent.control.wire import (
    REQUEST,
    SOCKET,
    AddRule,
    Control,
    Decide,
    Delta,
    Done,
    FromRun,
    Hello,
    Input,
    Pause,
    Refused,
    Request,
    Screen,
    State,
    StepBack,
    Stop,
    TakeOver,
    Tell,
    WatchScreen,
)
from pilotfish.agent.events import LogError
from pilotfish.agent.safetext import all_encodable

MAX_REQUEST = 16 << 20
"""Bytes of the longest request: a whole file as an edited argument has room."""
MAX_UNREAD = 32 << 20
"""Bytes that may wait for a client beside the newest screen; one that reads less is let go."""
_OBJECT = 1024
"""Bytes that a message takes beside its text."""
MAX_CLIENTS = 64
LINGER_S = 1.0
"""How long a client may take to read the last that the run says."""


class Client:
    """One connection: what waits to be sent to it, and who it is."""

    def __init__(self, number: int, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self._writer = writer
        self._queue: list[FromRun] = []
        self._screen: Screen | None = None
        self._bytes = 0
        self._more = asyncio.Event()
        self._ends = False
        self.sending = asyncio.ensure_future(self._send())

    def say(self, message: FromRun) -> None:
        """Have something sent. Old states and screens that wait give way to new ones."""
        if self._ends:
            return
        last = self._queue[-1] if self._queue else None
        match message, last:
            case Screen(), _:
                self._screen = message
                self._more.set()
                return
            case State(), State():
                self._bytes -= _weight(self._queue.pop())
            case Delta(start=False), Delta() if (message.step, message.kind) == (last.step, last.kind):
                self._bytes -= _weight(self._queue.pop())
                message = last.model_copy(update={"text": last.text + message.text})
        self._queue.append(message)
        self._bytes += _weight(message)
        self._more.set()
        if self._bytes > MAX_UNREAD:
            self.drop()

    def end(self) -> None:
        """Send what waits, then end the connection."""
        self._ends = True
        self._more.set()

    def drop(self) -> None:
        """End the connection at once."""
        self._ends = True
        self._queue.clear()
        self._screen = None
        self._more.set()
        self._writer.transport.abort()

    async def _send(self) -> None:
        try:
            while self._queue or self._screen or not self._ends:
                queue, self._queue, self._bytes = self._queue, [], 0
                if self._screen is not None:
                    queue.append(self._screen)
                    self._screen = None
                for message in queue:
                    self._writer.write(
                        _screen_line(message) if isinstance(message, Screen) else _line(message)
                    )
                    await self._writer.drain()
                if not self._queue and not self._screen and not self._ends:
                    self._more.clear()
                    await self._more.wait()
        except OSError:
            pass  # it has gone
        finally:
            self._writer.close()


class Server:
    """Those who are connected to one run. Use `serving`."""

    def __init__(self, run: Path, steering: Steering) -> None:
        self._run = run
        self._steering = steering
        self._clients: dict[int, Client] = {}
        self._controller: int | None = None
        self._last = 0
        self._tasks: set[asyncio.Task[None]] = set()
        steering.listeners.append(self._broadcast)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends."""
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Say the last words, wait a moment for them to be read, and end all connections."""
        self._steering.listeners.remove(self._broadcast)
        clients = list(self._clients.values())
        for client in clients:
            client.end()
        if clients:
            await asyncio.wait([client.sending for client in clients], timeout=LINGER_S)
        for client in clients:
            client.drop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not is_own(writer) or len(self._clients) >= MAX_CLIENTS:
            writer.transport.abort()
            return
        self._last += 1
        client = Client(self._last, writer)
        try:
            self._clients[client.number] = client
            self._greet(client)
            await self._listen(client, reader)
        except OSError:
            pass  # it has gone
        finally:
            del self._clients[client.number]
            self._steering.reach.unwatch(client.say)
            if self._controller == client.number:
                self._controller = None
            client.end()
            self._tell_who()
            await asyncio.wait([client.sending], timeout=LINGER_S)
            client.drop()

    def _greet(self, client: Client) -> None:
        folder = self._run.absolute()
        client.say(Hello(run=folder.name, folder=str(folder), pid=os.getpid(), client=client.number))
        self._tell_who()
        client.say(self._steering.state)
        for delta in self._steering.written:
            client.say(delta)
        for question in self._steering.questions:
            client.say(question)

    async def _listen(self, client: Client, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await reader.readuntil()
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError:
                client.say(Refused(id=0, sentence=f"A request is longer than {MAX_REQUEST >> 20} MiB."))
                return
            if (answer := self._answer(client, line)) is not None:
                client.say(answer)
            await asyncio.sleep(0)  # many requests in a row leave the run its turn

    def _answer(self, client: Client, line: bytes) -> Done | Refused | None:
        """What is said to a request; None where that comes later, and others are heeded meanwhile."""
        try:
            request = REQUEST.validate_json(line)
        except ValidationError as error:
            return Refused(id=_id_of(line), sentence=_what_is_wrong(error))
        try:
            done = self._do(client, request)
        except (Refusal, LogError) as refusal:
            return Refused(id=request.id, sentence=str(refusal))
        if isinstance(done, str):
            return Done(id=request.id, note=done)
        task = asyncio.ensure_future(self._answer_later(client, request.id, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _answer_later(self, client: Client, number: int, done: Awaitable[str]) -> None:
        try:
            client.say(Done(id=number, note=await done))
        except (Refusal, LogError) as refusal:
            client.say(Refused(id=number, sentence=str(refusal)))
        except Exception as error:
            # A fault of ours, which ends the task with its trace; who asked does not wait for ever.
            client.say(
                Refused(id=number, sentence=f"The run failed at this ({error!r}); ask for something else.")
            )
            raise

    def _do(self, client: Client, request: Request) -> str | Awaitable[str]:
        match request:
            case Control():
                return self._control(client, request)
            case WatchScreen():
                return self._watch_screen(client, request)
        if self._controller is None:
            self._controller = client.number
            self._tell_who()
        elif self._controller != client.number:
            raise Refusal(
                f"Client {self._controller} controls this run; take control first (--force of `pilotfish "
                "steer` does), or wait until it is free."
            )
        steering = self._steering
        match request:
            case Decide():
                return steering.decide(request)
            case Pause():
                return steering.pause(request)
            case Tell():
                return steering.tell(request.text)
            case StepBack():
                return steering.step_back(request.step)
            case TakeOver():
                return steering.take_over(request.on, request.note)
            case Input():
                return steering.put_in(request)
            case AddRule():
                return steering.add_rule(request.rule, save=request.save)
            case Stop():
                return steering.stop()

    def _control(self, client: Client, request: Control) -> str:
        other = self._controller not in (None, client.number)
        if not request.take:
            self._controller = self._controller if other else None
        elif other and not request.force:
            raise Refusal(f"Client {self._controller} controls this run; take it with force, or wait.")
        else:
            self._controller = client.number
        self._tell_who()
        return "You control the run." if request.take else "You do not control the run."

    def _watch_screen(self, client: Client, request: WatchScreen) -> str:
        reach = self._steering.reach
        if not request.on:
            reach.unwatch(client.say)
            return "The screen is not sent any more."
        reach.watch(client.say, request.per_second)
        return "The screen is sent whenever it changes."

    def _tell_who(self) -> None:
        self._steering.attended(len(self._clients), self._controller)

    def _broadcast(self, message: FromRun) -> None:
        for client in list(self._clients.values()):
            client.say(message)


@contextlib.asynccontextmanager
async def serving(folder: Path, steering: Steering) -> AsyncIterator[Server]:
    """Serve a run whose log this process holds. The socket is there within the block only.

    Raises OSError where the folder's file system takes no socket.
    """
    server = Server(folder, steering)
    with _listener(folder) as listener:
        async with await asyncio.start_unix_server(server.accept, sock=listener, limit=MAX_REQUEST):
            try:
                yield server
            finally:
                await server.close()


@contextlib.contextmanager
def _listener(folder: Path) -> Iterator[socket.socket]:
    """The socket, at a place that one who holds the log's lock may clear: a dead run left it there."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listener:
            os.fchmod(listener.fileno(), 0o600)  # which the file gets
            with contextlib.suppress(FileNotFoundError):
                os.unlink(SOCKET, dir_fd=descriptor)
            # By way of the descriptor, since a socket's path may have 107 bytes only.
            listener.bind(f"/proc/self/fd/{descriptor}/{SOCKET}")
            mine = os.stat(SOCKET, dir_fd=descriptor).st_ino
            listener.listen()
            try:
                yield listener
            finally:
                with contextlib.suppress(OSError):
                    if os.stat(SOCKET, dir_fd=descriptor).st_ino == mine:
                        os.unlink(SOCKET, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _line(message: FromRun) -> bytes:
    return json.dumps(all_encodable(message.model_dump(mode="python"))).encode() + b"\n"


@functools.lru_cache(maxsize=1)
def _screen_line(screen: Screen) -> bytes:
    """The same for all who watch: megabytes that are spelt out once."""
    return _line(screen)


def _weight(message: FromRun) -> int:
    """About how many bytes a message takes."""
    return _OBJECT + len(message.text if isinstance(message, Delta) else repr(message))


def _id_of(line: bytes) -> int:
    try:
        found = json.loads(line)["id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0
    return found if isinstance(found, int) else 0


def _what_is_wrong(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"The request is not one of this protocol ({f'{where}: ' if where else ''}{first['msg']})."
