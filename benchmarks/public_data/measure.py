"""Measure attackers with public data, one client after another, and append each result to ``results.csv``.

    OMP_NUM_THREADS=1 python benchmarks/public_data/measure.py [SET-UP ...]

Finished clients are left out, so that the same command continues after a stop. The labels are granted, and the attacker
knows the defence. Weights have the seeds 6000 and above.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from cells import DEFENCES, SETUPS, Setup

import leakgauge as lg
from leakgauge.attacks.inversion.adaptive import adapted
from leakgauge.core.params import subtract
from leakgauge.core.seeding import derive
from leakgauge.federation import defences
from leakgauge.workflows.public_samples import rows_of_another

FOLDER = Path(__file__).parent
FIELDS = (
    "setup", "defence", "client", "learned", "chance", "shuffled", "inverting_gradients", "prior_path", "guess",
    "cpu_seconds", "outcome",
)  # fmt: skip
SEED = 6000
#: The steps of the attacks without public data.
STEPS = 200


def network(setup: Setup, data: lg.Dataset, seed: int) -> torch.nn.Module:
    """Return the network of one client."""
    options: dict[str, Any] = dict(setup.options)
    if setup.model == "mlp":
        options |= {"shape": data.spec.shape, "classes": data.spec.outputs}
    return lg.models.build(setup.model, seed=seed, **options)


def leak(score: lg.Score) -> tuple[float, float]:
    """Return the leakage of a score and its chance level: PSNR of pictures, share of the features of rows."""
    name = "psnr" if "psnr" in score else "features"
    return score[name].value, float(score[name].chance or 0.0)


def measure(setup: Setup, title: str, client: int, data: lg.Dataset) -> dict[str, Any]:
    """Attack one client, and return its row."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED))
    own = data.share(order[client * setup.samples : (client + 1) * setup.samples])
    public = data.share(order[len(order) - setup.public :], f"{setup.public:,} public samples")
    chain = [defences.build(**one) for one in DEFENCES[title]]
    model = network(setup, data, SEED + client)
    options = {"defences": chain, "knows_defence": True, "granted": ["labels"], "seed": SEED + client}
    plain, truth = lg.fedsgd(model, own, **options)
    observation = lg.public_data(plain, public, defences=chain, truth=truth)
    assert observation.public is not None
    granted = observation.public
    began = time.process_time()
    attack = lg.attacks.build("learned_inversion", rehearsals=setup.public)
    result = attack(observation, seed=client)
    seconds = time.process_time() - began
    value, chance = leak(lg.score(result, truth, public=granted))
    rows = rows_of_another(granted, setup.samples, observation.labels, derive(SEED, client))
    other = granted.rehearse(granted.samples[rows], granted.targets[rows], derive(SEED, "other", client))
    given = {"gradient": other} if observation.gradient is not None else {"returned": subtract(plain.sent, other)}
    control = attack(observation.knowing(**given), seed=client)
    shuffled, _ = leak(lg.score(SimpleNamespace(samples=control.samples, labels=None), truth, public=granted))
    row = {"learned": value, "chance": chance, "shuffled": shuffled, "cpu_seconds": seconds}
    if setup.ours:
        plain_attack = lg.attacks.build("inverting_gradients", steps=STEPS)
        scored = lg.score(adapted(plain_attack, plain)(plain, seed=client), truth)
        path = lg.attacks.build("prior_path", steps=STEPS)(plain, seed=client)
        reference = truth.reference_inputs
        assert reference is not None
        if path.outcome.kind == "guess":
            path = SimpleNamespace(samples=reference.mean(0).expand_as(path.samples), labels=None)
        row |= {"inverting_gradients": leak(scored)[0], "guess": leak(scored)[1]}
        row["prior_path"] = leak(lg.score(path, truth))[0]
    return row | {"outcome": str(result.outcome)}


def main() -> None:
    """Measure what is missing in ``results.csv``."""
    path = FOLDER / "results.csv"
    done = set()
    if path.exists():
        with path.open() as file:
            done = {(row["setup"], row["defence"], int(row["client"])) for row in csv.DictReader(file)}
    else:
        path.write_text(",".join(FIELDS) + "\n")
    for name in sys.argv[1:] or SETUPS:
        setup = SETUPS[name]
        data = lg.data.load(setup.data)
        for client in range(setup.clients):
            for title in setup.defences:
                if (name, title, client) in done:
                    continue
                row = measure(setup, title, client, data)
                shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
                with path.open("a", newline="") as file:
                    csv.DictWriter(file, FIELDS).writerow({"setup": name, "defence": title, "client": client, **shown})
                print(name, title, client, shown, flush=True)


if __name__ == "__main__":
    main()
