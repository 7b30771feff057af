import json
import os
import subprocess
import sys
import textwrap
import tomllib

import pytest

import leakgauge as lg
from leakgauge.attacks.base import Attack
from leakgauge.attacks.reconstruction_file import load_reconstruction
from leakgauge.cli.common import settings


@pytest.fixture
def run(command, monkeypatch, tmp_path):
    """Run commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command


@pytest.fixture
def captures(tmp_path):
    digits, model = lg.data.load("digits"), lg.models.build("lenet", shape=(1, 8, 8), classes=10, seed=1)
    observations = [lg.fedsgd(model, digits.share([row]), client=f"c{row}")[0] for row in range(2)]
    lg.save_all(observations, tmp_path / "captures")
    return tmp_path / "captures"


def test_attack_writes_reconstructions_and_pictures(run, captures, tmp_path):
    code, out, _ = run("attack", str(captures), "--attack", "idlg", "--option", "steps=5", "--output", "out")
    assert code == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    ends = (".png", ".reconstruction.safetensors")
    pairs = [f"c{i}_round-000000{end}" for i in (0, 1) for end in ends]
    assert names == sorted(["cache", "captures.html", "captures.json", *pairs])
    result = load_reconstruction(tmp_path / "out" / "c0_round-000000.reconstruction.safetensors")
    assert result.samples.shape == (1, 1, 8, 8)
    assert "c0" in out
    assert "c1" in out


def test_what_was_done_is_not_done_again(run, captures, monkeypatch):
    words = ("attack", str(captures), "-a", "idlg", "--option", "steps=2")
    run(*words)
    monkeypatch.setattr(Attack, "__call__", lambda *_, **__: pytest.fail("attacked again"))
    code, out, _ = run(*words)
    assert code == 0
    assert out.count("(cached)") == 2


@pytest.mark.parametrize("change", [("--option", "steps=3"), ("--option", "steps=2", "--seed", "1")])
def test_other_settings_are_attacked_anew(run, captures, change):
    run("attack", str(captures), "-a", "idlg", "--option", "steps=2")
    _, out, _ = run("attack", str(captures), "-a", "idlg", *change)
    assert "(cached)" not in out


def test_an_interrupt_before_any_work_is_answered(run, monkeypatch, tmp_path):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    (tmp_path / "audit.toml").write_text("")
    monkeypatch.setattr("leakgauge.workflows.documents.read_toml", interrupted)
    code, _, err = run("audit", "audit.toml")
    assert (code, err) == (130, "leakgauge: interrupted\n")


def test_an_interrupt_keeps_the_best_and_goes_on_next_time(run, captures, monkeypatch, tmp_path):
    from leakgauge.attacks.inversion import solve

    calls = {"n": 0}
    original = solve._one_by_one

    def interrupted(*arguments):
        calls["n"] += 1
        if calls["n"] == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(solve, "_one_by_one", interrupted)
    code, out, _ = run("attack", str(captures), "--option", "steps=6")
    assert code == 130
    assert "interrupted" in out
    assert len(list((tmp_path / "reconstructions").glob("*.safetensors"))) == 1
    code, out, _ = run("attack", str(captures), "--option", "steps=6")
    assert code == 0
    assert "(cached)" not in out


def test_a_model_of_ones_own_is_named_by_its_factory(run, tmp_path, monkeypatch):
    (tmp_path / "own_network.py").write_text(
        textwrap.dedent("""
            from torch import nn
            def make(classes=10):
                return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, classes))
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    import own_network  # type: ignore[import-not-found]

    observation, _ = lg.fedsgd(own_network.make(), lg.data.load("digits").share([0]))
    lg.save(observation, tmp_path / "one.safetensors")
    code, _, err = run("attack", "one.safetensors")
    assert code == 2
    assert "--model module:factory" in err
    assert run("attack", "one.safetensors", "--model", "own_network:make", "--option", "steps=2")[0] == 0
    code, _, err = run("attack", "one.safetensors", "--model", "own_network:make", "--model-option", "classes=3")
    assert code == 2
    assert "is this the right model?" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("attack", "nowhere"), "no such file"),
        (("attack", "empty"), "no .safetensors files"),
        (("attack", "CAPTURES", "-a", "idgl"), "did you mean 'idlg'"),
        (("attack", "CAPTURES", "--option", "stepz=3"), "did you mean 'steps'"),
        (("attack", "CAPTURES", "--option", "steps"), "key=value"),
        (("attack", "CAPTURES", "--option", "steps=0"), "at least 1"),
        (("attack", "CAPTURES", "--option", "steps=many"), "steps"),
        (("attack", "CAPTURES", "--model", "nothing_here:make"), "nothing_here"),
        (("attack", "CAPTURES", "--device", "warp"), "cannot compute on 'warp'"),
        (("attack", "CAPTURES", "--output", "blocked/out"), "cannot write results there"),
        (("attack", "blocked"), "blocked"),
        (("list", "atacks"), "did you mean 'attacks'"),
        (("data", "mnsit"), "did you mean 'mnist"),
        (("data", "digits", "--split", "test"), "split"),
        (("demo", "--clients", "0"), "clients"),
        (("demo", "--output", "blocked"), "cannot write results there"),
        (("nonsense",), "nonsense"),
        (("attack",), "OBSERVATIONS"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run, captures, tmp_path, words, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "blocked").write_text("a file, not a folder")
    code, _, err = run(*(str(captures) if word == "CAPTURES" else word for word in words))
    assert code == 2
    assert said.lower() in err.lower()
    assert err.startswith("leakgauge: ")
    assert len(err.strip().splitlines()) == 1


