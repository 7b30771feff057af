"""Twenty kinds of clients, each recorded, replayed and attacked, and ten wrong recipes, each with its cause.

    python benchmarks/recording/clients.py [STEPS]

Each client has eight digits of 8 x 8 pixels, trains a small network for two epochs in batches of four, and returns its
weights. A recorder watches the training, and a keeper stores the samples in the order of the training. The table says
whether the message was recorded, how far the replay of the recorded recipe is from it, and what an attack with STEPS
steps (default 300) recovers, or the sentence that says why not. It is written to README.md beside this file.
"""

import copy
import logging
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import leakgauge as lg
from leakgauge.core.kept_samples import kept_files, load_kept
from leakgauge.evaluation.recipe_check import check_recipe

DATA = lg.DataSpec((1, 8, 8), classes=10, mean=(0.3,), std=(0.35,))
RECIPE = {"epochs": 2, "batch_size": 4, "samples": 8}
#: What a hand-written loop has to say about itself, because no optimiser shows it.
PLAIN = {"clip_norm": 0.0, "proximal": 0.0, "label_smoothing": 0.0}


def network(norm=False, drop=0.0):
    """Return a network with fixed weights."""
    torch.manual_seed(0)
    middle = [nn.BatchNorm2d(8)] if norm else []
    dropout = [nn.Dropout(drop)] if drop else []
    return nn.Sequential(nn.Conv2d(1, 8, 3), *middle, nn.Sigmoid(), nn.Flatten(), *dropout, nn.Linear(288, 10))


def sgd(model, **options):
    """Return SGD for the weights that are trained."""
    return torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.05, **options)


@dataclass
class Client:
    """One kind of client.

    Args:
        optimizer: The function that makes its optimiser.
        model: The function that makes its network.
        recipe: What it says about its training beside the optimiser.
        scheduler: The function that makes its schedule, which takes a step after each batch.
        wrap: The function that wraps the network for the training.
        clip: The norm to which gradients are clipped.
        proximal: The weight of FedProx's term.
        message: The function that turns a state dict into what the client exchanges, if the server records it.
        dtype: The number type of the training.
    """

    optimizer: Callable = sgd
    model: Callable = network
    recipe: dict = field(default_factory=dict)
    scheduler: Callable | None = None
    wrap: Callable = lambda model: model
    clip: float = 0.0
    proximal: float = 0.0
    message: Callable | None = None
    dtype: torch.dtype = torch.float32


def head_only():
    """Return a network of which only the last layer is trained."""
    model = network()
    model[0].requires_grad_(False)
    return model


def with_adapters():
    """Return a network with adapters of LoRA, made by the library peft."""
    from peft import LoraConfig, get_peft_model

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10))
    torch.manual_seed(0)
    for value in model.parameters():
        nn.init.normal_(value, std=0.2)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["1"], modules_to_save=["3"]))
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.1)  # in the first round, B is 0, and A has no gradient
    return adapted


def adapters_of(model, state):
    """Return what an app exchanges that uses peft."""
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(model, state_dict=state)


