"""Small trainings that ask one question each, with the same text tokens and seeds; see docs/studies.md."""
