"""How Chromium shows itself on the display: its command line, its preferences, the policies it obeys."""

from __future__ import annotations

from dataclasses import dataclass

from pilotfish.sandbox.browser_downloads import FOLDER
from pilotfish.sandbox.display import Display
from pilotfish.sandbox.errors import SandboxError
from pilotfish.sandbox.network import PROXY_URL, Network

# Nothing of the browser's own may appear on the page, and nothing may want the network.
_FLAGS = (
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-domain-reliability",
    "--disable-gpu",
    "--disable-quic",
    "--disable-session-crashed-bubble",
    "--hide-crash-restore-bubble",
    "--no-pings",
)

# What no flag switches off. Chromium and Chrome each read it from a place of their own.
CHROMIUM_POLICY_PLACES = (
    "/etc/chromium/policies/managed/pilotfish.json",
    "/etc/opt/chrome/policies/managed/pilotfish.json",
)
# A Chromium that a program inside starts cannot build a sandbox within its filter. Debian's launcher reads
# this.
CHROMIUM_FLAGS_PLACE = "/etc/chromium.d/pilotfish"
CHROMIUM_FLAGS = 'CHROMIUM_FLAGS="$CHROMIUM_FLAGS --no-sandbox --disable-gpu --no-first-run"\n'
# Chromium asks a person whether to keep files of these kinds. Here they can do no more than what runs anyway.
_KEPT_KINDS = (
    "apk appimage bash bat bin class cmd com command crx csh deb desktop dll dmg elf exe hta iso jar jnlp js "
    "ksh lnk mjs msi out pl ps1 py pyc pyo pyw rb reg rpm run scr sh so svg swf tcsh vbs wsf xhtml xml zsh"
)
CHROMIUM_POLICY = {
    "AutofillAddressEnabled": False,
    "AutofillCreditCardEnabled": False,
    "BackgroundModeEnabled": False,
    "BrowserSignin": 0,
    "CommandLineFlagSecurityWarningsEnabled": False,
    "DefaultBrowserSettingEnabled": False,
    "DownloadDirectory": str(FOLDER),
    "DownloadRestrictions": 0,
    "ExemptDomainFileTypePairsFromFileTypeDownloadWarnings": [
        {"file_extension": kind, "domains": ["*"]} for kind in _KEPT_KINDS.split()
    ],
    "MetricsReportingEnabled": False,
    "PasswordManagerEnabled": False,
    "PromotionalTabsEnabled": False,
    "PromptForDownloadLocation": False,
    "SafeBrowsingProtectionLevel": 0,
    "SearchSuggestEnabled": False,
    "SpellcheckEnabled": False,
    "SyncDisabled": True,
    "TranslateEnabled": False,
}

# A browser that never ran before, with its window's frame left to the window manager.
PREFERENCES = {"browser": {"custom_chrome_frame": False, "has_seen_welcome_page": True}}


@dataclass(frozen=True)
class Look:
    """What a running Chromium cannot change about itself: another look needs a new one."""

    width: int
    height: int
    device_scale_factor: float
    app_window: bool
    fill_display: bool
    hide_scrollbars: bool


def wanted_look(
    display: Display,
    viewport: tuple[int, int] | None,
    scale: float,
    app_window: bool,
    fill_display: bool,
    hide_scrollbars: bool,
) -> Look:
    """The look that `Browser.open` asks for; raises `SandboxError` for one that the display cannot show."""
    if not 0.25 <= scale <= 8:
        raise SandboxError(f"device_scale_factor is {scale}, choose 0.25 to 8.")
    full = (round(display.width / scale), round(display.height / scale))
    width, height = viewport or full
    if not (0 < width <= full[0] and 0 < height <= full[1]):
        raise SandboxError(
            f"viewport {width}x{height} does not fit the display, choose at most {full[0]}x{full[1]}."
        )
    if fill_display and (width, height) != full:
        raise SandboxError(
            f"viewport {width}x{height} does not fill the display, which is {full[0]}x{full[1]}: "
            "leave it out or pass fill_display=False."
        )
    return Look(width, height, scale, app_window, fill_display, hide_scrollbars)


def arguments(look: Look) -> list[str]:
    """Chromium's command line for a look."""
    words = [
        *_FLAGS,
        f"--force-device-scale-factor={look.device_scale_factor:g}",
        "--window-position=0,0",
        f"--window-size={look.width},{look.height}",
        # The window manager's rules go by class: by itself Chromium makes no window as large as the display.
        f"--class={'pilotfish-screen' if look.fill_display else 'pilotfish-page'}",
    ]
    if look.app_window:
        words.append("--app=data:text/html,")
    if look.hide_scrollbars:
        words.append("--hide-scrollbars")
    return words


def proxy_arguments(network: Network) -> list[str]:
    """What a network adds to it."""
    if not network.allow:
        return []
    # It looks for new components of itself even when told not to; they would be attempts of nobody's.
    return [f"--proxy-server={PROXY_URL}", "--component-updater=url-source=http://127.0.0.1:9/"]
