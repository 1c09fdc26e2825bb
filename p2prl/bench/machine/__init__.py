"""What a machine would give to a run: its sampling speed by model size, and the models that fit its memory."""
