"""Terminal output: live panels, progress lines, quantities and wrapping."""
