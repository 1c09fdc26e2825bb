"""Small models made without any download: tiny ones for tests and demonstrations, and the model of the presets.

The presets' model is a Qwen3 of 5 million parameters:

* `corpus` — the English text that its tokenizer is trained on, generated from word lists.
* `bpe_tokenizer` — its tokenizer of 32,768 entries, with a chat template and a stop token.
* `architecture` — the model with random weights.
* `faulty_demonstrations` — its supervised training.
"""
