"""Samples of clients are nowhere after --redact omit and after leakgauge forget, and files of others stay."""

import errno
import json
import os
import re
import sqlite3
import stat

import numpy as np
import pytest
import torch

import leakgauge as lg
from leakgauge.core.container import kind_of, read_container
from leakgauge.core.errors import InvalidInput
from leakgauge.runtime.cache import FILE, KIND, TENSORS, VERSION, Cache
from leakgauge.workflows.audit import read_audit, run
from leakgauge.workflows.forget import forget
from tests.workflows.audit.test_run import document

ATTACK = {"options": {"steps": 3}, "engine": "in-process"}


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    """Two captures of a client, and the folder of its data."""
    root = tmp_path_factory.mktemp("captures")
    data = lg.data.load("digits").share([0, 1])
    lg.save_all([lg.fedavg(network(), data, lr=0.1, client="ann", round=r)[0] for r in (1, 2)], root / "captures")
    (root / "data").mkdir()
    np.savez(root / "data" / "ann.npz", x=data.inputs.numpy(), y=data.targets.numpy())
    return root


def audited(folder, **options):
    plan = read_audit(document(defence=[{}]), "audit.toml")
    return lg.audit(plan, folder, engine="in-process", **options)


def attacked(captures, folder, **options):
    return lg.attack(captures / "captures", output=folder, model=network(), **ATTACK, **options)


def showing_samples(folder):
    """The files below a folder that hold a sample: pictures in pages and files, reconstructions, tensors of a cache."""
    found = []
    for path in folder.rglob("*"):
        if path.suffix == ".html":
            found += [path] * bool(re.search(r'alt="(originals|reconstructions from)', path.read_text()))
        elif path.suffix == ".png":
            found.append(path)
        elif path.suffix == ".safetensors":
            _, tensors = read_container(path, kind_of(path), VERSION)
            found += [path] * any(value.dim() > 1 for value in tensors.values())  # figures are single values or curves
    return found


def test_an_audit_that_omits_samples_stores_none_and_is_not_run_again(tmp_path, monkeypatch):
    made = audited(tmp_path, redact="omit")
    assert not showing_samples(tmp_path)
    monkeypatch.setattr(run, "attack_client", None)
    again = audited(tmp_path, redact="omit")
    assert [one.document for one in again.results] == [one.document for one in made.results]
    page = audited(tmp_path).page.read_text()  # a page of stored figures, which says what it lacks
    assert "The samples were not stored, because of --redact omit" in page
    assert not showing_samples(tmp_path)


def test_omitting_removes_what_earlier_runs_stored_and_keeps_the_results(tmp_path, monkeypatch):
    made = audited(tmp_path)
    before = showing_samples(tmp_path)
    assert {path.parent.name for path in before} == {tmp_path.name, TENSORS}
    monkeypatch.setattr(run, "attack_client", None)
    again = audited(tmp_path, redact="omit")
    assert not showing_samples(tmp_path)
    assert [one.document for one in again.results] == [one.document for one in made.results]
    assert all(
        torch.equal(one.tensors["psnr"], other.tensors["psnr"])
        for one, other in zip(again.results, made.results, strict=True)
    )


