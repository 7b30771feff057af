"""Benchmark rows that measure attacks on clients' models (LMRA by Driouich et al.).

An attack rebuilds the model of a client. The rows measure how similar the rebuilt model is to the model that the client
would train alone. They also measure how well attributes, owners and pictures are inferred from the rebuilt model. Each
measure is a mean over clients:

=============  =======================================================================================================
measure        meaning
=============  =======================================================================================================
``zest``       The similarity to the model that the client trains alone (:func:`leakgauge.evaluation.zest`). The chance
               level is the similarity of the federation's initial model to that model. ``reference`` in ``[row]`` is
               how the client trains alone: ``"converged"`` (the default) or ``"recipe"``.
``zest_recipe``, ``zest_converged``
               The same with one of the two references, whatever ``reference`` is.
``zest_published``
               The authors' form of the same similarity (:func:`leakgauge.evaluation.zest_published`), on the same
               reference as ``zest``. It is on another scale, and only for comparison with published figures.
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
``aia_gain``   The ``aia`` of the method minus the share that the other columns predict without any message (the method
               ``columns``). The chance level is 0.
``sia``        The share of records whose client is found. The attacker gets the records of all clients at once. The
               chance level is one divided by the number of attacked clients.
``sia_10``     The same for groups of ten records, of which the attacker knows that they belong to one client.
``sia_client`` The same for all of a client's records together, as LMRA's authors measure it.
``sia_gain``   The ``sia`` of the method minus the ``sia`` of the vote over rounds. The chance level is 0.
``ssim``       The SSIM between the attacker's picture of a class, such as a person, and the most similar picture of the
               class among the client's samples (equation 5). The chance level is the SSIM of the client's mean picture.
=============  =======================================================================================================

The methods are described in :mod:`leakgauge.reproduction.inferences`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.attacks.local_model import LastReturned, LocalModel
from leakgauge.core.container import output_folder
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import InvalidInput, UnknownName
from leakgauge.core.own_files import write_own
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator
from leakgauge.data import Dataset
from leakgauge.evaluation import ssim, zest, zest_published
from leakgauge.evaluation.inferred import WHOLE, groups_of
from leakgauge.reports import contact_sheet, to_png
from leakgauge.reproduction.federations import REFERENCES, federation_clients, target_scale, watch_federation
from leakgauge.reproduction.inferences import WITHOUT_MODEL, Attacked, Prior, inference_of, rebuild, secret
from leakgauge.reproduction.kinds.base import Job, Kind, Outcome
from leakgauge.reproduction.metrics import mean_of

#: A function that compares two models on samples.
Similarity = Callable[[LocalModel, LocalModel, Tensor, DataSpec], float]
#: One value for each client, and the chance level. It is ``None`` if a method does not have the measure.
Values = tuple[Tensor, float] | None


def rebuild_models(job: Job, report: Report) -> Outcome:
    """Attack clients of a recorded federation with one method, and measure the results."""
    names = _measures(job)
    federation = watch_federation(job.setting, job.seed, report)
    chosen = spread(len(federation.clients), job.clients)
    began = time.perf_counter()
    models = rebuild(federation, chosen, job.method, job.steps, report, _reference(job))
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


def _measures(job: Job) -> list[str]:
    """Return the names of the measures of a row, or raise an error if the row names unknown ones."""
    names: list[str] = job.row.measuring.get("measures", ["zest", "aia", "sia"])
    for name in names:
        if name not in MEASURES:
            raise UnknownName("measure for [row] measures called", name, MEASURES)
    if _reference(job) not in REFERENCES:
        raise UnknownName("training for [row] reference called", _reference(job), REFERENCES)
    return names


def _check(job: Job) -> None:
    _measures(job)
    spread(len(federation_clients(job.setting, job.seed)), job.clients)


def _drawn(job: Job) -> Iterator[Path]:
    """Yield the picture of a method, if the row measures pictures and the job has a folder for them."""
    if job.pictures is not None and "ssim" in _measures(job):
        yield job.pictures / f"faces-{job.method.name}.png"


def spread(count: int, number: int) -> list[int]:
    """Choose clients to attack, evenly spread over all clients of the federation, and return their indices.

    Args:
        count: The number of clients of the federation.
        number: The number of clients to attack.
    """
    if number > count:
        raise InvalidInput(f"There are {count} clients in this federation, not {number}. Attack fewer clients.")
    return [place * count // number for place in range(number)]


def _reference(job: Job) -> str:
    """Return how a client's own model is trained, ``"converged"`` or ``"recipe"``."""
    return str(job.row.measuring.get("reference", "converged"))


def _zest(job: Job, attacked: Attacked) -> Values:
    return _likeness(job, attacked, _reference(job), _on_probabilities)


def _zest_recipe(job: Job, attacked: Attacked) -> Values:
    return _likeness(job, attacked, "recipe", _on_probabilities)


def _zest_converged(job: Job, attacked: Attacked) -> Values:
    return _likeness(job, attacked, "converged", _on_probabilities)


def _zest_published(job: Job, attacked: Attacked) -> Values:
    return _likeness(job, attacked, _reference(job), zest_published)


