"""Recorders of what a real federation exchanges, as observations on disk."""
