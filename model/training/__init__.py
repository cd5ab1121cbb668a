"""How nano was made: its tokenizer, its data, and the trainer of its weights."""
