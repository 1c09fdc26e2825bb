"""A run's tokenizer: its rules checked, built and run in a confined process, and the prompts rendered with it."""
