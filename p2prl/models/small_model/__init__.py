"""The small language model of the presets: a Qwen3 of 5 million parameters, made by p2prl without any download.

* `corpus` — the English text that its tokenizer is trained on, generated from word lists.
* `tokenizer` — its tokenizer of 32,768 entries, with a chat template and a stop token.
* `architecture` — the model with random weights.
* `warm_start` — its supervised training on faulty demonstrations.
"""
