"""Carry the browser to a machine without one: `python -m pilotfish.tasks.episodes.bundle pack|unpack ...`.

The bundle holds the headless shell, every shared library it needs that is not part of glibc, fonts with their
configuration, and the MiniWoB++ pages: one tar file, xz-compressed, cut into parts. Only the standard library
is needed to unpack it.

    pack   --out .bundle --miniwob DIR [--fonts DIR ...]
    unpack --parts .bundle --to /tmp/bundle
"""

from __future__ import annotations

import argparse
import io
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PART_BYTES = 28 << 20
# Part of glibc, present wherever Python is; carrying another version of one of them would break the loader.
GLIBC = re.compile(
    r"^(ld-linux|libc|libm|libpthread|libdl|librt|libresolv|libnsl|libutil|libanl|libmvec|libBrokenLocale)[.-]"
)
# Opened while running, hence not in the list of `ldd`.
OPENED_LATER = ("libsoftokn3.so", "libfreebl3.so", "libfreeblpriv3.so", "libnssckbi.so", "libnss_files.so.2")
BROWSER_FILES = (
    "chromium-headless-shell",
    "headless_command_resources.pak",
    "headless_lib_data.pak",
    "headless_lib_strings.pak",
    "icudtl.dat",
    "snapshot_blob.bin",
    "v8_context_snapshot.bin",
)
FONT_FILES = re.compile(
    r"^(DejaVu(Sans|Serif|SansMono|SansCondensed)(-Bold|-Oblique|-Italic|-BoldOblique|-BoldItalic)?"
    r"|Liberation(Sans|Serif|Mono)-.*|Nimbus(Sans|Roman)-(Regular|Bold))\.(ttf|otf)$"
)
FONTS_CONF = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir prefix="relative">fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
{rules}
</fontconfig>
"""


def needed_libraries(files: Iterable[Path]) -> dict[str, Path]:
    """Shared libraries these files load, by name, without glibc's own."""
    found: dict[str, Path] = {}
    for file in files:
        listing = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=True).stdout
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", listing, re.MULTILINE):
            if not GLIBC.match(name):
                found[name] = Path(path)
    return found


def later_libraries(names: Iterable[str]) -> dict[str, Path]:
    """Libraries opened while running, where this system keeps them."""
    found = {}
    for name in names:
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nss", "/lib/x86_64-linux-gnu"):
            path = Path(folder) / name
            if path.exists():
                found[name] = path
                break
    return found


def fonts_conf(rules: Path) -> str:
    """The fontconfig file of the bundle: this system's own rules, so that text is drawn alike there."""
    bodies = []
    for path in sorted(rules.glob("*.conf")):
        if not re.match(r"(50|51)-", path.name):  # a user's and a machine's own additions
            found = re.search(r"<fontconfig>(.*)</fontconfig>", path.read_text(encoding="utf-8"), re.DOTALL)
            bodies.append(found[1] if found else "")
    return FONTS_CONF.format(rules="".join(bodies))


def pack(out: Path, browser: Path, miniwob: Path, fonts: list[Path], preset: int) -> list[Path]:
    """Write the parts into `out`; returns them. Raises `ValueError` for missing files."""
    for name in BROWSER_FILES:
        if not (browser / name).is_file():
            raise ValueError(f"{browser / name} is missing; install the package chromium-headless-shell.")
    libraries = needed_libraries([browser / "chromium-headless-shell"])
    libraries |= later_libraries(OPENED_LATER)
    libraries |= needed_libraries(libraries.values())
    # A filter for machine code and a window wider than the browser make it a tenth smaller.
    window = (64 << 20) if preset < 9 else (256 << 20)
    code: dict[str, int] = {"id": lzma.FILTER_X86}
    filters = [code, {"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": window, "lc": 4, "pb": 0}]
    html = miniwob / "html" if (miniwob / "html").is_dir() else miniwob
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        # Small files first: similar ones beside each other compress better.
        text = fonts_conf(Path("/etc/fonts/conf.d")).encode()
        info = tarfile.TarInfo("fonts.conf")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
        tar.add(html, "miniwob/html")
        for folder in fonts:
            for path in sorted(folder.rglob("*")):
                if FONT_FILES.search(path.name):
                    tar.add(path.resolve(), f"fonts/{path.name}")
        for name, path in sorted(libraries.items()):
            tar.add(path.resolve(), f"lib/{name}")
        for name in BROWSER_FILES:
            tar.add(browser / name, f"browser/{name}")
    packed = lzma.compress(buffer.getvalue(), format=lzma.FORMAT_XZ, filters=filters)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("part-*"):
        old.unlink()
    parts = []
    for number, start in enumerate(range(0, len(packed), PART_BYTES)):
        part = out / f"part-{number:02d}"
        part.write_bytes(packed[start : start + PART_BYTES])
        parts.append(part)
    return parts


def unpack(parts: Path, to: Path) -> None:
    """Unpack the parts in a folder into `to`, which is replaced; `ValueError` when a part is missing."""
    files = sorted(parts.glob("part-*"))
    if [file.name for file in files] != [f"part-{n:02d}" for n in range(len(files))] or not files:
        raise ValueError(f"{parts} lacks a part (it has {[f.name for f in files]}); pack the bundle again.")
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    unpacker = lzma.LZMADecompressor()
    data = io.BytesIO()
    for file in files:
        data.write(unpacker.decompress(file.read_bytes()))
    if not unpacker.eof:
        raise ValueError(f"The bundle in {parts} ends early; pack it again.")
    data.seek(0)
    with tarfile.open(fileobj=data) as tar:
        # Python before 3.11.4 knows no filters.
        options: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        tar.extractall(to, **options)
    (to / "home").mkdir(exist_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    packing = actions.add_parser("pack")
    packing.add_argument("--out", type=Path, required=True)
    packing.add_argument("--browser-folder", type=Path, default=Path("/usr/lib/chromium"))
    packing.add_argument("--miniwob", type=Path, required=True)
    packing.add_argument("--fonts", type=Path, nargs="*", default=[Path("/usr/share/fonts")])
    packing.add_argument("--preset", type=int, default=9, help="of xz, 0 to 9")
    unpacking = actions.add_parser("unpack")
    unpacking.add_argument("--parts", type=Path, required=True)
    unpacking.add_argument("--to", type=Path, required=True)
    given = parser.parse_args(arguments)
    begun = time.monotonic()
    try:
        if given.action == "pack":
            parts = pack(given.out, given.browser_folder, given.miniwob, given.fonts, given.preset)
            print(
                f"{len(parts)} parts, {sum(p.stat().st_size for p in parts) / 2**20:.1f} MiB, in {given.out}"
            )
        else:
            unpack(given.parts, given.to)
            print(f"unpacked into {given.to} in {time.monotonic() - begun:.1f} s")
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
