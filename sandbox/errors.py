"""The sandbox's own errors. Every message is one sentence: the value that is wrong and the mend."""

from __future__ import annotations

from typing import Literal

PathReason = Literal["outside", "missing", "not_a_file", "not_a_folder", "too_big", "not_text", "refused"]


class SandboxError(Exception):
    """Something in a running sandbox failed; the message is one sentence for a person or a model."""


class SandboxUnavailable(SandboxError):
    """A piece the sandbox needs is missing here; the message names it and the command that brings it."""


class SandboxPathError(SandboxError):
    """A file request that was refused. `reason` says why in one word, the message in one sentence."""

    def __init__(self, reason: PathReason, message: str) -> None:
        super().__init__(message)
        self.reason: PathReason = reason
