"""What the model can call: typed arguments, typed results."""
