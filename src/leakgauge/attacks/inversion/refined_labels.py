"""Estimates of label counts, which are corrected with a first reconstruction of the samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.inversion.attack import Inversion
from leakgauge.attacks.inversion.label_counts import input_statistics, round_counts
from leakgauge.attacks.inversion.labels import LastLayer, granted_labels
from leakgauge.attacks.inversion.last_layer import last_layer
from leakgauge.attacks.inversion.probed_labels import has_formula, infer_label_counts
from leakgauge.attacks.inversion.update_models import FullSimulation
from leakgauge.core.checks import whole_number
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params, scale
from leakgauge.core.progress import silent


@dataclass(frozen=True)
class RefinedLabels:
    r"""A source of labels that estimates label counts, and corrects them by a simulation of the client.

    :func:`~leakgauge.attacks.inversion.label_counts.estimate_label_counts` does not know the samples, so it must guess
    the model's mean predictions during the local training. If a reconstruction resembles the samples, the model makes
    nearly the same predictions on it. Let :math:`\bar g^{obs}` be the observed mean gradient of the last bias over the
    local steps. Let :math:`\bar g^{sim}` be the same gradient, simulated on the reconstruction :math:`\tilde x` with
    counts :math:`\lambda`. The corrected counts are

    .. math:: \lambda' = \lambda + N\,(\bar g^{sim}(\tilde x, \lambda) - \bar g^{obs}),

    where :math:`N` is the number of samples. The predictions occur in both gradients and nearly cancel. The first
    estimate is that of DLF (section 4.5). The correction is our addition.

    Args:
        inversion: The inversion that makes the reconstruction.
        first: The method that makes the first estimate of the labels.
        rounds: The number of corrections.
        orders: The number of random sample orders to simulate. The client's order is unknown.
        shuffle: Whether the labels are put into a random order.
    """

    inversion: Inversion
    first: LastLayer = LastLayer(at="client")  # noqa: RUF009 - frozen
    rounds: int = 1
    orders: int = 3
    shuffle: bool = True

    def __post_init__(self) -> None:
        whole_number("rounds", self.rounds)
        whole_number("orders", self.orders)

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Return the given or inferred labels.

        Args:
            observation: The client's message (gradient or weights), as the server sees it.
            generator: The random generator for all draws.
        """
        if granted_labels(observation) is not None:
            return LastLayer(shuffle=self.shuffle)(observation, generator)
        counts = infer_label_counts(
            observation, generator, at=self.first.at, read=self.first.read, dummies=self.first.dummies
        )
        samples = int(observation.training.need("samples"))
        if samples > 1 and has_formula(observation, self.first.read):
            for _ in range(self.rounds):
                counts = self._corrected(observation, counts, samples, generator)
        return LastLayer(shuffle=self.shuffle)(observation.knowing(label_counts=counts), generator)

    def _corrected(self, observation: Observation, counts: Tensor, samples: int, draw: torch.Generator) -> Tensor:
        reading = last_layer(observation, self.first.read)
        seed = int(torch.randint(2**31, (), generator=draw))
        result = self.inversion.run(observation.knowing(label_counts=counts), seed, silent)
        if result.outcome.kind == "interrupted":
            raise KeyboardInterrupt
        assert result.labels is not None
        inputs = observation.data.normalise(result.samples)
        client = FullSimulation(per_epoch=True, gradients="none").begin(observation, functional=False)
        simulated = []
        for _ in range(self.orders):
            rows = torch.cat([torch.randperm(samples, generator=draw) for _ in range(client.copies)]).to(inputs.device)
            update: Params = client(inputs[rows], result.labels[rows])
            if observation.kind == "weights":
                update = scale(update, observation.training.need("lr"))
            simulated.append(reading.mean_gradient(observation, update).detach())
        change = torch.stack(simulated).mean(0) - reading.mean_gradient(observation, observation.difference())
        if reading.part == "kernel":
            places = [observation.sent, observation.returned or observation.sent]
            entering = [input_statistics(observation, place, reading.layer, inputs)[1] for place in places]
            change = change / torch.stack(entering).mean()
        return round_counts(counts + samples * change.cpu(), samples)
