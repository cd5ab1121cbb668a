"""How the interface looks: Textual's two themes, with every text at 4.5 to 1 or more (WCAG 2.2), and keys as
they are written.
"""

from __future__ import annotations

from textual.app import App
from textual.binding import Binding

from pilotfish.agent.tui.keys import written

_DARK = {
    "foreground-muted": "#a0a0a0",
    "text-disabled": "#a0a0a0",
    "primary-muted": "#0b3558",
    "block-cursor-foreground": "#ffffff",
    "text-error": "#dc93a4",
    "error": "#b03354",
}
_LIGHT = {
    "foreground-muted": "#4c4c4c",
    "text-disabled": "#4c4c4c",
    "primary-muted": "#b4cbdf",
    "block-cursor-foreground": "#ffffff",
    "text-primary": "#003a66",
    "text-accent": "#6b3d00",
    "text-warning": "#6b3d00",
    "text-success": "#14502a",
    "text-error": "#8c1b3a",
    "footer-key-foreground": "#004f8c",
    "error": "#b03354",
}


class Coloured(App[None]):
    """An application in these colours."""

    cut_notice = ""
    """The newest message, where there was no room for the whole of it."""

    def get_css_variables(self) -> dict[str, str]:
        """Textual's, with ours in their places."""
        return super().get_css_variables() | (_DARK if self.current_theme.dark else _LIGHT)

    def get_key_display(self, binding: Binding) -> str:
        """A key as it is written everywhere."""
        return written(binding.key)

    def action_light_or_dark(self) -> None:
        """Change to the other of the two."""
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"
