"""Cost of drawing a token, by implementation."""
