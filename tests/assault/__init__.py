"""Hostile and mistaken input: what a user, a client or a machine may do wrong.

The short form runs with the other tests. ``make assault`` runs the long form, which includes tests marked ``long``.
Every test asserts that the product refuses in one sentence or does the work, within a limit of time and memory.
"""
