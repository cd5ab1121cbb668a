"""An isolated machine for one task: files, shell, display, browser."""
