"""Architectures that a run may use, and the models that have them: one table for checks, refusals and documentation."""

from __future__ import annotations

ARCHITECTURES = {
    "gemma": "Gemma 1",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3 of 270M and 1B",
    "glm": "GLM-4 9B, GLM Edge",
    "glm4": "GLM-4-0414",
    "gpt2": "GPT-2, DistilGPT2",
    "gpt_neox": "Pythia, GPT-NeoX 20B",
    "granite": "Granite 3 without experts",
    "llama": "Llama 2 and 3, SmolLM 1 and 2, TinyLlama, Yi",
    "mistral": "Mistral 7B, Mistral Nemo",
    "olmo": "OLMo 1",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "opt": "OPT",
    "phi": "Phi-1, Phi-1.5, Phi-2",
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen2_moe": "Qwen1.5-MoE, Qwen2 57B-A14B",
    "qwen3": "Qwen3 without experts",
    "qwen3_moe": "Qwen3 30B-A3B and 235B-A22B",
    "smollm3": "SmolLM3",
    "stablelm": "StableLM 2",
    "starcoder2": "StarCoder2",
}
"""By `model_type` of config.json: decoders whose code is part of transformers and whose logits depend on nothing but
the tokens before."""


def architecture_table() -> str:
    """The table as Markdown."""
    rows = [f"| `{kind}` | {models} |" for kind, models in ARCHITECTURES.items()]
    return "\n".join(["| `model_type` in config.json | for example |", "|---|---|", *rows])
