"""What a call names: the files and the hosts that rules can be about.

A path has several forms, of which a deny rule has to meet one: as it is written once `.` and `..` are worked
out, and where links lead to. What a shell line will really touch cannot be known from its text (variables,
globs, `cd`, programs); the sandbox's walls and its list of hosts are what holds.
"""

from __future__ import annotations

import contextlib
import ipaddress
import posixpath
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pilotfish.agent.shell_line import plain_words, spellings
from pilotfish.sandbox.errors import SandboxPathError
from pilotfish.sandbox.spec import INNER_HOME, INNER_WORKSPACE

if TYPE_CHECKING:
    from pilotfish.sandbox import Files

Forms = frozenset[str]
"""One named thing in all the ways that it can be written."""
_PATHS = ("path", "to", "files", "paths", "folder", "file")
"""Arguments that are paths in the workspace, in whatever tool."""
_LINES = ("command", "input")
_URL = re.compile(r"(?<=[A-Za-z0-9+.-]):[/\\]{2,}([^\s'\"<>|;)`]*)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[/\\]{2}")
_WEB = re.compile(r"(?:view-source:)*(?:https?|wss?|ftp):[/\\]*", re.IGNORECASE)
_FILE = re.compile(r"(?:view-source:|filesystem:)*file:", re.IGNORECASE)
_DEVICE = re.compile(r"/dev/(?:tcp|udp)/([^/\s'\"]+)/")
_AT_HOST = re.compile(r"(?<![\w.-])[\w.-]+@(\[[0-9A-Fa-f:.]+\]|[\w.-]+)")
_CLIENTS = re.compile(
    r"\b(?:curl|wget2?|aria2c|https?|xh|ssh|scp|sftp|rsync|ftp|nc|ncat|netcat|socat|telnet|ping6?|dig|nslookup|host"
    r"|whois|nmap|openssl|mosh|git)\b"
)
_HOST = re.compile(
    r"(?:[\w-]+\.)+[\w-]+\.?|localhost|0x[0-9a-f]{7,8}$|\d{8,12}$|\[[0-9A-Fa-f:.]+\]|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*",
    re.IGNORECASE,
)

_NUMBERS = re.compile(r"(?:0x)?[0-9a-f]+(?:\.(?:0x)?[0-9a-f]+){0,3}")
_MOST_IN_A_ROW = 40
LONGEST_PATH = 4096
"""Bytes of a path that Linux takes."""
_LONGEST_HOST = 1024
"""Characters beyond which a name is none, however it is written."""
_MOST_LINKS = 2_000
"""Words of a line beyond which they are taken as written: following links takes time."""


def line_of(arguments: Mapping[str, Any]) -> str | None:
    """What is held against command patterns: the command, or what is typed at a program."""
    values = (arguments.get(name) for name in _LINES)
    return next((value for value in values if isinstance(value, str)), None)


class Named:
    """What one call names, worked out when it is first asked for and once: all rules are held against the
    same files, whatever happens to links meanwhile.
    """

    def __init__(self, tool: str, arguments: Mapping[str, Any], files: Files | None) -> None:
        """files: of the workspace, in which links are followed; None follows none."""
        self.tool = tool
        self.line = line_of(arguments)
        self._arguments = arguments
        self._forms = cache(partial(_forms, files=files))
        self._roots = [str(INNER_WORKSPACE)] if files is None else [str(INNER_WORKSPACE), str(files.root)]
        self.paths_in = cache(self._paths_in)
        self.hosts_in = cache(_hosts_in)

    @cached_property
    def spellings(self) -> set[str]:
        """The commands in its line, in the ways that a pattern may be written; see `shell_line.spellings`."""
        return set() if self.line is None else spellings(self.line)

    def path_globs(self, glob: str) -> list[str]:
        """A pattern on paths as `paths` are written; of more than one, the first is the pattern itself."""
        glob = _below(posixpath.normpath(_at_home(glob)), self._roots)
        return list(dict.fromkeys([glob, glob.replace("**/", "")]))

    @cached_property
    def paths(self) -> list[Forms]:
        """The files that its arguments name: for the shell its words, what stands in them (`sh -c 'cat x'`),
        and its redirections.
        """
        if self.tool == "shell":
            lines = self._texts(_LINES)
            within = dict.fromkeys(one for line in lines for word in _words(line) for one in _within(word))
            found = [path for line in lines for path in self.paths_in(line)]
            return found + [self._forms(word) for word in list(within)[:_MOST_LINKS]]
        found = []
        for key in _PATHS:
            value = self._arguments.get(key)
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str) and one:
                    found.append(self._forms(one))
        for url in self._texts(["url"]):
            found += [self._forms(path) for path in _files_in_address(url)]
        return found

    @cached_property
    def hosts(self) -> list[Forms]:
        """The hosts that its arguments name: of the browser where it goes, else in what is typed."""
        if self.tool == "browser":
            return _in_address(str(self._arguments.get("url") or ""))
        keys = (*_LINES, "text") if self.tool in ("shell", "computer") else ()
        return [host for text in self._texts(keys) for host in self.hosts_in(text)]

    def _texts(self, keys: Iterable[str]) -> list[str]:
        return [text for key in keys if isinstance(text := self._arguments.get(key), str)]

    def _paths_in(self, line: str) -> list[Forms]:
        """The words of a shell line that could be paths, without quotes, behind `=` and in redirections."""
        words = list(dict.fromkeys(_words(line)))
        forms = self._forms if len(words) <= _MOST_LINKS else partial(_forms, files=None)
        return [forms(word) for word in words]


