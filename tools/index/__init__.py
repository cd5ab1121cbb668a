"""The repository index: what is defined where, who uses it, and what matters most; see docs/index.md."""
