"""Recorders of NVFlare see what its own classes exchange, and its own simulator runs with them."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import leakgauge as lg
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.kept_samples import kept_files, load_kept
from leakgauge.evaluation.recipe_check import check_recipe
from tests.federation.networks import mlp
from tests.shared import LazyModule

pytest.importorskip("nvflare")
recording = LazyModule("leakgauge.federation.recording.nvflare")
dxos = LazyModule("nvflare.apis.dxo")
contexts = LazyModule("nvflare.apis.fl_context")
constants = LazyModule("nvflare.apis.fl_constant")
events = LazyModule("nvflare.apis.event_type")
shareables = LazyModule("nvflare.apis.shareable")

ROOT = Path(__file__).parents[3]
DATA = lg.DataSpec((1, 4, 4), 3, mean=(0,), std=(1,))
MODEL = "tests.federation.networks.mlp"
KNOWN = {"lr": 0.1, "epochs": 1, "batch_size": 4, "samples": 4, "optimiser": "sgd", "momentum": 0.0}


def weights(seed):
    torch.manual_seed(seed)
    return {name: value.numpy() for name, value in mlp().state_dict().items()}


def context(site="site-1", task="task-1", job="job-7", **props):
    """The context that NVFlare gives to a component in a running job."""
    manager = contexts.FLContextManager(identity_name=site, job_id=job)
    fl_ctx, peer = manager.new_context(), contexts.FLContextManager(identity_name=site, job_id=job).new_context()
    fl_ctx.set_peer_context(peer)
    key = constants.FLContextKey
    for name, value in {key.TASK_ID: task, **{getattr(key, name): value for name, value in props.items()}}.items():
        fl_ctx.set_prop(name, value, private=True, sticky=False)
    return fl_ctx


def message(data, kind="WEIGHTS", round=0, **meta):
    found = dxos.DXO(getattr(dxos.DataKind, kind), data=data, meta=meta).to_shareable()
    found.set_header("current_round", round)
    return found


def exchange(recorder, sent, answer, site="site-1", task="task-1"):
    kinds = events.EventType
    recorder.handle_event(kinds.AFTER_TASK_DATA_FILTER, context(site, task, TASK_DATA=sent))
    recorder.handle_event(kinds.BEFORE_TASK_RESULT_FILTER, context(site, task, TASK_RESULT=answer))


def server(tmp_path, **options):
    return recording.ServerRecorder(str(tmp_path), MODEL, DATA, **{"training": KNOWN, **options})


@pytest.mark.parametrize("kind", ["WEIGHTS", "WEIGHT_DIFF"])
@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_whole_weights_and_differences_are_recorded_alike(tmp_path, kind, form):
    before, after = weights(0), weights(1)
    answer = after if kind == "WEIGHTS" else {name: after[name] - before[name] for name in after}
    wrap = torch.from_numpy if form == "torch" else np.asarray
    sent, answer = ({name: wrap(value) for name, value in state.items()} for state in (before, answer))
    exchange(server(tmp_path), message(sent, round=3), message(answer, kind))
    [one] = lg.load_all(tmp_path / "run-job-7", mlp())
    assert (one.client, one.round) == ("site-1", 3)
    assert one.training.lr == 0.1
    assert all(np.allclose(one.sent[name], before[name]) for name in before)
    assert all(np.allclose(one.returned[name], after[name], atol=1e-6) for name in after)


def test_tasks_are_paired_by_their_ids(tmp_path):
    recorder, kinds = server(tmp_path), events.EventType
    for number in (0, 1):
        task = context(f"site-{number}", f"task-{number}", TASK_DATA=message(weights(number)))
        recorder.handle_event(kinds.AFTER_TASK_DATA_FILTER, task)
    for number in (1, 0):
        answer = context(f"site-{number}", f"task-{number}", TASK_RESULT=message(weights(2)))
        recorder.handle_event(kinds.BEFORE_TASK_RESULT_FILTER, answer)
    found = {one.client: one for one in lg.load_all(tmp_path, mlp())}
    for number in (0, 1):
        assert all(np.array_equal(found[f"site-{number}"].sent[name], value) for name, value in weights(number).items())


def test_clients_of_a_round_share_the_weights_in_memory(tmp_path):
    recorder = server(tmp_path)
    for number in range(50):
        task = context(f"site-{number}", f"task-{number}", TASK_DATA=message(weights(0)))
        recorder.handle_event(events.EventType.AFTER_TASK_DATA_FILTER, task)
    assert len({id(sent) for _, sent in recorder._sent.values()}) == 1


def test_the_weight_of_a_result_is_read_as_the_user_says(tmp_path):
    for number, meaning in enumerate((None, "steps", "samples")):
        training = {"lr": 0.1, "batch_size": 4}
        recorder = server(tmp_path / str(number), training=training, weight=meaning)
        exchange(recorder, message(weights(0)), message(weights(1), NUM_STEPS_CURRENT_ROUND=6))
        [one] = lg.load_all(tmp_path / str(number), mlp())
        assert (one.training.local_steps, one.training.samples) == [(None, None), (6, None), (None, 6)][number]
        assert one.training.optimiser is None


def test_a_client_records_what_a_privacy_filter_lets_through(tmp_path):
    from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy

    before, after = weights(0), weights(1)
    change = {name: after[name] - before[name] for name in after}
    recorders = [recording.ClientRecorder(str(tmp_path / place), MODEL, DATA) for place in ("plain", "private")]
    for recorder in recorders:
        task = context(TASK_DATA=message(before))
        recorder.handle_event(events.EventType.AFTER_TASK_DATA_FILTER, task)
    answer, fl_ctx = message(change, "WEIGHT_DIFF", NUM_STEPS_CURRENT_ROUND=1), context()
    for one in (recorders[0], PercentilePrivacy(percentile=50, gamma=0.01), recorders[1]):
        answer = one.process(answer, fl_ctx)
    [plain], [private] = (lg.load_all(tmp_path / place, mlp()) for place in ("plain", "private"))
    assert all(np.allclose(plain.returned[name], after[name], atol=1e-6) for name in after)
    moved = [(private.returned[name] - private.sent[name]).flatten() for name in after]
    assert torch.cat(moved).abs().max() <= 0.0101  # the filter's gamma


@pytest.mark.parametrize(
    ("sent", "answer", "sentence"),
    [
        ("weights", "metrics", "holds no weights"), ("weights", "packed", "encrypted"),
        ("weights", "shape", "right model"), ("difference", "weights", "differences of weights"),
        ("weights", "bad", "cannot be read"), ("weights", "nan", "NaN"),
    ],
)  # fmt: skip
def test_what_cannot_be_recorded_costs_one_sentence(tmp_path, caplog, sent, answer, sentence):
    made = {
        "weights": lambda: message(weights(0)), "metrics": lambda: message({"accuracy": 1.0}, "METRICS"),
        "difference": lambda: message(weights(0), "WEIGHT_DIFF"), "bad": lambda: message({"0.weight": object()}),
        "packed": lambda: message(weights(0), PROCESSED_ALGORITHM="HE"),
        "shape": lambda: message({name: value[:1] for name, value in weights(0).items()}),
        "nan": lambda: message({name: value * np.nan for name, value in weights(0).items()}),
    }  # fmt: skip
    recorder = server(tmp_path)
    for task in ("1", "2"):
        exchange(recorder, made[sent](), made[answer](), task=task)
    assert sentence in caplog.text
    assert len(caplog.records) == 1
    assert not list(tmp_path.rglob("site-*"))


def test_other_tasks_failed_results_and_unselected_rounds_are_left_out(tmp_path, caplog):
    recorder = server(tmp_path, every=2, clients=["site-1"])
    exchange(recorder, shareables.Shareable(), message({"a": 1.0}, "METRICS"))
    exchange(recorder, message(weights(0)), shareables.make_reply(constants.ReturnCode.EXECUTION_EXCEPTION))
    for number in range(3):
        for site in ("site-1", "site-2"):
            exchange(recorder, message(weights(0), round=number), message(weights(1)), site, f"{site} {number}")
    assert [(one.client, one.round) for one in lg.load_all(tmp_path, mlp())] == [("site-1", 0), ("site-1", 2)]
    assert caplog.records == []
    assert not recorder._sent


def test_a_full_disk_harms_nothing(tmp_path, caplog, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("leakgauge.core.observation_file.save", full)
    exchange(server(tmp_path), message(weights(0)), message(weights(1)))
    assert "No space left" in caplog.text


def test_nvflare_stores_the_recorder_in_a_job_and_builds_it_again(tmp_path, monkeypatch):
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "train.py").write_text("print('train')\n")
    (tmp_path / "small_net.py").write_text("from torch import nn\n\nclass Small(nn.Flatten):\n    pass\n")
    from small_net import Small  # type: ignore[import-not-found]

    model = {"class_path": MODEL, "args": {}}
    recorder = recording.ServerRecorder("captures", model, DATA, KNOWN, every=2, clients=("site-1",))
    own = recording.ClientRecorder("own", MODEL, lg.DataSpec((1, 4, 4), 3, mean=(0.5,), std=(0.25,)))
    recipe = FedAvgRecipe(name="job", model=Small(), min_clients=1, num_rounds=1, train_script="train.py")
    recipe.add_server_input_filter(recorder, tasks=["train"])
    recipe.add_client_output_filter(own, tasks=["train"])
    recipe.export(str(tmp_path / "exported"))
    for side, made in (("server", recorder), ("client", own)):
        [path] = (tmp_path / "exported").rglob(f"config_fed_{side}.json")
        [stored] = [one["filters"] for one in json.loads(path.read_text())["task_result_filters"]]
        again = getattr(recording, stored[0]["path"].rpartition(".")[2])(**stored[0]["args"])
        assert again._captures.data == made._captures.data
        assert again._captures.training == made._captures.training
        assert (again.every, again.clients) == (made.every, made.clients)


def test_mistakes_of_the_set_up_are_errors(tmp_path):
    for changes, error, words in [
        ({"data": lg.DataSpec((1, 4, 4), 3)}, InvalidInput, "normalises"),
        ({"data": {"shape": [1, 4, 4], "colour": 3}}, UnknownName, "colour"), ({"data": 3}, InvalidInput, "DataSpec"),
        ({"training": {"rate": 0.1}}, UnknownName, "rate"), ({"weight": "batches"}, InvalidInput, "weight"),
        ({"model": "nowhere.Net"}, InvalidInput, "cannot be built"),
        ({"model": "Net"}, InvalidInput, "cannot be built"),
        ({"model": "builtins.dict"}, InvalidInput, "not a module"),
        ({"model": {"class_path": MODEL, "args": {"classes": 3}}}, InvalidInput, "cannot be built"),
    ]:  # fmt: skip
        options = {"folder": str(tmp_path), "model": MODEL, "data": DATA, **changes}
        with pytest.raises(error, match=words):
            recording.ServerRecorder(**options)


def test_simulated_jobs_have_runs_of_their_own(monkeypatch):
    assert recording.run_name("4f2a") == "4f2a"
    monkeypatch.setenv(recording.STARTED, "20261120-101500")
    assert recording.run_name("simulate_job") == "simulate_job-20261120-101500"


def snippets():
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/flower.md").read_text(), re.MULTILINE | re.DOTALL)
    text = (ROOT / "src/leakgauge/federation/recording/nvflare.py").read_text()
    blocks.append(textwrap.dedent(re.search(r"^::\n\n((?:    .*\n|\n)+)", text, re.MULTILINE)[1]))
    return [code for code in blocks if "recording.nvflare import" in code]


@pytest.mark.parametrize("code", snippets())
def test_the_lines_of_the_documents_run_in_a_job_as_they_stand(code, tmp_path, monkeypatch):
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples" / "nvflare")
    (tmp_path / "train.py").write_text("print('train')\n")
    from model import Net  # type: ignore[import-not-found]

    recipe = FedAvgRecipe(name="job", model=Net(), min_clients=1, num_rounds=1, train_script="train.py")
    exec(code, {"recipe": recipe})
    recipe.export(str(tmp_path / "exported"))
    configs = [json.loads(path.read_text()) for path in (tmp_path / "exported").rglob("config_fed_*.json")]
    [filters] = [one["filters"] for config in configs for one in config["task_result_filters"]]
    assert filters[0]["args"]["training"] == {"lr": 0.01, "batch_size": 32}


def test_the_keeper_of_a_training_script_names_the_site_the_job_and_the_round(tmp_path, monkeypatch, caplog):
    from leakgauge.federation.recording import nvflare_keeper

    monkeypatch.setattr(nvflare_keeper.flare, "get_site_name", lambda: "site-4")
    monkeypatch.setattr(nvflare_keeper.flare, "get_job_id", lambda: "job-7")
    keeper = nvflare_keeper.Keeper(tmp_path, DATA)
    batches = [(torch.rand(2, 1, 4, 4), torch.tensor([0, 1]))]
    with keeper.training(SimpleNamespace(current_round=3)):
        assert list(keeper.watch(batches)) == batches
    [one] = map(load_kept, kept_files(tmp_path))
    assert (one.run, one.names, one.round) == ("job-7", ("site-4",), 3)
    with keeper.training(None):
        assert list(keeper.watch(batches)) == batches
    assert "kept no samples" in caplog.text


@pytest.mark.long
def test_the_example_runs_in_nvflares_simulator_and_is_replayed_exactly(tmp_path, command, monkeypatch):
    for file in (ROOT / "examples" / "nvflare").glob("*.py"):
        shutil.copy(file, tmp_path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "job.py", "2", "2", str(tmp_path / "workspace")]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(tmp_path)
    from model import Net

    place = tmp_path / "workspace" / "recorded-digits"
    kept = {(one.run, one.names[0], one.round): one for one in map(load_kept, kept_files(place))}
    observations = lg.load_all(place / "server" / "captures", Net())
    assert len(observations) == len(kept) == 4
    [run] = {run for run, _, _ in kept}
    for one in observations:
        check = check_recipe(one, kept[run, one.client, one.round].truth(one.data))
        assert check.residual < 1e-6
    options = ("--model", "model:Net", "--option", "steps=3", "--data", place, "--output", tmp_path / "out")
    code, out, err = command("attack", place / "server" / "captures", *options)
    assert code == 0, err
    assert "psnr" in out