def host_globs(glob: str) -> Forms:
    """A pattern on hosts as hosts are written, for a deny or an ask: without a scheme, a port and a path."""
    glob = glob.strip().lower()
    if match := _WEB.match(glob):
        glob = glob[match.end() :]
    if not re.search(r"[*?[]", glob) or re.fullmatch(r"\[[0-9a-f.]*(:[0-9a-f.]*){2,7}\](:\d+)?", glob):
        return _forms_of_host(glob)
    return frozenset([re.sub(r"(:[\d*]+)?(/.*)?$", "", glob).rstrip(".")])


def _hosts_in(line: str) -> list[Forms]:
    """The hosts in a text: of addresses, behind an `@`, and whatever looks like one beside a program that
    asks hosts.
    """
    found = []
    for text in dict.fromkeys([line, re.sub(r"\\\n|['\"\\]", "", line)]):
        found += [_forms_of_host(match.group(1)) for match in _URL.finditer(text)]
        found += [_one_form(match.group(1)) for how in (_AT_HOST, _DEVICE) for match in how.finditer(text)]
    if _CLIENTS.search(line):
        for word in dict.fromkeys(_words(line)):
            if match := _WEB.match(word):
                found.append(_forms_of_host(word[match.end() :]))
            elif (match := _HOST.match(word)) and not _SCHEME.match(word):
                found.append(_one_form(match.group()))
    return [forms for forms in dict.fromkeys(found) if forms]


def _in_address(url: str) -> list[Forms]:
    url = re.sub(r"^(view-source:)+", "", url.strip(), flags=re.IGNORECASE)
    if (match := _WEB.match(url)) is not None:  # the slashes may be missing
        forms = _forms_of_host(url[match.end() :])
    elif (match := _URL.search(url)) is not None:
        forms = _forms_of_host(match.group(1))
    elif re.match(r"[A-Za-z][A-Za-z0-9+.-]*:(?!\d)", url):
        return []  # about:blank, data: and the like reach nobody
    else:
        forms = _forms_of_host(url.lstrip("/\\"))
    return [forms] if forms else []


def _files_in_address(url: str) -> Iterator[str]:
    """The file that an address of the browser leads to, in the ways that it may be read."""
    url = url.strip()
    if url.startswith("/"):
        yield url
        return
    if (match := _FILE.match(url)) is None:
        return
    rest = url[match.end() :].replace("\\", "/")
    path = "/" + rest.lstrip("/")
    if (host := re.match(r"//[^/]+(?=/)", rest)) is not None:
        path = rest[host.end() :]
    yield unquote(path)
    if (bare := re.split("[?#]", path)[0]) != path:
        yield unquote(bare)


def _forms_of_host(rest: str) -> Forms:
    """Of what follows `//`. Programs differ in whether a backslash ends the host, so both are meant."""
    return frozenset[str]().union(
        *(_one_form(re.split(ends, rest)[0].rpartition("@")[2]) for ends in (r"[/?#\\]", r"[/?#]"))
    )


