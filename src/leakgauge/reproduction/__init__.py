"""The reproduction of the papers' tables.

The folder ``benchmarks/`` holds one TOML file for each benchmark row, which is one setting of a paper's table. The file
holds the settings and the published figures. The folder also holds our measurements.
"""

from leakgauge.reproduction.rows import Method, Row, find_rows, papers

__all__ = ["Method", "Row", "find_rows", "papers"]
