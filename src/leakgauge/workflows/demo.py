"""The demonstration, which audits clients that have one picture of a digit each.

Each client sends one gradient, once without a defence and once with noise.
"""

from __future__ import annotations

import re
from pathlib import Path

from leakgauge.core.container import output_folder, write_atomically
from leakgauge.core.errors import FileError

CONFIG = """\
# The demonstration as an audit. Change it, and run: leakgauge audit {name}
seed = {seed}

[model]
name = "lenet"
options = {{ classes = 10 }}

[data]
name = "mnist5k"

[training]
sends = "gradient"
samples = 1

[audit]
clients = {clients}
attacks = ["epafl", {{ name = "prior_path", steps = 300 }}]

[[defence]]
title = "no defence"

[[defence]]
title = "noise"
chain = [{{ name = "gaussian_noise", sigma = 1.0 }}]
"""


def write_demo(output: Path, *, clients: int = 4, seed: int = 0) -> Path:
    """Write a configuration file of the demonstration for ``leakgauge audit``, and return the path of the file.

    A small untrained network and one sample per client are the easiest case for an attacker. The demonstration shows
    what an audit does. It does not show that every set-up leaks.

    Args:
        output: The folder for the configuration.
        clients: The number of clients to attack.
        seed: The seed of the audit.
    """
    path = output_folder(output) / "audit.toml"
    if path.exists() and not _unchanged(path):
        raise FileError(
            f"{path}: exists and is not the unchanged file of a demonstration, so it is not replaced. Choose another "
            "--output"
        )
    write_atomically(path, CONFIG.format(name=path, clients=clients, seed=seed).encode())
    return path


def _unchanged(path: Path) -> bool:
    """Return whether a file is a configuration that :func:`write_demo` wrote and nobody has changed since."""
    parts = map(re.escape, CONFIG.format(name="\0", clients="\0", seed="\0").split("\0"))
    try:
        return re.fullmatch(r"[^\n]*".join(parts), path.read_text()) is not None
    except (OSError, UnicodeDecodeError):
        return False
