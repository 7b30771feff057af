"""The example scripts run and write their files, with attacks cut short."""

import runpy
from functools import partial
from pathlib import Path

from PIL import Image

import leakgauge as lg

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_fedavg_leak(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lg.attacks, "dlf", partial(lg.attacks.dlf, steps=3, warm_steps=3, label_steps=3))
    runpy.run_path(str(EXAMPLES / "fedavg_leak.py"))
    assert "psnr (dB)" in capsys.readouterr().out
    with Image.open(tmp_path / "fedavg_leak.png") as picture:
        assert picture.width > 10 * 72


def test_many_rounds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lg, "infer", partial(lg.infer, options={"samples": 8, "steps": 5, "training": 5}))
    runpy.run_path(str(EXAMPLES / "many_rounds.py"))
    out = capsys.readouterr().out
    assert "sex: 100% right by attribute_by_equations, chance 69%" in out
    assert "owner: 99% right by source_by_equations" in out
    assert "except that column" in (tmp_path / "inferred" / "inferred.html").read_text()
