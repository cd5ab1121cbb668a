"""The in-process model behind the HTTP interfaces that other agents speak."""
