"""A small copy of Flower's PyTorch quickstart that is recorded."""
