"""The network of a sandbox: real programs inside, real servers outside, and a list of hosts between them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pilotfish.sandbox import Attempt, Network, Sandbox, SandboxSpec

from .created_user import created_user, run_python
from .host import alive, process_tree
from .inside import until
from .web_server import BIG, silent_server, web_server

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

# Sends bytes to the proxy in pieces with pauses, perhaps ends its half, and prints all that comes back.
RAW = """
import json, socket, sys, time
pieces, end = json.load(sys.stdin)
with socket.create_connection(("127.0.0.1", 3128), 20) as proxy:
    try:
        for pause, piece in pieces:
            time.sleep(pause)
            proxy.sendall(piece.encode("latin-1"))
        if end: proxy.shutdown(1)
        while data := proxy.recv(65536): sys.stdout.write(data.decode("latin-1"))
    except ConnectionError as error: print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadingHTTPServer]:
    with web_server() as opened:
        yield opened


@pytest.fixture(scope="module")
def silent() -> Iterator[int]:
    with silent_server() as port:
        yield port


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def box(server: ThreadingHTTPServer) -> AsyncIterator[Sandbox]:
    """A sandbox that may reach the server of the tests, and names that lead nowhere."""
    port = server.server_address[1]
    allow = (f"ok.test:80=127.0.0.1:{port}", f"*.ok.test:{port}")
    network = Network((*allow, "nowhere.invalid:80", "closed.test:80=127.0.0.1:1"))
    async with Sandbox.open(SandboxSpec(desktop=False, network=network)) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hasty(server: ThreadingHTTPServer, silent: int) -> AsyncIterator[Sandbox]:
    """One that ends connections after two seconds without a byte."""
    allow = (f"ok.test:80=127.0.0.1:{server.server_address[1]}", f"silent.test:80=127.0.0.1:{silent}")
    async with Sandbox.open(SandboxSpec(desktop=False, network=Network(allow, idle_s=2))) as opened:
        yield opened


async def output(box: Sandbox, command: str, timeout_s: float = 60) -> str:
    return (await box.shell.run(command, timeout_s=timeout_s)).output.strip()


async def raw(box: Sandbox, *pieces: tuple[float, str], end: bool = False) -> str:
    process = await box.run(["python3", "-c", RAW], stdin=json.dumps([pieces, end]).encode())
    await process.wait(60)
    return process.output


async def last(box: Sandbox, fits: Callable[[Attempt], bool]) -> Attempt:
    """The newest attempt that fits; it may be told a moment after the program inside has ended."""
    deadline = time.monotonic() + 20
    while not (found := [attempt for attempt in box.network_log.attempts if fits(attempt)]):
        assert time.monotonic() < deadline, box.network_log.attempts[-3:]
        await asyncio.sleep(0.01)
    return found[-1]


def proxies() -> set[tuple[int, str]]:
    """The proxies that this process has started."""
    return {
        found for found in process_tree(os.getpid()) if any("proxy.server" in line for line in alive({found}))
    }


def _users(pid: int) -> set[int]:
    """The user ids that a process has or can take again."""
    status = Path(f"/proc/{pid}/status").read_text()
    return {int(word) for line in status.splitlines() if line.startswith("Uid:") for word in line.split()[1:]}


async def test_none_by_default() -> None:
    before = proxies()
    async with Sandbox.open(SandboxSpec(desktop=False)) as alone:
        assert not [name for name in alone.env if "proxy" in name.lower()]
        assert "network" not in alone.protection
        assert await output(alone, "curl -sS http://ok.test/") == "curl: (6) Could not resolve host: ok.test"
        assert alone.network_log.attempts == ()
        assert proxies() == before


async def test_what_is_allowed(box: Sandbox) -> None:
    assert await output(box, "curl -sS 'http://ok.test/a?b=%20c'") == "GET ok.test /a?b=%20c"
    plain = await last(box, lambda one: one.host == "ok.test" and one.over)
    assert (plain.method, plain.port, plain.verdict, plain.why) == ("GET", 80, "allowed", "")
    assert plain.sent > 50
    assert plain.received > 50
    assert abs(plain.began - time.time()) < 60
    assert await output(box, "curl -sS -p http://ok.test/b") == "GET ok.test /b"
    assert (await last(box, lambda one: one.method == "CONNECT" and one.over)).verdict == "allowed"
    code = "import urllib.request as u; print(u.urlopen('http://ok.test/c').read().decode())"
    assert await output(box, f'python3 -c "{code}"') == "GET ok.test /c"
    assert "ok.test:80=127.0.0.1" in box.protection


