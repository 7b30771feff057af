"""Rows of LMRA: rebuild every client's own model, and see how near it is and what it gives away.

=====================  ===============================================================================================
measure                what it is, as a mean over clients
=====================  ===============================================================================================
``zest``               similarity to the model that the client trains alone (:func:`leakgauge.evaluation.zest`); by chance:
                       that of the federation's first model
``zest_gain``          the same less that of the model that the client returned last, client by client; by chance: 0
``accuracy``, ``mse``  of the model on the client's own data
``mape``               the mean absolute error of a regression there, as a share of the target; by chance: the error of
                       the client's mean target
``aia``                the share of sensitive attributes inferred, equation 3; by chance: always the client's more
                       frequent value
``aia_prior``          the same by an attacker who is granted how frequent the values are among all clients
``sia``                the share of records whose client is found
``sia_gain``           the same less that of the vote over rounds, client by client; by chance: 0
``ssim``               of the nearest of a client's pictures of a person to the sample of that person, equation 5
=====================  ===============================================================================================

A method is a way to rebuild the model (:func:`leakgauge.attacks.local_model.build`), or one of these: ``optimal``, the client's
own model itself, as the ceiling; ``gradient``, the attacks without any model (equation 2, the vote over rounds,
equation 4); ``equations``, attribute and source by the gradient's equations; ``inputs``, the source by where inputs
lie; ``columns``, the attribute by what the other columns tell, learned from the other clients' records
(:func:`leakgauge.evaluation.imputed`): no message at all. Sources are asked for all clients' records at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.attacks import attribute, class_samples, local_model, source
from leakgauge.attacks.attribute import PublicRecords
from leakgauge.attacks.local_model import LastReturned, LocalModel
from leakgauge.core.container import output_folder, write_atomically
from leakgauge.core.errors import CorruptFile, InvalidInput
from leakgauge.core.progress import Report
from leakgauge.core.seeding import derive, generator
from leakgauge.data import Dataset
from leakgauge.evaluation import Interval, imputed, mean_interval, ssim, zest
from leakgauge.reports import contact_sheet, to_png
from leakgauge.reproduction.federations import Watched, target_scale, watched
from leakgauge.reproduction.rows import Method

MEASURES = ("zest", "zest_gain", "accuracy", "mse", "mape", "aia", "aia_prior", "sia", "sia_gain", "ssim")
WITHOUT_MODEL = ("gradient", "equations", "inputs", "columns")
_LIMITS = {
    "zest": (-1.0, 1.0),
    "zest_gain": (-2.0, 2.0),
    "sia_gain": (-1.0, 1.0),
    "ssim": (-1.0, 1.0),
    "mse": (0.0, math.inf),
    "mape": (0.0, math.inf),
}


def rebuild_models(
    setting: dict[str, Any],
    method: Method,
    clients: int,
    steps: int | None,
    seed: int,
    report: Report,
    pictures: Path | None = None,
) -> dict[str, Any]:
    """Attack ``clients`` clients of a watched federation by one method, and measure what came of it."""
    measures = setting.get("measures", ["zest", "aia", "sia"])
    wrong = sorted(set(measures) - set(MEASURES))
    if wrong:
        raise CorruptFile(f"a row measures some of {', '.join(MEASURES)}, not {wrong[0]!r}")
    federation = watched(setting, seed, report)
    chosen = spread(len(federation.clients), clients)
    began = time.perf_counter()
    models = [] if method.attack in WITHOUT_MODEL else rebuilt(federation, method, chosen, steps, seed, report)
    seconds = time.perf_counter() - began
    audit = _Audit(setting, federation, chosen, models, method, steps, seed, pictures)
    columns: dict[str, Tensor] = {}
    chance: dict[str, float] = {}
    for name in measures:
        found = getattr(audit, name)()
        if found is not None:
            columns[name], chance[name] = found
    if method.attack in WITHOUT_MODEL:
        seconds = time.perf_counter() - began
    return {
        "clients": len(chosen),
        "steps": steps or method.options.get("steps", 0),
        "ours": {name: _interval(name, values) for name, values in columns.items()},
        "chance": chance,
        "seconds": seconds / len(chosen),
        "extra": {"federation_seconds": federation.seconds},
    }


def spread(count: int, wanted: int) -> list[int]:
    """Which clients are attacked: all, or some of them evenly spread."""
    if wanted > count:
        raise InvalidInput(f"there are {count} clients in this federation, not {wanted}")
    return [place * count // wanted for place in range(wanted)]


def rebuilt(
    federation: Watched, method: Method, chosen: Sequence[int], steps: int | None, seed: int, report: Report
) -> list[LocalModel]:
    """The models of some clients by one method."""
    if method.attack == "optimal":
        return [federation.reference(index) for index in chosen]
    options = dict(method.options)
    if steps is not None and method.attack in ("lmra", "distilled", "learned"):
        options["epochs" if method.attack == "learned" else "steps"] = steps
    attack = local_model.build(method.attack, **options)
    return [attack(federation.observations[index], seed=derive(seed, index), progress=report) for index in chosen]


class _Audit:
    """What one method's models give away: one value a client, beside chance, for each measure."""

    def __init__(
        self,
        setting: dict[str, Any],
        federation: Watched,
        chosen: Sequence[int],
        models: Sequence[LocalModel],
        method: Method,
        steps: int | None,
        seed: int,
        pictures: Path | None,
    ) -> None:
        self.setting, self.federation, self.chosen, self.models = setting, federation, chosen, models
        self.method, self.seed, self.pictures = method, seed, pictures
        self.options = dict(method.options)
        if steps is not None:
            self.options["steps"] = steps
        self.clients = [federation.clients[index] for index in chosen]
        self.sources = cache(self._sources)

    def zest(self) -> tuple[Tensor, float] | None:
        if not self.models:
            return None
        first = [self.federation.untrained(index) for index in self.chosen]
        return self._likeness(self.models), float(self._likeness(first).mean())

    def zest_gain(self) -> tuple[Tensor, float] | None:
        if not self.models:
            return None
        last = [LastReturned()(self.federation.observations[index], progress=False) for index in self.chosen]
        return self._likeness(self.models) - self._likeness(last), 0.0

    def _likeness(self, models: Sequence[LocalModel]) -> Tensor:
        """How like its client's own each model is."""
        found = []
        for index, model, client in zip(self.chosen, models, self.clients, strict=True):
            rows = _some(client, self.setting.get("references", 32), self.seed).inputs
            own = self.federation.reference(index)
            found.append(zest(model.probabilities, own.probabilities, rows, client.spec))
        return torch.tensor(found)

    def accuracy(self) -> tuple[Tensor, float] | None:
        if not self.models:
            return None
        with torch.no_grad():
            right = [
                (model.probabilities(client.inputs).argmax(1) == client.targets).double().mean()
                for model, client in zip(self.models, self.clients, strict=True)
            ]
        blind = [float(torch.bincount(client.targets).max()) / len(client) for client in self.clients]
        return torch.stack(right), sum(blind) / len(blind)

    def mse(self) -> tuple[Tensor, float] | None:
        if not self.models:
            return None
        with torch.no_grad():
            errors = [m.losses(c.inputs, c.targets).mean() for m, c in zip(self.models, self.clients, strict=True)]
        blind = [float(client.targets.var(correction=0)) for client in self.clients]
        return torch.stack(errors), sum(blind) / len(blind)

    def mape(self) -> tuple[Tensor, float] | None:
        if not self.models:
            return None
        mean, deviation = target_scale(self.setting)

        def error(client: Dataset, predicted: Tensor) -> Tensor:
            true = client.targets * deviation + mean
            return ((predicted.reshape(true.shape) * deviation + mean - true) / true).abs().mean()

        with torch.no_grad():
            pairs = zip(self.models, self.clients, strict=True)
            errors = [error(client, model.probabilities(client.inputs).to(client.targets)) for model, client in pairs]
        blind = [float(error(client, client.targets.mean().expand(len(client)))) for client in self.clients]
        return torch.stack(errors), sum(blind) / len(blind)

    def aia(self) -> tuple[Tensor, float] | None:
        return self._attributes(None)

    def aia_prior(self) -> tuple[Tensor, float] | None:
        share = float(torch.cat([_secret(client) for client in self.federation.clients]).double().mean())
        return self._attributes((1 - share, share))

    def _attributes(self, prior: tuple[float, float] | None) -> tuple[Tensor, float] | None:
        if self.method.attack == "inputs" or (self.method.attack == "columns" and prior is not None):
            return None
        found = []
        for place, client in enumerate(self.clients):
            records, messages = _records(client), self.federation.observations[self.chosen[place]]
            if self.models:
                inferred = attribute.by_model(self.models[place], records, prior=prior)
            elif self.method.attack == "columns":
                found.append((self._imputed(self.chosen[place]) == _secret(client)).double().mean())
                continue
            elif self.method.attack == "equations":
                inferred = attribute.by_equations(messages, records, prior=prior, **self.options)
            else:
                inferred = attribute.by_gradient(messages, records, prior=prior, **self.options)
            found.append((inferred.choice.cpu() == _secret(client)).double().mean())
        return torch.stack(found), self._frequent()

    def _imputed(self, index: int) -> Tensor:
        """A client's sensitive values, by its other columns and by the other clients' records."""
        others = [client for place, client in enumerate(self.federation.clients) if place != index]
        known = [_records(client).known() for client in (self.federation.clients[index], *others)]
        return imputed(known[0], torch.cat(known[1:]), torch.cat([_secret(client) for client in others]))

    def _frequent(self) -> float:
        shares = [float(_secret(client).double().mean()) for client in self.clients]
        return sum(max(share, 1 - share) for share in shares) / len(shares)

    def sia(self) -> tuple[Tensor, float] | None:
        right = self.sources(self.method.attack)
        return None if right is None else (right, 1 / len(self.clients))

    def sia_gain(self) -> tuple[Tensor, float] | None:
        right, vote = self.sources(self.method.attack), self.sources("gradient")
        return None if right is None or vote is None else (right - vote, 0.0)

    def _sources(self, attack: str) -> Tensor | None:
        """The share of each client's records whose client an attack finds, all clients' being asked for at once."""
        normalised = attack == "equations" and self.setting.get("batch_norm", False)
        if attack in ("global", "columns") or normalised or len(self.clients) < 2:
            return None
        rounds = [self.federation.observations[index] for index in self.chosen]
        some = [_some(client, self.setting.get("records", 100), self.seed) for client in self.clients]
        inputs, targets = torch.cat([one.inputs for one in some]), torch.cat([one.targets for one in some])
        if attack == "gradient":
            found = source.by_vote(rounds, inputs, targets)
        elif attack == "inputs":
            found = source.by_inputs(rounds, inputs)
        elif attack == "equations":
            found = source.by_equations(rounds, inputs, targets)
        else:
            found = source.by_loss(self.models, inputs, targets)
        each = found.choice.cpu().split([len(one) for one in some])
        return torch.stack([(choice == place).double().mean() for place, choice in enumerate(each)])

    def ssim(self) -> tuple[Tensor, float] | None:
        if self.method.attack in ("equations", "inputs", "columns"):
            return None
        found, blind = [], []
        for place, client in enumerate(self.clients):
            people = owned(client)
            if self.models:
                made = class_samples.by_model(self.models[place], people)
                samples, labels = made.samples.cpu(), made.labels.cpu()
            else:
                last = self.federation.observations[self.chosen[place]][-1].knowing(labels=client.targets)
                made_up = class_samples.by_gradient(last, seed=self.seed, **self.options)
                samples, labels = made_up.samples, client.targets
            found.append(torch.tensor([nearest(client, samples[labels == one], one) for one in people]).mean())
            average = client.inputs.mean(0, keepdim=True)
            blind.append(sum(nearest(client, average, one) for one in people) / len(people))
            if self.pictures is not None and place == 0:
                rows = {
                    "original": torch.stack([client.inputs[client.targets == one][0] for one in people]),
                    self.method.name: torch.stack([samples[labels == one][0] for one in people]),
                }
                target = output_folder(self.pictures) / f"faces-{self.method.name}.png"
                write_atomically(target, to_png(contact_sheet(rows)))
        return torch.stack(found).double(), sum(blind) / len(blind)


