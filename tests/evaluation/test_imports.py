"""Heavy packages are imported only where they are needed."""

import subprocess
import sys


def test_heavy_packages_wait_until_they_are_needed():
    code = (
        "import sys, leakgauge.evaluation, leakgauge.models\n"
        "print([name for name in ('torchmetrics', 'scipy', 'torchvision') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


AUDIT = """
import sys
import leakgauge as lg
table = {"model": {"name": "lenet"}, "data": {"name": "digits"}, "training": {"sends": "gradient", "samples": 1}}
lg.audit({**table, "audit": {"attacks": [{"name": "idlg", "steps": 1}], "clients": 1}}, sys.argv[1], jobs=1)
print([name for name in ("torchmetrics", "sklearn", "pandas", "torch._dynamo") if name in sys.modules])
"""


def test_a_small_audit_needs_no_package_that_takes_seconds_to_import(tmp_path):
    """The packages would be imported once more in every process of an audit."""
    command = [sys.executable, "-c", AUDIT, str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