def _one_form(host: str) -> Forms:
    host = unquote(host).strip().lower()
    if host.startswith("["):
        host = host.partition("]")[0].removeprefix("[")
    elif host.count(":") < 2:
        host = re.split(r"[:\\]", host)[0]
    if ":" not in host:
        host = host.translate(_DOTS).rstrip(".")
    if len(host) > _LONGEST_HOST:
        return frozenset([host])
    forms = {host, ".".join(map(_in_ascii, host.split("."))), ".".join(map(_in_letters, host.split(".")))}
    with contextlib.suppress(UnicodeError):
        forms.add(host.encode("idna").decode("ascii"))
    with contextlib.suppress(UnicodeError):
        forms.add(host.encode("ascii").decode("idna"))
    forms |= _addresses(host)
    return frozenset(form for form in forms if form)


def _in_ascii(label: str) -> str:
    """One part of a name as newer browsers ask for it: letters such as ß stay."""
    return label if label.isascii() else "xn--" + label.encode("punycode", "replace").decode("ascii")


def _in_letters(label: str) -> str:
    if label.startswith("xn--"):
        with contextlib.suppress(UnicodeError):
            return label[4:].encode("ascii").decode("punycode")
    return label


def _addresses(host: str) -> set[str]:
    """An address in numbers as it is usually written: 127.1 is 127.0.0.1."""
    with contextlib.suppress(ValueError):
        address = ipaddress.IPv6Address(host.partition("%")[0])
        mapped = address.ipv4_mapped
        return {str(address)} | ({str(mapped)} if mapped else set())
    with contextlib.suppress(OSError):
        if _NUMBERS.fullmatch(host):
            return {socket.inet_ntoa(socket.inet_aton(host))}
    return set()


_DOTS = {ord(mark): "." for mark in "\u3002\uff0e\uff61"}
"""What a browser takes for a dot as well."""


def _words(line: str) -> Iterator[str]:
    for word in plain_words(line, "();<>|&"):
        yield word
        for mark in "=:@":
            if mark in word and (rest := word.partition(mark)[2]):
                yield rest


def _within(word: str) -> list[str]:
    """What in a word could be a path of its own: of a line for another shell, of a program's text, behind the
    letter of an option.
    """
    if re.fullmatch(r"-[^-].+", word):
        return [word[2:]]
    inner = re.split(r"[\s\"'`(){}\[\];<>|&,=]+", word)
    return [one for one in inner if one] if len(inner) > 1 else []


def _forms(path: str, files: Files | None) -> Forms:
    """A path as it is written, and where it leads; relative to the workspace where it is in there."""
    inner = str(INNER_WORKSPACE)
    roots = [inner] if files is None else [inner, str(files.root)]
    path = _at_home(path)
    lexical = posixpath.normpath(posixpath.join(inner, path))
    if lexical.startswith("//"):
        lexical = lexical[1:]
    forms = {_below(lexical, roots)}
    if files is not None and len(path) <= LONGEST_PATH:
        with contextlib.suppress(SandboxPathError, OSError, ValueError):
            forms.add(_below(str(files.resolve(path)), roots))
        with contextlib.suppress(OSError, ValueError):
            forms.add(_below(_through_links(posixpath.join(inner, path), files), roots))
    return frozenset(forms)


def _at_home(path: str) -> str:
    """A path from the root, where it begins with `~`, or with a root or a working folder by way of /proc."""
    if path == "~" or path.startswith("~/"):
        return f"{INNER_HOME}{path[1:]}"
    if found := re.match(r"/+proc/(?:self|thread-self|\d+)(?:/task/\d+)?/(?:root|(cwd))(?=/|$)", path):
        return f"{INNER_WORKSPACE if found[1] else ''}{path[found.end() :]}" or "/"
    return path


def _through_links(path: str, files: Files) -> str:
    """Where links lead, `..` behind them as well, also to what writing would make there."""
    inner, root = str(INNER_WORKSPACE), str(files.root)
    for _ in range(_MOST_IN_A_ROW):
        here = f"{root}{path[len(inner) :]}" if path == inner or path.startswith(f"{inner}/") else path
        path = posixpath.realpath(here) if here == root or here.startswith(f"{root}/") else here
        if not path.startswith(f"{inner}/"):
            break
    return path


def _below(path: str, roots: list[str]) -> str:
    for root in roots:
        if path == root:
            return "."
        if path.startswith(f"{root}/"):
            return path[len(root) + 1 :]
    return path