def _likeness(job: Job, attacked: Attacked, reference: str, similarity: Similarity) -> Values:
    if not attacked.models:
        return None
    initial = [attacked.federation.untrained(index) for index in attacked.chosen]
    blind = _similarities(job, attacked, initial, reference, similarity).mean()
    return _similarities(job, attacked, attacked.models, reference, similarity), float(blind)


def _zest_gain(job: Job, attacked: Attacked) -> Values:
    if not attacked.models:
        return None
    last = [LastReturned()(messages, progress=False) for messages in attacked.rounds]
    of_models, of_last = (
        _similarities(job, attacked, models, _reference(job), _on_probabilities) for models in (attacked.models, last)
    )
    return of_models - of_last, 0.0


def _similarities(
    job: Job, attacked: Attacked, models: Sequence[LocalModel], reference: str, similarity: Similarity
) -> Tensor:
    """Return the similarity of each client's model in ``models`` to the model that the same client trains alone."""
    values = []
    for index, model, client in zip(attacked.chosen, models, attacked.clients, strict=True):
        rows = _some(client, job.row.measuring.get("references", 32), job.seed).inputs
        own = attacked.federation.reference(index, reference)
        values.append(similarity(model, own, rows, client.spec))
    return torch.tensor(values)


def _on_probabilities(first: LocalModel, second: LocalModel, samples: Tensor, spec: DataSpec) -> float:
    return zest(first.probabilities, second.probabilities, samples, spec)


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


def _aia_gain(job: Job, attacked: Attacked) -> Values:
    own = _attributes(job, attacked, None)
    columns = _attributes(job, attacked, None, "columns")
    return None if own is None or columns is None else (own[0] - columns[0], 0.0)


def _attributes(job: Job, attacked: Attacked, prior: Prior | None, attack: str | None = None) -> Values:
    inference = inference_of(attack or job.method.attack)
    if inference.attribute is None or (prior is not None and not inference.takes_prior):
        return None
    correct = [
        (inference.attribute(attacked, place, prior) == secret(client)).double().mean()
        for place, client in enumerate(attacked.clients)
    ]
    shares = [float(secret(client).double().mean()) for client in attacked.clients]
    frequent = sum(max(share, 1 - share) for share in shares) / len(shares)
    return torch.stack(correct), frequent


def _sia(job: Job, attacked: Attacked, group: int = 1) -> Values:
    correct = _sources(job, attacked, job.method.attack, group)
    return None if correct is None else (correct, 1 / len(attacked.chosen))


def _sia_10(job: Job, attacked: Attacked) -> Values:
    return _sia(job, attacked, 10)


def _sia_client(job: Job, attacked: Attacked) -> Values:
    return _sia(job, attacked, WHOLE)


def _sia_gain(job: Job, attacked: Attacked) -> Values:
    correct, vote = _sources(job, attacked, job.method.attack), _sources(job, attacked, "gradient")
    return None if correct is None or vote is None else (correct - vote, 0.0)


def _sources(job: Job, attacked: Attacked, attack: str, group: int = 1) -> Tensor | None:
    """Return, for each client, the share of the client's groups of records whose owner an attack finds.

    The result is ``None`` if the attack does not apply.

    Args:
        job: The job, which holds the number of records of each client.
        attacked: The attacked clients.
        attack: The name of the attack.
        group: The number of records in a group, all of the same client. With :data:`WHOLE`, all of the client's records
            form one group, and all of its data is used.
    """
    inference = inference_of(attack)
    if inference.source is None or not inference.finds_sources(attacked):
        return None
    if (attack, group) not in attacked.shares:
        number = WHOLE if group == WHOLE else job.row.measuring.get("records", 100)
        records = [_some(client, number, job.seed) for client in attacked.clients]
        inputs, targets = torch.cat([part.inputs for part in records]), torch.cat([part.targets for part in records])
        groups, owners = groups_of([len(part) for part in records], group)
        choice = inference.source(attacked, inputs, targets).of_groups(groups).choice
        correct = [(choice[owners == place] == place).double().mean() for place in range(len(records))]
        attacked.shares[attack, group] = torch.stack(correct)
    return attacked.shares[attack, group]


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
    output_folder(job.pictures)
    rows = {
        "original": torch.stack([client.inputs[client.targets == label][0] for label in classes]),
        job.method.name: torch.stack([samples[labels == label][0] for label in classes]),
    }
    for target in _drawn(job):
        write_own(target, to_png(contact_sheet(rows)))


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
    "zest_recipe": _zest_recipe,
    "zest_converged": _zest_converged,
    "zest_published": _zest_published,
    "zest_gain": _zest_gain,
    "accuracy": _accuracy,
    "mse": _mse,
    "mape": _mape,
    "aia": _aia,
    "aia_gain": _aia_gain,
    "aia_prior": _aia_prior,
    "sia": _sia,
    "sia_10": _sia_10,
    "sia_client": _sia_client,
    "sia_gain": _sia_gain,
    "ssim": _ssim,
}
LOCAL_MODELS = Kind(
    rebuild_models,
    frozenset({"model", "data", "training", "attacker", "defence", "federation"}),
    together=True,
    check=_check,
    drawn=_drawn,
)
