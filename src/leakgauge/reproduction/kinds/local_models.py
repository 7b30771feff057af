"""Benchmark rows that measure attacks on clients' models (LMRA by Driouich et al.).

An attack rebuilds the model of a client. The rows measure how similar the rebuilt model is to the model that the client
would train alone. They also measure how well attributes, owners and pictures are inferred from the rebuilt model. Each
measure is a mean over clients:

=============  =======================================================================================================
measure        meaning
=============  =======================================================================================================
``zest``       The similarity to the model that the client trains alone (:func:`leakgauge.evaluation.zest`). The chance
               level is the similarity of the federation's initial model to that model.
``zest_gain``  The ``zest`` of the rebuilt model minus the ``zest`` of the model that the client returned last. The
               chance level is 0.
``accuracy``   The accuracy of the model on the client's data. The chance level is the share of the most frequent class.
``mse``        The mean squared error of the model on the client's data. The chance level is the variance of the
               targets.
``mape``       The mean absolute error of a regression on the client's data, as a share of the target. The chance level
               is the error of a model that always predicts the client's mean target.
``aia``        The share of sensitive attributes that are inferred correctly (equation 3). The chance level is the share
               of the value that is more frequent among the client's records.
``aia_prior``  The same share as ``aia``, for an attacker who is given the frequencies of the values among all clients.
``sia``        The share of records whose client is found. The attacker gets the records of all clients at once. The
               chance level is one divided by the number of attacked clients.
``sia_gain``   The ``sia`` of the method minus the ``sia`` of the vote over rounds. The chance level is 0.
``ssim``       The SSIM between the attacker's picture of a class, such as a person, and the most similar picture of the
               class among the client's samples (equation 5). The chance level is the SSIM of the client's mean picture.
=============  =======================================================================================================

The methods are described in :mod:`leakgauge.reproduction.inferences`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from leakgauge.attacks.local_model import LastReturned, LocalModel
from leakgauge.core.container import output_folder, write_atomically
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator
from leakgauge.data import Dataset
from leakgauge.evaluation import ssim, zest
from leakgauge.reports import contact_sheet, to_png
from leakgauge.reproduction.federations import target_scale, watch_federation
from leakgauge.reproduction.inferences import WITHOUT_MODEL, Attacked, Prior, inference_of, rebuild, secret
from leakgauge.reproduction.kinds.base import Job, Kind, Outcome
from leakgauge.reproduction.metrics import mean_of

#: One value for each client, and the chance level. It is ``None`` if a method does not have the measure.
Values = tuple[Tensor, float] | None


def rebuild_models(job: Job, report: Report) -> Outcome:
    """Attack clients of a recorded federation with one method, and measure the results."""
    names = job.row.measuring.get("measures", ["zest", "aia", "sia"])
    for name in names:
        if name not in MEASURES:
            raise UnknownName("measure for [row] measures called", name, MEASURES)
    federation = watch_federation(job.setting, job.seed, report)
    chosen = spread(len(federation.clients), job.clients)
    began = time.perf_counter()
    models = rebuild(federation, chosen, job.method, job.steps, report)
    seconds = time.perf_counter() - began
    attacked = Attacked(federation, chosen, models, job.options, job.seed)
    measures = {}
    for name in names:
        values = MEASURES[name](job, attacked)
        if values is not None:
            measures[name] = mean_of(name, *values)
    if job.method.attack in WITHOUT_MODEL:  # for these methods, the time of the inference is the time of the attack
        seconds = time.perf_counter() - began
    return Outcome(
        measures,
        job.steps or job.method.options.get("steps", 0),
        seconds / len(chosen),
        len(chosen),
        {"federation_seconds": federation.seconds},
    )


def spread(count: int, number: int) -> list[int]:
    """Choose clients to attack, evenly spread over all clients of the federation, and return their indices.

    Args:
        count: The number of clients of the federation.
        number: The number of clients to attack.
    """
    if number > count:
        raise InvalidInput(f"There are {count} clients in this federation, not {number}. Attack fewer clients.")
    return [place * count // number for place in range(number)]


def _zest(job: Job, attacked: Attacked) -> Values:
    if not attacked.models:
        return None
    initial = [attacked.federation.untrained(index) for index in attacked.chosen]
    return _similarity(job, attacked, attacked.models), float(_similarity(job, attacked, initial).mean())


def _zest_gain(job: Job, attacked: Attacked) -> Values:
    if not attacked.models:
        return None
    last = [LastReturned()(messages, progress=False) for messages in attacked.rounds]
    return _similarity(job, attacked, attacked.models) - _similarity(job, attacked, last), 0.0


def _similarity(job: Job, attacked: Attacked, models: Sequence[LocalModel]) -> Tensor:
    """Return the similarity of each client's model in ``models`` to the model that the same client trains alone."""
    values = []
    for index, model, client in zip(attacked.chosen, models, attacked.clients, strict=True):
        rows = _some(client, job.row.measuring.get("references", 32), job.seed).inputs
        reference = attacked.federation.reference(index)
        values.append(zest(model.probabilities, reference.probabilities, rows, client.spec))
    return torch.tensor(values)


def _accuracy(job: Job, attacked: Attacked) -> Values:
    if not attacked.models:
        return None
    with torch.no_grad():
        correct = [
            (model.probabilities(client.inputs).argmax(1) == client.targets).double().mean()
            for model, client in zip(attacked.models, attacked.clients, strict=True)
        ]
    blind = [float(torch.bincount(client.targets).max()) / len(client) for client in attacked.clients]
    return torch.stack(correct), sum(blind) / len(blind)


