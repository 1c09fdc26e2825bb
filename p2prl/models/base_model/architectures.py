"""Architectures that a run may use: those that are tested by name, and whatever else transformers has as a decoder.

Which class a `model_type` has is transformers' own table, so no file of a run names code. Others than those tested here
are compared with themselves when a run is made (`p2prl/models/self_test/decoder_check.py`).
"""

from __future__ import annotations

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

ARCHITECTURES = {
    "apertus": "Apertus 8B and 70B",
    "arcee": "AFM 4.5B",
    "cohere": "Command R and R+",
    "cohere2": "Command R7B, Command A",
    "deepseek_v2": "DeepSeek-V2",
    "deepseek_v3": "DeepSeek-V3 and R1, Moonlight",
    "dots1": "dots.llm1",
    "ernie4_5": "ERNIE 4.5 0.3B",
    "ernie4_5_moe": "ERNIE 4.5 21B-A3B",
    "exaone4": "EXAONE 4.0",
    "falcon": "Falcon 7B and 40B",
    "flex_olmo": "FlexOlmo",
    "gemma": "Gemma 1",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3 of 270M and 1B",
    "glm": "GLM-4 9B, GLM Edge",
    "glm4": "GLM-4-0414",
    "glm4_moe": "GLM-4.5 and 4.6",
    "gpt2": "GPT-2, DistilGPT2",
    "gpt_neox": "Pythia, GPT-NeoX 20B",
    "gpt_oss": "gpt-oss 20B and 120B",
    "granite": "Granite 3 without experts",
    "granitemoe": "Granite 3 with experts",
    "lfm2": "LFM2 without experts",
    "lfm2_moe": "LFM2 8B-A1B",
    "llama": "Llama 2 and 3, SmolLM 1 and 2, TinyLlama, Yi",
    "minimax_m2": "MiniMax-M2",
    "mistral": "Mistral 7B, Mistral Nemo",
    "mixtral": "Mixtral 8x7B and 8x22B",
    "nemotron": "Nemotron-4, Minitron",
    "olmo": "OLMo 1",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "olmoe": "OLMoE",
    "opt": "OPT",
    "phi": "Phi-1, Phi-1.5, Phi-2",
    "phi3": "Phi-3 Mini of 4k, Phi-4",
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen2_moe": "Qwen1.5-MoE, Qwen2 57B-A14B",
    "qwen3": "Qwen3 without experts",
    "qwen3_moe": "Qwen3 30B-A3B and 235B-A22B",
    "qwen3_next": "Qwen3-Next 80B-A3B",
    "seed_oss": "Seed-OSS 36B",
    "smollm3": "SmolLM3",
    "stablelm": "StableLM 2",
    "starcoder2": "StarCoder2",
    "vaultgemma": "VaultGemma",
}
"""By `model_type` of config.json: decoders that are sampled, replayed and rebuilt in a test."""


def architecture_table() -> str:
    """The table as Markdown."""
    rows = [f"| `{kind}` | {models} |" for kind, models in ARCHITECTURES.items()]
    return "\n".join(["| `model_type` in config.json | for example |", "|---|---|", *rows])


def architecture_fault(kind: object) -> str:
    """Why no run can use a `model_type`, for people; empty if one may."""
    if isinstance(kind, str) and kind in ARCHITECTURES:
        return ""
    if not isinstance(kind, str) or kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return f"transformers {transformers.__version__} has no causal language model of the type {str(kind)[:64]!r}"
    if transformers.CONFIG_MAPPING[kind].sub_configs:
        return f"{kind!r} is a model of several parts, such as text and images, and a run trains text alone"
    return ""
