"""The engine on Hugging Face transformers: sampler, scorer, continuous batching and CUDA graphs."""
