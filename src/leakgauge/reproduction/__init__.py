"""The papers' tables: settings as TOML in ``benchmarks/``, published figures, ours beside them."""

from leakgauge.reproduction.rows import Method, Row, find_rows, papers

__all__ = ["Method", "Row", "find_rows", "papers"]