async def test_what_is_refused_says_how_to_allow_it(box: Sandbox) -> None:
    said = "evil.test:80 is not allowed here; the user can allow it with --allow-host evil.test:80."
    assert await output(box, "curl -sS http://evil.test/") == said
    attempt = await last(box, lambda one: one.host == "evil.test")
    assert (attempt.verdict, attempt.why, attempt.over, attempt.sent) == ("refused", said, True, 0)
    code = "import urllib.request as u; u.urlopen('https://evil.test/')"
    assert said.replace(":80", ":443") in await output(box, f'python3 -c "{code}"')
    assert "response 403" in await output(box, "curl -sS https://evil.test/")
    # A name below an allowed one is looked up, and is not found; so is one that is allowed and is not there.
    assert "could not be looked up" in await output(box, "curl -sS http://nowhere.invalid/")
    assert (await last(box, lambda one: one.host == "nowhere.invalid")).verdict == "failed"
    assert "could not be reached (Connection refused)" in await output(box, "curl -sS http://closed.test/")
    attempt = await last(box, lambda one: one.host == "closed.test" and one.over)
    assert (attempt.verdict, attempt.received) == ("failed", 0)


async def test_large_bodies_go_both_ways_unchanged(box: Sandbox) -> None:
    wanted = hashlib.sha256(BIG).hexdigest()
    assert (await output(box, "curl -sS http://ok.test/big | sha256sum")).split()[0] == wanted
    assert (await output(box, "curl -sS -p http://ok.test/big | tee big | sha256sum")).split()[0] == wanted
    for options in ("-T big", "-p -T big", "-T - <big", "-p -T - <big", "--data-binary @big"):
        assert await output(box, f"curl -sS {options} http://ok.test/up") == f"{len(BIG)} {wanted}", options
    attempt = await last(box, lambda one: one.over and one.sent > len(BIG))
    assert attempt.verdict == "allowed"