def _mse(job: Job, attacked: Attacked) -> Values:
    if not attacked.models:
        return None
    pairs = zip(attacked.models, attacked.clients, strict=True)
    with torch.no_grad():
        errors = [model.losses(client.inputs, client.targets).mean() for model, client in pairs]
    blind = [float(client.targets.var(correction=0)) for client in attacked.clients]
    return torch.stack(errors), sum(blind) / len(blind)


def _mape(job: Job, attacked: Attacked) -> Values:
    if not attacked.models:
        return None
    mean, deviation = target_scale(job.setting)

    def error(client: Dataset, predicted: Tensor) -> Tensor:
        true = client.targets * deviation + mean
        return ((predicted.reshape(true.shape) * deviation + mean - true) / true).abs().mean()

    pairs = zip(attacked.models, attacked.clients, strict=True)
    with torch.no_grad():
        errors = [error(client, model.probabilities(client.inputs).to(client.targets)) for model, client in pairs]
    blind = [float(error(client, client.targets.mean().expand(len(client)))) for client in attacked.clients]
    return torch.stack(errors), sum(blind) / len(blind)


def _aia(job: Job, attacked: Attacked) -> Values:
    return _attributes(job, attacked, None)


def _aia_prior(job: Job, attacked: Attacked) -> Values:
    share = float(torch.cat([secret(client) for client in attacked.federation.clients]).double().mean())
    return _attributes(job, attacked, (1 - share, share))


def _attributes(job: Job, attacked: Attacked, prior: Prior | None) -> Values:
    inference = inference_of(job.method.attack)
    if inference.attribute is None or (prior is not None and not inference.takes_prior):
        return None
    correct = [
        (inference.attribute(attacked, place, prior) == secret(client)).double().mean()
        for place, client in enumerate(attacked.clients)
    ]
    shares = [float(secret(client).double().mean()) for client in attacked.clients]
    frequent = sum(max(share, 1 - share) for share in shares) / len(shares)
    return torch.stack(correct), frequent


def _sia(job: Job, attacked: Attacked) -> Values:
    correct = _sources(job, attacked, job.method.attack)
    return None if correct is None else (correct, 1 / len(attacked.chosen))


def _sia_gain(job: Job, attacked: Attacked) -> Values:
    correct, vote = _sources(job, attacked, job.method.attack), _sources(job, attacked, "gradient")
    return None if correct is None or vote is None else (correct - vote, 0.0)


def _sources(job: Job, attacked: Attacked, attack: str) -> Tensor | None:
    """Return, for each client, the share of the client's records whose owner an attack finds.

    The result is ``None`` if the attack does not apply.
    """
    inference = inference_of(attack)
    if inference.source is None or not inference.finds_sources(attacked):
        return None
    if attack not in attacked.shares:
        records = [_some(client, job.row.measuring.get("records", 100), job.seed) for client in attacked.clients]
        inputs, targets = torch.cat([part.inputs for part in records]), torch.cat([part.targets for part in records])
        owners = inference.source(attacked, inputs, targets).cpu().split([len(part) for part in records])
        correct = [(owner == place).double().mean() for place, owner in enumerate(owners)]
        attacked.shares[attack] = torch.stack(correct)
    return attacked.shares[attack]


def _ssim(job: Job, attacked: Attacked) -> Values:
    inference = inference_of(job.method.attack)
    if inference.pictures is None:
        return None
    values, blind = [], []
    for place, client in enumerate(attacked.clients):
        classes = frequent_classes(client)
        samples, labels = inference.pictures(attacked, place, classes)
        values.append(torch.tensor([nearest(client, samples[labels == label], label) for label in classes]).mean())
        average = client.inputs.mean(0, keepdim=True)
        blind.append(sum(nearest(client, average, label) for label in classes) / len(classes))
        if place == 0:
            _draw(job, client, classes, samples, labels)
    return torch.stack(values).double(), sum(blind) / len(blind)


def _draw(job: Job, client: Dataset, classes: Sequence[int], samples: Tensor, labels: Tensor) -> None:
    """Draw an original and a rebuilt sample of each class, if the job has a folder for pictures."""
    if job.pictures is None:
        return
    rows = {
        "original": torch.stack([client.inputs[client.targets == label][0] for label in classes]),
        job.method.name: torch.stack([samples[labels == label][0] for label in classes]),
    }
    target = output_folder(job.pictures) / f"faces-{job.method.name}.png"
    write_atomically(target, to_png(contact_sheet(rows)))


def frequent_classes(client: Dataset, count: int = 4) -> list[int]:
    """Return the classes of which a client has the most samples.

    Args:
        client: The client's data.
        count: The number of classes to return.
    """
    counts = torch.bincount(client.targets)
    return sorted(counts.argsort(descending=True, stable=True)[:count].tolist())


def nearest(client: Dataset, samples: Tensor, label: int) -> float:
    """Return the highest SSIM between any of the attacker's samples and any of the client's samples of a class.

    Args:
        client: The client's data.
        samples: The attacker's samples of the class.
        label: The index of the class.
    """
    originals = client.inputs[client.targets == label]
    best = [ssim(sample.expand_as(originals), originals).max() for sample in samples.to(originals)]
    return float(torch.stack(best).max())


def _some(client: Dataset, number: int, seed: int) -> Dataset:
    return client.share(torch.randperm(len(client), generator=generator(seed, "some", client.name))[:number])


MEASURES: dict[str, Callable[[Job, Attacked], Values]] = {
    "zest": _zest,
    "zest_gain": _zest_gain,
    "accuracy": _accuracy,
    "mse": _mse,
    "mape": _mape,
    "aia": _aia,
    "aia_prior": _aia_prior,
    "sia": _sia,
    "sia_gain": _sia_gain,
    "ssim": _ssim,
}
LOCAL_MODELS = Kind(
    rebuild_models, frozenset({"model", "data", "training", "attacker", "defence", "federation"}), together=True
)
