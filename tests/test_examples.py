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


def test_own_loop(tmp_path, monkeypatch, capsys):
    assert len((EXAMPLES / "own_loop.py").read_text().splitlines()) <= 40
    monkeypatch.chdir(tmp_path)
    attack = lg.attack
    monkeypatch.setattr(lg, "attack", lambda *words, **named: attack(*words, **{**named, "options": {"steps": 3}}))
    runpy.run_path(str(EXAMPLES / "own_loop.py"))
    out = capsys.readouterr().out
    assert out.count("Training again with the recipe on the client's samples gives this update") == 4
    assert "hospital-3, round 2" in out
    assert "psnr (dB)" in out
    names = sorted(path.name for path in (tmp_path / "captures" / "run-1").glob("*.safetensors"))
    assert names == [f"hospital-{client}_round-00000{number}.safetensors" for client in (1, 3) for number in (1, 2)]
