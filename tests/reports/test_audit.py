"""An audit on disk is a page with the verdict first, and files with the same figures for programs."""

import base64
import csv
import json
import re
from dataclasses import replace

import pytest

from leakgauge.evaluation.gate import check, read_condition
from leakgauge.reports.audit import write_audit
from leakgauge.workflows.audit import read_audit, run_audit
from tests.workflows.audit.test_run import HERE, document


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    return run_audit(read_audit(document(), "audit.toml"), tmp_path_factory.mktemp("store"), HERE)


def written(audit, folder, **options):
    return write_audit(audit, folder, command="leakgauge audit audit.toml", **options).read_text()


def test_the_page_says_the_verdict_first_and_shows_why(audit, tmp_path):
    text = written(audit, tmp_path)
    assert text.index("Clients&#39; samples can be rebuilt") < text.index("<h2>")
    assert "By defence: no defence: recovers data; noise: " in text
    assert "What came back: no defence" in text
    assert "knows the defence" in text
    assert "Threat model" in text
    assert "leakgauge audit audit.toml" in text
    pictures = re.findall(r"data:image/png;base64,([^\"]+)", text)
    assert len(pictures) == 3  # two defences, one picture of losses
    assert all(base64.b64decode(one).startswith(b"\x89PNG") for one in pictures)
    assert not re.search(r"(src|href)=\"(?!data:)", text)


def test_samples_can_be_kept_out_of_the_page(audit, tmp_path):
    pages = {kind: written(audit, tmp_path / kind, redact=kind) for kind in ("none", "omit")}
    counts = {kind: text.count("data:image/png") for kind, text in pages.items()}
    assert counts == {"none": 3, "omit": 1}


def test_programs_read_the_same(audit, tmp_path):
    checks = check([read_condition("recovered > 0.05", ["idlg"])], audit.findings)
    text = written(replace(audit, checks=tuple(checks)), tmp_path)
    assert "BROKEN: idlg (no defence): recovered = 1 is &gt; 0.05" in text
    written_audit = json.loads((tmp_path / "audit.json").read_text())
    assert written_audit["verdict"] == "recovers data"
    assert written_audit["complete"]
    assert len(written_audit["findings"]) == 5
    assert any(check["failed"] for check in written_audit["checks"])
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert {row["attack"] for row in rows} == {"idlg", "inverting_gradients"}
    assert {row["metric"] for row in rows} >= {"psnr", "ssim", "recovered", "label_errors"}


def test_an_audit_that_is_not_complete_says_so(tmp_path):
    part = run_audit(read_audit(document(), "audit.toml"), tmp_path / "store", HERE, stop_after=1)
    assert "not complete" in written(part, tmp_path / "page")
