"""Attacks that learn from public data, which an attacker may be granted."""
