"""Sampling engines against the libraries they are built on."""
