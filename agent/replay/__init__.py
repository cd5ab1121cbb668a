"""One self-contained page that replays a run, or two beside each other, and the same page of a run that goes
on.
"""

from pilotfish.agent.replay.page import PAGE, build_page, write_replay

__all__ = ["PAGE", "build_page", "write_replay"]
