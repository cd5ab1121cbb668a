"""Small edits of real packages, endless and seeded: rename a symbol, change a value, mend an off-by-one.

A ground is a package with faults put in; many tasks stand on one ground, so that what a model has read of it
serves them all. Packages that are measured on are refused by everything that records (`sources.py`).
"""
