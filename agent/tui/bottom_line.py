"""The bottom line of a screen: its keys, as many as there is room for."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

HELP = "app.help"
_Key = tuple[str, str, str, bool, str]
"""Textual's name of it, as it is written, what it does, whether it may, and more words."""


class BottomLine(Footer):
    """The keys that do something now, in the screen's order: what matters most stands first. The key of the
    help is last and always there; where others have no room it says that it has all of them.
    """

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)

    def compose(self) -> ComposeResult:
        if not self._bindings_ready:
            return
        keys: dict[str, _Key] = {}
        for _, binding, enabled, tooltip in self.screen.active_bindings.values():
            if binding.show:
                shown = self.app.get_key_display(binding)
                key = (binding.key, shown, binding.description, enabled, tooltip)
                keys.setdefault(binding.action, key)
        all_keys = keys.pop(HELP, None)
        room = self.app.size.width + 1  # no blank is needed behind the last
        if all_keys is not None:
            if sum(map(_width, [*keys.values(), all_keys])) > room:
                all_keys = (*all_keys[:2], "All keys", *all_keys[3:])
            room -= _width(all_keys)
        for action, key in keys.items():
            if _width(key) <= room:
                room -= _width(key)
                yield _shown(action, key)
        if all_keys is not None:
            yield _shown(HELP, all_keys)

    def on_resize(self) -> None:
        """Choose again, in turn with what other news of the keys has begun."""
        if self._bindings_ready:
            self.call_after_refresh(self.recompose)


def _width(key: _Key) -> int:
    """Cells that a key takes, with the blank behind it."""
    return len(key[1]) + len(key[2]) + 2


def _shown(action: str, key: _Key) -> FooterKey:
    name, shown, description, enabled, tooltip = key
    return FooterKey(name, shown, description, action, disabled=not enabled, tooltip=tooltip)
