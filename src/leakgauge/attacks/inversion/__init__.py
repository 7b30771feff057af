"""The parts of gradient inversion, which can be combined freely."""
