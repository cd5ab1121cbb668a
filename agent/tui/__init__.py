"""The terminal interface: a client of runs, built on Textual, which nothing outside this package imports."""
