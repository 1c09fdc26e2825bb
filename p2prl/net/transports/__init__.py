"""Transports behind the transport port, and the framing they share."""