def step_lr(optimizer):
    """Return a schedule that halves the rate after each epoch."""
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def cosine(optimizer):
    """Return a schedule that falls to 0 over the round."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)


def without(*names):
    """Return a function that leaves parts of a state dict out."""
    return lambda model, state: {key: value for key, value in state.items() if not any(name in key for name in names)}


def parameters_only(model, state):
    """Return a list of arrays without names, as older interfaces send it."""
    return [state[name].numpy() for name, _ in model.named_parameters()]


CLIENTS = {
    "SGD": Client(),
    "momentum 0.9": Client(lambda model: sgd(model, momentum=0.9)),
    "weight decay 0.01": Client(lambda model: sgd(model, weight_decay=0.01)),
    "Nesterov": Client(lambda model: sgd(model, momentum=0.9, nesterov=True)),
    "Adam": Client(lambda model: torch.optim.Adam(model.parameters(), lr=0.01)),
    "AdamW": Client(lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)),
    "StepLR": Client(scheduler=step_lr),
    "cosine": Client(scheduler=cosine),
    "FedProx": Client(proximal=1.0, recipe={"proximal": 1.0}),
    "FedAdam (the server's optimiser)": Client(),
    "FedBN": Client(model=lambda: network(norm=True), message=without("1.")),
    "batch norm": Client(model=lambda: network(norm=True)),
    "batch norm without its statistics": Client(
        model=lambda: network(norm=True), message=without("running_", "num_batches")
    ),
    "LoRA by peft": Client(model=with_adapters, message=adapters_of),
    "head only": Client(model=head_only, message=without("0.")),
    "prefixes of wrappers": Client(wrap=nn.DataParallel),
    "parameters only, without names": Client(message=parameters_only),
    "gradients clipped to 0.5": Client(clip=0.5, recipe={"clip_norm": 0.5}),
    "dropout": Client(model=lambda: network(drop=0.3)),
    "bfloat16": Client(dtype=torch.bfloat16),
}


class Sentences(logging.Handler):
    """The sentences that recorders log."""

    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        """Keep a sentence."""
        self.said.append(record.getMessage())


def trained(client, keeper, model, optimizer):
    """Train as the client does, on batches that the keeper watches."""
    digits = lg.data.load("digits")
    inputs, targets = DATA.normalise(digits.inputs[:8]).to(client.dtype), digits.targets[:8]
    draws = torch.Generator().manual_seed(1)
    loader = keeper.watch(DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True, generator=draws))
    before = [value.detach().clone() for value in model.parameters()]
    scheduler = client.scheduler(optimizer) if client.scheduler else None
    torch.manual_seed(2)
    for _ in range(2):
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), labels)
            if client.proximal:
                moved = zip(model.parameters(), before, strict=True)
                loss = loss + client.proximal / 2 * sum((one - other).square().sum() for one, other in moved)
            loss.backward()
            if client.clip:
                nn.utils.clip_grad_norm_(model.parameters(), client.clip)
            optimizer.step()
            if scheduler:
                scheduler.step()


def record(client, folder):
    """Record one round of a client, and return the observation, the truth, and the sentences in the log."""
    sentences = Sentences()
    logging.getLogger("leakgauge").addHandler(sentences)
    own = client.model().to(client.dtype)
    recorder = lg.record(folder, model=copy.deepcopy(own), data=DATA)
    keeper, wrapped = recorder.keeper(), client.wrap(own)
    optimizer, recipe = client.optimizer(own), {**RECIPE, **PLAIN, **client.recipe}
    if client.message is None:
        with recorder.client("client", round=1, model=wrapped, optimizer=optimizer, **recipe):
            trained(client, keeper, wrapped, optimizer)
    else:  # the server records what is exchanged
        sent = client.message(own, copy.deepcopy(own.state_dict()))
        with keeper.client("client", round=1):
            trained(client, keeper, wrapped, optimizer)
        known = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}
        settings = {**known, "nesterov": False, "dampening": 0.0, "accumulation": 1}
        recorder.keep("client", 1, sent, client.message(own, own.state_dict()), **recipe, **settings)
    logging.getLogger("leakgauge").removeHandler(sentences)
    kept = [load_kept(file) for file in kept_files(Path(folder))]
    files = [file for file in Path(folder).rglob("client_round-*.safetensors") if file.parent.name != "kept"]
    observation = lg.load(files[0], client.model()) if files else None
    return observation, kept[0].truth(DATA) if kept else None, sentences.said


def other_client():
    """Return the samples of another client."""
    digits = lg.data.load("digits")
    return lg.Truth(digits.inputs[8:16], digits.targets[8:16], DATA)


def changed(**settings):
    """Return a function that changes the recipe of an observation."""
    return lambda one: replace(one, training=replace(one.training, **settings))


def normalised(mean, std):
    """Return a function that changes the normalisation of an observation."""
    return lambda one: replace(one, data=replace(one.data, mean=(mean,), std=(std,)))


#: The client, what is wrong in its recipe, and words of the cause.
WRONG = {
    "half the learning rate": ("SGD", changed(lr=0.025), "learning rate 0.05"),
    "no normalisation": ("SGD", normalised(0.0, 1.0), "inputs normalised with"),
    "momentum taken for 0": ("momentum 0.9", changed(momentum=0.0), "momentum 0.9"),
    "weight decay taken for 0": ("weight decay 0.01", changed(weight_decay=0.0), "weight decay 0.01"),
    "Nesterov taken for plain momentum": ("Nesterov", changed(nesterov=False), "Nesterov"),
    "Adam taken for SGD": ("Adam", changed(optimiser="sgd"), "the optimiser adam"),
    "cosine taken for a constant rate": ("cosine", changed(schedule="constant"), "schedule cosine"),
    "FedProx taken for FedAvg": ("FedProx", changed(proximal=0.0), "proximal term of 1.0"),
    "clipping left out": ("gradients clipped to 0.5", changed(clip_norm=0.0), "norm 0.5"),
    "one epoch for two": ("SGD", changed(epochs=1), "4 batches of 4"),
    "batches of 8 for 4": ("SGD", changed(batch_size=8), "4 batches of 4"),
    "another client's samples": ("SGD", None, "the samples of 'client'"),
}


def check_wrong(name):
    """Return the check of a wrong recipe."""
    client, change, _ = WRONG[name]
    with tempfile.TemporaryDirectory() as folder:
        observation, truth, _ = record(CLIENTS[client], folder)
    if change is None:
        return check_recipe(observation, other_client(), {"client": truth})
    return check_recipe(change(observation), truth)


def row(name, steps):
    """Return what is recorded of a client, the residual, and what comes back."""
    with tempfile.TemporaryDirectory() as folder:
        observation, truth, said = record(CLIENTS[name], folder)
    if observation is None:
        return [name, "no", "", said[0] if said else "nothing was said"]
    check = check_recipe(observation, truth)
    residual = f"{check.residual:.1e} (at most {check.limit:.2g})"
    if check.explained is not True:
        return [name, "yes", residual, check.sentence]
    score = lg.score(lg.attacks.inverting_gradients(steps=steps)(observation), truth)
    errors = score["label_errors"]
    back = f"{score['psnr'].value:.1f} dB (chance {score['psnr'].chance:.1f}), {errors.value:g} label errors"
    return [name, "yes", residual, f"{back} (chance {errors.chance:.1f})"]


def main():
    """Write the tables."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    rows = [["client", "recorded", "relative distance of the replay", "what comes back, or why not"]]
    rows += [row(name, steps) for name in CLIENTS]
    wrong = [["wrong recipe", "relative distance", "cause that the check names", "distance with it"]]
    for name in WRONG:
        check = check_wrong(name)
        wrong.append([name, f"{check.residual:.2g}", " and ".join(check.causes), f"{check.residual_of_causes:.1g}"])
    lines = ["# Recording twenty kinds of clients", "", *__doc__.strip().splitlines()[4:], ""]
    for table in (rows, wrong):
        lines += ["| " + " | ".join(cells) + " |" for cells in (table[0], ["---"] * 4, *table[1:])] + [""]
    Path(__file__).with_name("README.md").write_text("\n".join(lines).rstrip() + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
