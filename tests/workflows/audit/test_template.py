import tomllib

import pytest

from leakgauge.core.errors import FileError, UnknownName
from leakgauge.workflows.audit import read_audit
from leakgauge.workflows.audit.template import write_template

SETTINGS = {
    "model": "lenet",
    "data": "digits",
    "sends": "gradient",
    "samples": 2,
    "lr": 0.1,
    "epochs": 1,
    "batch_size": 2,
}


def test_the_template_is_an_audit_and_is_not_written_over(tmp_path):
    path = write_template(tmp_path / "audit.toml", **SETTINGS)
    plan = read_audit(tomllib.loads(path.read_text()), str(path))
    assert plan.scenario.samples == 2
    names = ["dense_output_features", "gauss_newton", "lbfgs_simulation", "learned_inversion", "prior_path"]
    assert list(plan.attacks) == names
    with pytest.raises(FileError, match="already exists"):
        write_template(path, **SETTINGS)


def test_every_comment_that_is_a_setting_is_one(tmp_path):
    """With the comments taken off, the file is still an audit."""
    text = write_template(tmp_path / "audit.toml", **SETTINGS).read_text()
    lines = [
        line.removeprefix("# ") if line.startswith(("# [", "# granted", "# clients", "# title", "# chain")) else line
        for line in text.splitlines()
    ]
    plan = read_audit(tomllib.loads("\n".join(lines)), "audit.toml")
    assert plan.clients == 4
    assert list(plan.chains) == ["noise"]


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ("a.npz", "npz"),
        ("b.CSV", "csv"),
        ("b.csv.gz", "csv"),
        ("b.tsv", "csv"),
        ("m:f", "factory"),
        ("digits", "name"),
        (".", "images"),
    ],
)
def test_data_of_every_kind_gets_its_key(tmp_path, data, key):
    text = write_template(tmp_path / "audit.toml", **(SETTINGS | {"data": data})).read_text()
    assert tomllib.loads(text)["data"] == {key: data}


def test_the_types_of_columns_are_written(tmp_path):
    options = {"target": "größe", "categories": ['a "b"', "c"], "ignore": ["d"]}
    text = write_template(tmp_path / "audit.toml", **(SETTINGS | {"data": "a.csv", "options": options})).read_text()
    assert tomllib.loads(text)["data"] == {"csv": "a.csv", "options": options}


def test_wrong_messages_are_refused(tmp_path):
    with pytest.raises(UnknownName, match="gradient"):
        write_template(tmp_path / "audit.toml", **(SETTINGS | {"sends": "gradients"}))
