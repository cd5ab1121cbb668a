"""Which modifiers were held when an event came, however late it is read.

Raw events do not carry the modifiers, and asking the server tells of now. The keyboard extension tells of
each change, in one order with all other events of the connection.
"""

from __future__ import annotations

from typing import Any

from Xlib.protocol import rq

_NAME = "XKEYBOARD"
_CORE_KEYBOARD = 0x100
_STATE_NOTIFY = 2
# Where the modifiers in effect are behind the event's first four bytes: after a time and a device.
# Source for all of these: X Keyboard Extension protocol 1.0, appendix D, encoding.
_MODS_AT = 5


class _UseExtension(rq.ReplyRequest):  # type: ignore[misc]  # python-xlib has no types
    _request = rq.Struct(
        rq.Card8("opcode"), rq.Opcode(0), rq.RequestLength(), rq.Card16("major"), rq.Card16("minor")
    )
    _reply = rq.Struct(
        rq.ReplyCode(),
        rq.Bool("supported"),
        rq.Card16("sequence_number"),
        rq.ReplyLength(),
        rq.Card16("major"),
        rq.Card16("minor"),
        rq.Pad(20),
    )


class _SelectEvents(rq.Request):  # type: ignore[misc]
    _request = rq.Struct(
        rq.Card8("opcode"),
        rq.Opcode(1),
        rq.RequestLength(),
        rq.Card16("device"),
        rq.Card16("affected"),
        rq.Card16("none_of"),
        rq.Card16("all_of"),
        rq.Card16("affected_maps"),
        rq.Card16("maps"),
    )


class ModifierEvents:
    """Follows the modifiers of one connection's keyboard. Give `follow` every event, in order."""

    def __init__(self, display: Any) -> None:
        """Every server with the X Input Extension 2 has this one too."""
        found = display.query_extension(_NAME)
        self._event_type = found.first_event
        _UseExtension(display=display.display, opcode=found.major_opcode, major=1, minor=0)
        _SelectEvents(
            display=display.display,
            opcode=found.major_opcode,
            device=_CORE_KEYBOARD,
            affected=1 << _STATE_NOTIFY,
            none_of=0,
            all_of=1 << _STATE_NOTIFY,
            affected_maps=0,
            maps=0,
        )
        self.mask = display.screen().root.query_pointer().mask & 0xFF
        """The modifiers in effect, as bits of `X.ShiftMask` and its like."""

    def follow(self, event: Any) -> None:
        """Take note of `event` if it tells of modifiers."""
        if event.type == self._event_type and event.detail == _STATE_NOTIFY:
            self.mask = event.data[_MODS_AT]
