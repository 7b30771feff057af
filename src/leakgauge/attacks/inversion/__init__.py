"""The parts that a reconstruction is made of, each usable with any other."""
