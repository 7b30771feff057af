"""Flower's PyTorch quickstart in miniature, recorded."""
