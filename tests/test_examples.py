"""The example scripts run, and write what they say; with attacks cut short."""

import runpy
from functools import partial
from pathlib import Path

from PIL import Image

import leakscope as ls

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_fedavg_leak(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ls.attacks, "dlf", partial(ls.attacks.dlf, steps=3, warm_steps=3, label_steps=3))
    runpy.run_path(str(EXAMPLES / "fedavg_leak.py"))
    assert "psnr (dB)" in capsys.readouterr().out
    with Image.open(tmp_path / "fedavg_leak.png") as picture:
        assert picture.width > 10 * 72
