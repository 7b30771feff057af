"""Importing the metrics is quick."""

import subprocess
import sys


def test_heavy_packages_wait_until_they_are_needed():
    code = (
        "import sys, leakgauge.evaluation, leakgauge.models\n"
        "print([name for name in ('torchmetrics', 'scipy', 'torchvision') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
