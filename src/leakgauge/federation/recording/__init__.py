"""Recorders that save the messages of a real federation as observations on disk."""