def test_an_interrupted_audit_that_omits_has_removed_the_earlier_samples(tmp_path, monkeypatch):
    audited(tmp_path)
    monkeypatch.setattr("leakgauge.workflows.audit.run_audit", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        audited(tmp_path, redact="omit")
    assert {path.parent.name for path in showing_samples(tmp_path)} == {TENSORS}  # run_audit removes these at once


def test_an_attack_on_captures_that_omits_samples_stores_its_scores(captures, tmp_path, monkeypatch):
    options = {"data": captures / "data", "redact": "omit"}
    made = attacked(captures, tmp_path, **options)
    assert not showing_samples(tmp_path)
    assert all(one.reconstruction.samples.numel() == 0 for one in made.attacked)
    again = attacked(captures, tmp_path, **options)
    for one, other in zip(again.attacked, made.attacked, strict=True):
        assert one.cached
        assert one.score.to_rows() == other.score.to_rows()
        assert one.score.notes == other.score.notes
        assert one.reconstruction.labels is other.reconstruction.labels is None
    assert again.verdict is made.verdict
    without = attacked(captures, tmp_path, redact="omit")  # the stored score is of other data
    assert not any(one.cached for one in without.attacked)
    shown = attacked(captures, tmp_path)  # and here samples are needed
    assert not any(one.cached for one in shown.attacked)
    assert len(list(tmp_path.glob("*.png"))) == 2


def test_omitting_keeps_the_scores_of_an_attack_that_showed_samples(captures, tmp_path):
    made = attacked(captures, tmp_path, data=captures / "data")
    assert len(showing_samples(tmp_path)) == 7  # a page; and for each capture a picture, a file and the cached result
    again = attacked(captures, tmp_path, data=captures / "data", redact="omit")
    assert not showing_samples(tmp_path)
    assert all(one.cached for one in again.attacked)
    assert [one.score.to_rows() for one in again.attacked] == [one.score.to_rows() for one in made.attacked]


def test_forget_removes_the_samples_and_says_which_files(captures, tmp_path, command):
    attacked(captures, tmp_path, data=captures / "data")
    before = {path.name for path in showing_samples(tmp_path)}
    code, output, _ = command("forget", tmp_path)
    assert code == 0
    assert all(f"{name}\n" in output for name in before)
    assert "7 files held samples. Figures are kept." in output
    assert not showing_samples(tmp_path)
    assert json.loads((tmp_path / "captures.json").read_text())["captures"]
    code, output, _ = command("forget", tmp_path)
    assert (code, output) == (0, "no samples found\n")
    again = attacked(captures, tmp_path, data=captures / "data", redact="omit")
    assert all(one.cached for one in again.attacked)


def test_forget_leaves_files_of_others_and_names_them(tmp_path, command):
    audited(tmp_path)
    foreign = [tmp_path / "mine.png", tmp_path / "mine.html", tmp_path / "cache" / TENSORS / "mine.safetensors"]
    for path in foreign:
        path.write_bytes(b"\x89PNG mine")
    outside = tmp_path.parent / "outside.png"
    outside.write_bytes(b"\x89PNG tEXtleakgauge\0samples")
    (tmp_path / "link.png").symlink_to(outside)
    code, output, _ = command("forget", tmp_path)
    assert code == 0
    assert all(f"left, because Leakgauge did not write it: {path}\n" in output for path in foreign)
    assert all(path.exists() for path in (*foreign, outside))
    assert {path.name for path in tmp_path.iterdir()} >= {"audit.json", "results.csv", "link.png"}


def test_a_folder_that_is_not_ours_is_refused_and_unchanged(captures, tmp_path):
    (tmp_path / "photo.png").write_bytes(b"\x89PNG mine")
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("create table notes (text)")
    connection.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for folder in (tmp_path, captures / "captures"):
        with pytest.raises(InvalidInput, match="holds no results of Leakgauge, so nothing was removed"):
            forget(folder)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(InvalidInput, match="there is no such folder"):
        forget(tmp_path / "none")
    with pytest.raises(InvalidInput, match="there is no such folder"):
        forget(tmp_path / "photo.png")


def test_samples_are_removed_from_a_cache_without_its_database(tmp_path):
    cache = Cache(tmp_path)
    for name in "ab":
        cache.put(name, {}, {"x": torch.zeros(2, 2)}, samples=["x"])
    (tmp_path / FILE).write_bytes(b"damaged" * 1000)
    removed = forget(tmp_path).removed
    assert len(removed) == 2
    assert not any(kind_of(path) == KIND for path in (tmp_path / TENSORS).iterdir())


def test_a_reconstruction_that_is_damaged_is_removed_too(captures, tmp_path):
    attacked(captures, tmp_path)
    [first, _] = sorted(tmp_path.glob("*.reconstruction.safetensors"))
    first.write_bytes(first.read_bytes()[:-3])
    forget(tmp_path)
    assert not list(tmp_path.glob("*.reconstruction.safetensors"))


def test_a_file_that_cannot_be_removed_is_named(captures, tmp_path, command, monkeypatch):
    attacked(captures, tmp_path)

    def denied(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.unlink", denied)
    code, _, error = command("forget", tmp_path)
    assert code == 2
    assert re.search(
        r"leakgauge: .*: (holds samples and cannot be removed|this cache cannot be used) \(.*denied", error
    )


def test_nobody_else_can_read_what_commands_write(captures, tmp_path):
    before = os.umask(0)
    try:
        attacked(captures, tmp_path / "new" / "attack")
        attacked(captures, tmp_path / "new" / "omitted", redact="omit")
        lg.save_all([lg.load(path, network()) for path in (captures / "captures").iterdir()], tmp_path / "saved")
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert {path.name for path in modes} >= {"captures.html", FILE, "captures.json", "ann_round-000001.png", "saved"}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
