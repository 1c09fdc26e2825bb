"""A run with a model of real vocabulary and completions of up to 1,024 tokens, over real sockets."""
