"""Attacks that solve equations in closed form, without optimisation."""