async def test_a_second_request_never_reaches_the_server_of_the_first() -> None:
    """It may be for another host, with that host's cookies; and the first may keep its connection open."""
    heard: list[bytes] = []

    async def greedy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(b"")
        while data := await reader.read(4096):
            if not heard[-1]:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
            heard[-1] += data
        writer.close()

    first = "GET http://ok.test/first HTTP/1.1\r\nHost: ok.test\r\n\r\n"
    post = "POST http://ok.test/first HTTP/1.1\r\nHost: ok.test\r\nTransfer-Encoding: chunked\r\n\r\n"
    post += "5\r\nhello\r\n0\r\n\r\n"
    second = "GET http://evil.test/second HTTP/1.1\r\nHost: evil.test\r\nCookie: secret\r\n\r\n"
    server = await asyncio.start_server(greedy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    spec = SandboxSpec(desktop=False, network=Network((f"ok.test:80=127.0.0.1:{port}",)))
    async with server, Sandbox.open(spec) as own:
        for pieces in ([(0.0, first + second)], [(0.0, first), (0.2, second)], [(0.0, post + second)]):
            assert (await raw(own, *pieces, end=True)).endswith("\r\n\r\nhi")
    assert len(heard) == 3
    assert all(b"/first" in one and b"second" not in one and b"secret" not in one for one in heard)
    assert heard[2].endswith(b"0\r\n\r\n")


async def test_halves_that_end_early(box: Sandbox) -> None:
    request = "GET http://ok.test/half HTTP/1.1\r\nHost: ok.test\r\n\r\n"
    assert "GET ok.test /half" in await raw(box, (0, request), end=True)
    tunnel = (
        "CONNECT ok.test:80 HTTP/1.1\r\n\r\nGET /inner HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n"
    )
    assert "GET other /inner" in await raw(box, (0, tunnel), end=True)
    assert "HTTP/1.1 400 the request ended in its head" in await raw(box, (0, request[:20]), end=True)
    assert await raw(box, end=True) == ""


async def test_slow_and_long_requests(hasty: Sandbox) -> None:
    head = "GET http://ok.test/slow HTTP/1.1\r\nHost: ok.test\r\n\r\n"
    assert "GET ok.test /slow" in await raw(hasty, *[(0.01, letter) for letter in head])
    assert "HTTP/1.1 408 " in await raw(hasty, (0, head[:20]), (4, head[20:]))
    assert (await last(hasty, lambda one: "not whole in time" in one.why)).verdict == "refused"
    for long in (f"GET http://ok.test/{'a' * 20_000}", "X-Long: a\r\n" * 20_000, "a" * 1_000_000):
        assert "HTTP/1.1 431 " in await raw(hasty, (0, long))
    assert "GET ok.test /after" in await output(hasty, "curl -sS http://ok.test/after")


async def test_a_server_that_never_answers(hasty: Sandbox) -> None:
    for options in ("", "-p"):
        assert "curl: (52) Empty reply" in await output(hasty, f"curl -sS {options} http://silent.test/")
        attempt = await last(hasty, lambda one: one.host == "silent.test" and one.over)
        assert attempt.why == "nothing moved for 2 s"


async def test_five_hundred_at_once(box: Sandbox) -> None:
    before = len(box.network_log.attempts)
    code = """
import socket, threading
found = []
def ask():
    with socket.create_connection(("127.0.0.1", 3128), 60) as one:
        one.sendall(b"GET http://ok.test/many HTTP/1.1\\r\\nHost: ok.test\\r\\n\\r\\n")
        data = b""
        while piece := one.recv(4096): data += piece
        found.append(data.startswith(b"HTTP/1.1 200"))
threads = [threading.Thread(target=ask) for _ in range(500)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(found.count(True))
"""
    process = await box.run(["python3", "-c", code])
    await process.wait(100)
    assert process.output.strip() == "500"
    many = box.network_log.attempts[before:]
    assert sum(one.verdict == "allowed" for one in many) == 500
    # And 300 that say nothing take nobody's turn for longer than a head may take.
    idle = "import socket, time; a = [socket.create_connection(('127.0.0.1', 3128)) for _ in range(300)]"
    await box.run(["python3", "-c", f"{idle}; time.sleep(600)"])
    assert "GET ok.test /turn" in await output(box, "curl -sS http://ok.test/turn")


async def test_the_relay_killed_by_a_program_is_there_again(box: Sandbox) -> None:
    for _ in range(2):
        await output(box, "pkill -9 -f /proc/self/fd/3.*3128")
        deadline = time.monotonic() + 20
        while "GET ok.test /again" not in await output(box, "curl -sS http://ok.test/again"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
    assert box.network_log.troubles == [
        "the network's relay was ended by a program inside, it is started again."
    ]


async def test_a_frozen_relay_is_started_again(server: ThreadingHTTPServer) -> None:
    network = Network((f"ok.test:80=127.0.0.1:{server.server_address[1]}",))
    async with Sandbox.open(SandboxSpec(desktop=False, network=network)) as own:
        await output(own, "pkill -STOP -f /proc/self/fd/3.*3128")
        deadline = time.monotonic() + 20
        while "GET ok.test /again" not in await output(own, "curl -sS -m 1 http://ok.test/again"):
            assert time.monotonic() < deadline
        sentence = "the network's relay was frozen by a program inside, it is started again."
        assert own.network_log.troubles == [sentence]
        assert own.trouble is None


@pytest.mark.parametrize(
    ("number", "what"),
    [(signal.SIGSTOP, "was frozen by a signal"), (signal.SIGKILL, "was killed by signal 9")],
)
async def test_a_proxy_that_fails_is_told(server: ThreadingHTTPServer, number: int, what: str) -> None:
    network = Network((f"ok.test:80=127.0.0.1:{server.server_address[1]}",))
    before = proxies()
    async with Sandbox.open(SandboxSpec(desktop=False, network=network)) as own:
        ((pid, _),) = proxies() - before
        os.kill(pid, number)
        deadline = time.monotonic() + 20
        while own.trouble is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        assert own.trouble == f"the network's proxy of the sandbox {what}, open a new one."
        assert "proxy of this sandbox has ended" in await output(own, "curl -sS http://ok.test/")


async def test_a_proxy_that_is_killed_lets_nothing_through(server: ThreadingHTTPServer) -> None:
    network = Network((f"ok.test:80=127.0.0.1:{server.server_address[1]}",))
    before = proxies()
    async with Sandbox.open(SandboxSpec(desktop=False, network=network)) as own:
        heard: list[str] = []
        own.network_log.listener = lambda attempts, trouble: heard.append(trouble)
        ((pid, _),) = proxies() - before
        assert 0 not in _users(pid)
        os.kill(pid, signal.SIGKILL)
        said = await output(own, "curl -sS -w '%{http_code}' http://ok.test/")
        assert said.splitlines() == [
            "the proxy of this sandbox has ended, so no host can be reached; a new sandbox has a new one.",
            "502",
        ]
        (trouble,) = own.network_log.troubles
        assert "proxy has ended (status -9)" in trouble
        assert heard == [trouble]
        assert await output(own, "echo still here") == "still here"


async def test_the_proxy_ends_with_its_sandbox_even_when_frozen(server: ThreadingHTTPServer) -> None:
    network = Network((f"ok.test:80=127.0.0.1:{server.server_address[1]}",))
    before = proxies()
    for frozen in (False, True):
        async with Sandbox.open(SandboxSpec(desktop=False, network=network)) as own:
            mine = proxies() - before
            assert len(mine) == 1
            if frozen:
                os.kill(next(iter(mine))[0], signal.SIGSTOP)
            await own.run(["curl", "-sS", "http://ok.test/"])
        assert proxies() == before


OWNER = """
import asyncio, sys
from pilotfish.sandbox import Network, Sandbox, SandboxSpec
async def main():
    network = Network(("ok.test:80=127.0.0.1:1",))
    async with Sandbox.open(SandboxSpec(desktop=False, network=network)):
        print("open", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("frozen", [False, True])
async def test_the_proxy_ends_with_an_owner_that_is_killed(frozen: bool) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, stdout=subprocess.PIPE, env={**os.environ}
    )
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"open\n"
    mine = process_tree(owner.pid)
    ((proxy, _),) = (one for one in mine if any("proxy.server" in line for line in alive({one})))
    if frozen:
        os.kill(proxy, signal.SIGSTOP)
    owner.kill()
    await owner.wait()
    deadline = time.monotonic() + 20
    while left := alive(mine):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.05)


async def test_chromium_goes_through_the_proxy(server: ThreadingHTTPServer) -> None:
    network = Network((f"ok.test:80=127.0.0.1:{server.server_address[1]}",))
    async with Sandbox.open(SandboxSpec(width=320, height=240, network=network)) as desk:
        page = await desk.browser.open("http://ok.test/page")
        assert await page.page.title() == "served"
        await page.page.wait_for_function("document.body.dataset.found")
        found: list[Any] = json.loads(await page.evaluate("document.body.dataset.found"))
        assert found[0] == "GET ok.test /data"
        refused = await last(desk, lambda one: one.host == "evil.test")
        assert refused.verdict == "refused"
        # Nothing of the browser's own wants the network.
        assert {one.host for one in desk.network_log.attempts} == {"ok.test", "evil.test"}
        page = await desk.browser.open("http://evil.test/")
        assert "the user can allow it with --allow-host evil.test:80" in await page.page.inner_text("body")


async def test_no_names_and_no_other_way(box: Sandbox) -> None:
    assert (await output(box, "getent hosts ok.test; echo $?")) == "2"
    direct = await output(box, "curl -sS -m 5 --noproxy '*' http://93.184.216.34/; cat /etc/resolv.conf")
    assert "curl: (7)" in direct
    assert "No such file" in direct
    # The socket itself is there for every program, and no more is to be had from it.
    straight = "curl -sS --unix-socket /run/pilotfish/network http://evil.test/ -x ''"
    assert "not one for a proxy" in await output(box, straight)
    assert "Read-only" in await output(box, "chmod 777 /run/pilotfish/network 2>&1; true")


async def test_loopback_inside_needs_no_proxy(box: Sandbox) -> None:
    await output(box, "cd /tmp && echo own > own.txt && (python3 -m http.server 8099 >/dev/null 2>&1 &)")
    await until(box, "python3 -m http.server 8099")
    text = await output(
        box, "curl -sS --retry 20 --retry-connrefused --retry-delay 0 http://localhost:8099/own.txt"
    )
    assert text.endswith("own")


USER = """
import asyncio, sys
from pilotfish.sandbox import Network, Sandbox, SandboxSpec
async def main():
    network = Network((f"ok.test:80=127.0.0.1:{sys.argv[1]}",))
    async with Sandbox.open(SandboxSpec(desktop=False, network=network)) as box:
        for host in ("ok.test", "evil.test"):
            print((await box.shell.run(f"curl -sS http://{host}/user")).output)
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create a user")
async def test_as_a_created_user(server: ThreadingHTTPServer) -> None:
    with created_user() as name:
        done = await asyncio.to_thread(run_python, name, "-c", USER, str(server.server_address[1]))
    assert "GET ok.test /user" in done.stdout, done.stderr
    assert "evil.test:80 is not allowed here" in done.stdout
