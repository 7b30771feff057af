import pytest
from PIL import Image

from leakscope import data, demo
from leakscope.data import wheels
from leakscope.errors import FileError

needs_mnist5k = pytest.mark.skipif(wheels.find("mnist5k") is None, reason="the extra 'datasets' is not installed")


@needs_mnist5k
def test_a_digit_comes_back_above_30_dB_and_is_shown(tmp_path):
    lines: list[str] = []
    found = demo.run_demo(tmp_path, clients=1, report=lines.append)
    case = found.cases[0]
    assert case.score["psnr"].mean > 30 > case.score["psnr"].chance + 10
    assert int(case.result.labels[0]) == int(case.truth.targets[0])
    assert found.leaks
    assert found.verdict.startswith("1 of 1 digits")
    with Image.open(found.picture) as picture:
        assert picture.width > 100
    text = found.page.read_text()
    assert found.verdict in text
    assert case.observation.threat_model()[0] in text
    assert len(lines) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.html", "demo.png"]


def test_an_output_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", lambda name: pytest.fail("work was started"))
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write results there"):
        demo.run_demo(tmp_path / "file")
