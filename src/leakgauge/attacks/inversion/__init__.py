"""The parts of gradient inversion, each usable with any other."""
