#!/bin/sh
# Build the wheel, install it with its extra `datasets` into a new environment, and run the demonstration from there.
# Nothing of the repository is within reach of that environment.
set -eu
python=${1:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
pip="$place/env/bin/python -m pip --quiet --disable-pip-version-check"
unset PYTHONPATH

"$python" -m venv "$place/env"
$pip wheel --no-deps --wheel-dir "$place/dist" "$root"
set -- "$place"/dist/*.whl
$pip install -c "$root/constraints.txt" "$1[datasets]"
mkdir "$place/outside"
cd "$place/outside"
"$place/env/bin/python" -c "
import pathlib, sys, leakgauge
assert pathlib.Path(leakgauge.__file__).is_relative_to(sys.prefix), leakgauge.__file__"
"$place/env/bin/leakgauge" demo --clients 1 --output page
test -s page/audit.html
"$place/env/bin/leakgauge" bench --list | grep -q dlf
"$place/env/bin/leakgauge" list attacks > attacks.txt
echo "The wheel works outside the repository: $("$place/env/bin/leakgauge" --version), $("$place/env/bin/python" --version)."
