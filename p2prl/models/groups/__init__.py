"""Rollout groups between the wire and tensors: prompts of slots, packing, and inspection without a model."""
