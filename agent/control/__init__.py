"""A run and those who watch or steer it: a private Unix socket in the run's folder, over which both sides
send one JSON object a line. Nothing here knows the terminal interface, which is one client of several.
"""