def test_an_unexpected_error_is_a_sentence_too(run, monkeypatch):
    def fail(*_):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("leakgauge.data.locate", fail)
    code, _, err = run("data", "digits")
    assert code == 2
    assert "RuntimeError: first line" in err
    assert "second line" not in err


def test_list_names_everything(run):
    code, out, _ = run("list")
    assert code == 0
    names = (*lg.attacks.ATTACKS, *lg.data.DATASETS, *lg.metrics.METRICS, *lg.models.MODELS, "module:factory")
    names += tuple(lg.defences.DEFENCES)
    assert [name for name in names if name not in out] == []
    code, out, _ = run("list", "models")
    assert "lenet" in out
    assert "psnr" not in out
    code, out, _ = run("list", "defences")
    assert "gaussian_noise" in out


def test_data_tells_where_things_are_and_what_is_in_them(run, monkeypatch):
    monkeypatch.setenv("LEAKGAUGE_OFFLINE", "1")
    code, out, _ = run("data")
    assert code == 0
    assert [name for name in lg.data.DATASETS if name not in out] == []
    code, out, _ = run("data", "diabetes")
    assert "442 samples" in out
    assert "sensitive column: sex" in out


def test_the_installed_command_runs(tmp_path):
    command = os.path.join(os.path.dirname(sys.executable), "leakgauge")
    done = subprocess.run([command, "list", "attacks"], capture_output=True, text=True, check=True)
    assert "inverting_gradients" in done.stdout
    words = [command, "attack", "/nonexistent"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert list(tmp_path.iterdir()) == []  # nothing to attack, so no folder is made


def test_settings_are_read_as_json_or_text():
    words = ["a=1", "b=0.5", "c=true", "d=[1, 2]", "e=relu", 'f={"x": null}']
    assert settings(words) == {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": [1, 2],
        "e": "relu",
        "f": json.loads('{"x": null}'),
    }


def test_init_prints_how_a_table_is_read_and_writes_the_types(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{20 + row};{row % 4};{'ja' if row % 2 else 'nein'}\n" for row in range(12))
    (tmp_path / "people.csv").write_text(f"alter;stufe;risiko\n{rows}")
    table = ("--model", "mlp", "--data", "people.csv", "--target", "risiko")
    code, out, errors = command("init", "plain.toml", *table)
    assert code == 0, errors
    assert "stufe: few different whole numbers, used as numbers." in " ".join(out.split())
    code, out, errors = command("init", "coded.toml", *table, "--categories", "stufe", "--ignore", "alter")
    assert code == 0, errors
    assert "Categories: stufe (4 values)." in out
    written = tomllib.loads((tmp_path / "coded.toml").read_text())["data"]
    assert written == {
        "csv": "people.csv",
        "options": {"target": "risiko", "categories": ["stufe"], "ignore": ["alter"]},
    }
    (tmp_path / "coded.toml").write_text(
        (tmp_path / "coded.toml").read_text() + '[audit]\nclients = 1\nattacks = ["dense_read_off"]\n'
    )
    code, out, errors = command("audit", "coded.toml", "--engine", "in-process")
    assert code == 0, errors
    assert "Categories: stufe (4 values)." in out
    for words in (("--ignore", "alter"), ("--target", "x"), ("--target", "risiko", "--numbers", "risiko")):
        code, _, errors = command("init", "wrong.toml", "--model", "mlp", "--data", "people.csv", *words)
        assert (code, len(errors.strip().splitlines())) == (2, 1)
        assert not (tmp_path / "wrong.toml").exists()
