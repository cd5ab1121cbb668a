"""Functions of the C library that Python has none for, called without ctypes.

Importing ctypes takes more than half as long as starting Python, and every sandbox waits for that. So here is
the little of it that is needed, on the part that is C. Loaded by PID 1, and outside by `idmap.py`.
"""

from __future__ import annotations

import _ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class _Byte(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "c"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


class Library:
    """Each attribute is a function of that name. Numbers are passed as long, bytes and None as pointers.

    A function returns an int, so that one that returns -1 does; `get_errno` says why.
    """

    def __init__(self) -> None:
        self._handle = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Callable[..., int]:
        function: Any = _Function((name, self))  # type: ignore[arg-type]

        def call(*arguments: int | bytes | None) -> int:
            result = function(*(_Long(word) if isinstance(word, int) else word for word in arguments))
            # Of an int, the upper half of the register may hold anything.
            return result if name == "syscall" else (result & 0xFFFFFFFF ^ 0x80000000) - 0x80000000

        setattr(self, name, call)
        return call


def get_errno() -> int:
    """Why the last call of this thread failed."""
    return _ctypes.get_errno()


class Buffer:
    """Bytes that stay at one address."""

    def __init__(self, data: bytes) -> None:
        room: Any = (_Byte * len(data))()
        room.raw = data
        self._bytes = room
        self.address = _ctypes.addressof(room)
        self.size = len(data)
