"""Everything people see: live panels, lines, quantities and wrapping."""
