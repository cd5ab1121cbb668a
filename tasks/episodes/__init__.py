"""Training episodes recorded from real web pages: a browser, pages, scripted experts and shards of frames.

Held-out tasks and seeds are refused in `pages.py`, so that nothing recorded here can touch an evaluation.
"""
