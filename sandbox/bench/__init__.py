"""`python -m pilotfish.sandbox.bench`: what a sandbox costs on this machine, beside what others cost here."""
