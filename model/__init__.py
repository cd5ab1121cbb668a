"""MiniMax-M3: configuration, towers, caches, tokenizer, chat format, engine, training."""
