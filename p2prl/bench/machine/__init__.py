"""Contribution of a machine before it joins: its speed by model size, and the models that fit its memory."""
