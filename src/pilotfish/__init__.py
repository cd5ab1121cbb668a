"""Pilotfish: a computer-use and coding agent that runs MiniMax-M3 inside its own process."""

__version__ = "0.1.0"
