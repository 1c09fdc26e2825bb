"""Small models made without any download: tiny ones for tests and demonstrations, and the model of the presets.

The presets' model is a Qwen3 of 5 million parameters (`language_model`). Its tokenizer of 32,768 entries
is trained on English text that is generated from word lists (`corpus`).
"""