def owned(client: Dataset, count: int = 4) -> list[int]:
    """The classes of which a client holds most samples."""
    counts = torch.bincount(client.targets)
    return sorted(counts.argsort(descending=True, stable=True)[:count].tolist())


def nearest(client: Dataset, samples: Tensor, label: int) -> float:
    """The highest SSIM between any of the samples and any of the client's of that class."""
    own = client.inputs[client.targets == label]
    pairs = [ssim(one.expand_as(own), own).max() for one in samples.to(own)]
    return float(torch.stack(pairs).max())


def _some(client: Dataset, wanted: int, seed: int) -> Dataset:
    return client.share(torch.randperm(len(client), generator=generator(seed, "some", client.name))[:wanted])


def _secret(client: Dataset) -> Tensor:
    return client.inputs[:, client.spec.columns.index(_sensitive(client))].long()


def _sensitive(client: Dataset) -> str:
    if client.sensitive is None:
        raise CorruptFile(f"{client.name} has no sensitive column; measure zest or sia")
    return client.sensitive


def _records(client: Dataset) -> PublicRecords:
    return PublicRecords.hiding(client.inputs, client.targets, client.spec, _sensitive(client))


def _interval(name: str, values: Tensor) -> Interval:
    return mean_interval(values, limits=_LIMITS.get(name, (0.0, 1.0)))
