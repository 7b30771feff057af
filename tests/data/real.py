"""The folder with the real datasets, for the tests that read them."""

from __future__ import annotations

import os

import pytest

REAL = os.environ.get("LEAKGAUGE_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="LEAKGAUGE_DATA names no folder with the real datasets")
