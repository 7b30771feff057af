"""The reproduction of the papers' tables.

The folder ``benchmarks/`` holds the settings and the published figures as TOML files, and our measurements.
"""

from leakgauge.reproduction.rows import Method, Row, find_rows, papers

__all__ = ["Method", "Row", "find_rows", "papers"]
