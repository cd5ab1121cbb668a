"""A window over the whole display that changes its colour at each press of a button.

Run with DISPLAY set; it prints a line when it is shown.
"""

from __future__ import annotations

from Xlib import X, display


def main() -> None:
    """Until the display is gone."""
    server = display.Display()
    screen = server.screen()
    colours = (screen.white_pixel, 0x3366CC)
    window = screen.root.create_window(
        0,
        0,
        screen.width_in_pixels,
        screen.height_in_pixels,
        0,
        screen.root_depth,
        background_pixel=colours[0],
        override_redirect=True,
        event_mask=X.ButtonPressMask | X.ExposureMask,
    )
    window.map()
    pressed, shown = 0, False
    while True:
        event = server.next_event()
        if event.type == X.Expose and not shown:
            shown = True
            print("shown", flush=True)
        elif event.type == X.ButtonPress:
            pressed += 1
            window.change_attributes(background_pixel=colours[pressed % 2])
            window.clear_area()
            server.flush()


if __name__ == "__main__":
    main()
