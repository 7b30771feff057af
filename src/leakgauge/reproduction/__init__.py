"""The papers' tables: settings and published figures as TOML in ``benchmarks/``, with our measurements beside them."""

from leakgauge.reproduction.rows import Method, Row, find_rows, papers

__all__ = ["Method", "Row", "find_rows", "papers"]
