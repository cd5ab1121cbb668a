"""The bubblewrap command line: what a sandbox sees and what it does not.

Every namespace is new, so there is no network, no other process and no shared memory of the host. /usr and a
short list of /etc are read-only; /tmp, /home, /run and /dev/shm are memory; /workspace is the only writable
folder of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pilotfish.sandbox.browser_driver import INNER_DRIVER
from pilotfish.sandbox.framebuffer import INNER_SCREEN
from pilotfish.sandbox.inside import clerk, guest, runner, watchdog
from pilotfish.sandbox.pieces import Chromium, find_python, need, script_argv
from pilotfish.sandbox.spec import INNER_HOME, INNER_WORKSPACE, Limits

GUEST_SCRIPT = Path(guest.__file__)
# What PID 1 loads; it is imported here so that Python has compiled it.
_LOADED_INSIDE = (clerk, runner, watchdog)
_INNER_SCRIPTS = "/etc/pilotfish/inside"  # below /run a program could put another folder in its place

# Of the host's /etc: how to find libraries, fonts, certificates and alternatives; nothing about users or
# services.
ETC = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "fonts",
    "ssl/certs",
    "ca-certificates",
    "localtime",
    "mime.types",
    "X11",
    "xdg",
    "gtk-3.0",
    "inputrc",
    "bash.bashrc",
)
_FONT_CACHE = "/var/cache/fontconfig"

# Bits of /proc that belong to the whole machine. When the host user is real root, the process inside still is
# root to the files of /proc/sys (core_pattern would run a program of the sandbox's choice on the host), so
# they are read-only.
_PROC = ("sys", "irq", "bus", "fs", "sysrq-trigger")

_ETC_FILES: Mapping[str, str] = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:1000:1000:user:{INNER_HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "machine-id": "0123456789abcdef0123456789abcdef\n",
}

# The fonts behind the names pages ask for, the same on every machine: a model sees pixels, and another font
# is another picture. What is not named here follows the machine's own rules.
FONTS = {
    "Arial": "Liberation Sans",
    "Helvetica": "Liberation Sans",
    "Times": "Liberation Serif",
    "Times New Roman": "Liberation Serif",
    "Courier": "Liberation Mono",
    "Courier New": "Liberation Mono",
    "sans-serif": "DejaVu Sans",
    "serif": "DejaVu Serif",
    "monospace": "DejaVu Sans Mono",
}
FONTS_FILE = "/etc/pilotfish-fonts.conf"
INNER_NETWORK = "/run/pilotfish/network"


def fonts_conf() -> str:
    """The fontconfig file of a sandbox: our names first, then the machine's rules."""
    rules = "".join(
        f'<match target="pattern"><test name="family" qual="any"><string>{name}</string></test>'
        f'<edit name="family" mode="assign" binding="same"><string>{font}</string></edit></match>\n'
        for name, font in FONTS.items()
    )
    return (
        '<?xml version="1.0"?>\n<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">\n'
        f"<fontconfig>\n{rules}<include>/etc/fonts/fonts.conf</include>\n</fontconfig>\n"
    )


@dataclass(frozen=True)
class Mounts:
    """What of the host one sandbox gets to see, besides the system.

    sockets: the private /tmp/.X11-unix, if there is a display; screen: where its X server keeps the picture;
    made_files: {path inside: text}, read-only; network: the proxy's socket, if there is one; driver: the
    folder of Playwright's driver; links: {link inside: where it leads}.
    """

    workspace: Path
    sockets: Path | None = None
    screen: Path | None = None
    browser: Chromium | None = None
    read_only: Mapping[Path, str] = field(default_factory=dict)
    made_files: Mapping[str, str] = field(default_factory=dict)
    network: Path | None = None
    driver: Path | None = None
    links: Mapping[str, str] = field(default_factory=dict)


def made_files(mounts: Mounts) -> dict[str, str]:
    """All files that are made up for a sandbox, {path inside: text}."""
    etc = {f"/etc/{name}": text for name, text in _ETC_FILES.items()}
    return {**etc, FONTS_FILE: fonts_conf(), **mounts.made_files}


def system_argv(limits: Limits) -> list[str]:
    """bwrap and everything that does not depend on the particular sandbox."""
    argv = [need("bwrap", "to isolate the sandbox", "bubblewrap"), "--unshare-all", "--unshare-user"]
    argv += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL", "--hostname", "sandbox"]
    # Chromium refuses to run as user 0, and xterm to drop groups, so the user inside is 1000 whoever we are
    # outside.
    argv += ["--clearenv", "--uid", "1000", "--gid", "1000", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            argv += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            argv += ["--ro-bind", str(path), str(path)]
    for name in (*ETC, *(path.name for path in Path("/etc").glob("python3*"))):
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    argv += ["--ro-bind-try", _FONT_CACHE, _FONT_CACHE]
    argv += ["--proc", "/proc"]
    for name in _PROC:
        argv += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    argv += ["--dev", "/dev", "--size", str(limits.shm_folder), "--perms", "1777", "--tmpfs", "/dev/shm"]
    argv += ["--size", str(limits.tmp_folder), "--perms", "1777", "--tmpfs", "/tmp"]
    argv += ["--size", str(64 << 20), "--tmpfs", "/run", "--perms", "0700", "--dir", "/run/user"]
    argv += ["--size", str(limits.home_folder), "--tmpfs", "/home", "--dir", str(INNER_HOME)]
    _, prefix = find_python()
    if prefix is not None:
        argv += ["--ro-bind", str(prefix), str(prefix)]
    return argv


def sandbox_argv(
    limits: Limits, mounts: Mounts, made: Mapping[str, int], control_fd: int, filter_fd: int
) -> list[str]:
    """The whole command that starts the guest as PID 1 of a new sandbox.

    made: descriptors of `made_files`, by the path inside. They are written into its root folder, which takes
    less than a mount for each. filter_fd: the filter that the guest puts on programs.
    """
    argv = system_argv(limits)
    for inner, fd in made.items():
        argv += ["--perms", "0644", "--file", str(fd), inner]
    argv += ["--ro-bind", str(GUEST_SCRIPT.parent), _INNER_SCRIPTS]
    if mounts.network is not None:
        argv += ["--ro-bind", str(mounts.network), INNER_NETWORK]
    if mounts.browser is not None and mounts.browser.folder is not None:
        argv += ["--ro-bind", str(mounts.browser.folder), str(mounts.browser.inner.parent)]
    if mounts.driver is not None:
        argv += ["--ro-bind", str(mounts.driver), str(INNER_DRIVER)]
    for path, inner in mounts.read_only.items():
        argv += ["--ro-bind", str(path.resolve()), inner]
    for link, target in mounts.links.items():
        argv += ["--symlink", target, link]
    if mounts.sockets is not None:
        argv += ["--bind", str(mounts.sockets), "/tmp/.X11-unix"]
    if mounts.screen is not None:
        argv += ["--bind", str(mounts.screen), INNER_SCREEN]
    argv += ["--bind", str(mounts.workspace), str(INNER_WORKSPACE)]
    # Without these two a program could fill memory through the empty folders that carry the mounts.
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(INNER_WORKSPACE)]
    argv += ["--setenv", "LANG", "C.UTF-8"]
    inner_guest = f"{_INNER_SCRIPTS}/{GUEST_SCRIPT.name}"
    return [*argv, "--", *script_argv(find_python()[0], inner_guest, str(control_fd), str(filter_fd))]


def probe_argv() -> list[str]:
    """The same isolation around `true`: does this machine allow it at all?"""
    return [*system_argv(Limits()), "--remount-ro", "/", "--", "/usr/bin/true"]
