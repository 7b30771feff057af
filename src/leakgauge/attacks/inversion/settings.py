"""The settings of an inversion, grouped by topic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from leakgauge.attacks.inversion.labels import rows_of_first_epoch
from leakgauge.attacks.inversion.objectives import Cosine, Objective
from leakgauge.attacks.inversion.optimisers import Constant, Schedule
from leakgauge.attacks.inversion.solve import Project
from leakgauge.attacks.inversion.update_models import FullSimulation, UpdateModel
from leakgauge.core.checks import boolean, positive, whole_number
from leakgauge.core.errors import InvalidInput
from leakgauge.core.observation import DataSpec, Observation
from leakgauge.core.params import Params

if TYPE_CHECKING:
    from leakgauge.attacks.inversion.attack import Inversion

#: The starting points that need no other inversion.
Blind = Literal["normal", "uniform", "zeros"]


@dataclass(frozen=True)
class Matching:
    """The comparison of predicted and observed updates.

    Args:
        objective: The distance between the two updates.
        update_model: The attacker's model of the client, which predicts the update that dummy samples would cause.
        weight: The factor by which the distance is multiplied at each step.
        per_batch: Whether ``weight`` is divided by the number of simulated batches (DLF).
    """

    objective: Objective = Cosine()  # noqa: RUF009 - frozen
    update_model: UpdateModel = FullSimulation()  # noqa: RUF009
    weight: Schedule = Constant()  # noqa: RUF009
    per_batch: bool = False

    def __post_init__(self) -> None:
        boolean("per_batch", self.per_batch)


@dataclass(frozen=True)
class Space:
    """The starting point, the range and the units of dummy samples during the optimisation.

    Args:
        start: The starting point. ``"normal"`` is N(0, 1) and ``"zeros"`` is zero, both in normalised pixels.
            ``"uniform"`` is uniform in [0, 1], in pixels without normalisation. A :class:`WarmStart` begins at the
            result of another inversion.
        box: Whether pixels are clipped to [0, 1] after each step.
        rescale: Whether pixels are optimised in units of a quarter of their range, if the model takes pixels without
            normalisation. Settings that were tuned for normalised data can then be used without change.
        common_units: Whether all bounded values are optimised in units of a quarter of their range, even if the model
            takes normalised values. Learning rates and weights of priors then have the same meaning for all datasets.
    """

    start: Blind | WarmStart = "normal"
    box: bool = True
    rescale: bool = False
    common_units: bool = False

    def __post_init__(self) -> None:
        for name in ("box", "rescale", "common_units"):
            boolean(name, getattr(self, name))
        if not isinstance(self.start, WarmStart) and self.start not in get_args(Blind):
            raise InvalidInput(f"start must be 'normal', 'uniform', 'zeros' or a WarmStart, not {self.start!r}")

    def units(self, data: DataSpec) -> DataSpec:
        """Return a data description with the normalisation (mean and scale) in which samples are optimised."""
        if data.bounded and (self.common_units or (self.rescale and min(data.std) > 0.5)):
            return replace(data, mean=(0.5,), std=(0.25,))
        return data

    def projection(self, data: DataSpec) -> Project | None:
        """Return a function that clips variables to the valid range after each step, or ``None`` if nothing is clipped.

        Args:
            data: The description of the data, with the units in which samples are optimised.
        """
        if not self.box or not data.bounded:
            return None

        def clamp(variables: Params) -> None:
            inputs = variables["inputs"]
            low, high = (data.normalise(torch.full_like(inputs[:1, :1], value)) for value in (0.0, 1.0))
            torch.clamp(inputs, low, high, out=inputs)

        return clamp

    def draw(self, shape: tuple[int, ...], data: DataSpec, generator: torch.Generator) -> Tensor:
        """Draw a random starting point, for an inversion that does not start from the result of another inversion.

        Args:
            shape: The shape of all dummy samples.
            data: The description of the data, with the units in which samples are optimised.
            generator: The random generator for the draw.
        """
        if self.start == "zeros":
            return torch.zeros(shape)
        if self.start == "uniform":
            return data.normalise(torch.rand(shape, generator=generator))
        return torch.randn(shape, generator=generator)


@dataclass(frozen=True)
class WarmStart:
    """A starting point that is the result of another inversion, copied to every epoch, with added noise.

    Args:
        inversion: The other inversion, which should take less time than the inversion that starts from its result.
        noise: The standard deviation of the noise, in the units in which samples are optimised. Without noise, the
            copies of all epochs would stay equal.
    """

    inversion: Inversion
    noise: float = 0.3

    def spread(self, inputs: Tensor, copies: int, draw: torch.Generator, labels: Tensor | None = None) -> Tensor:
        """Return the starting points of all epochs, which are noisy copies of given samples.

        Args:
            inputs: The samples that an earlier inversion has reconstructed.
            copies: The number of copies. A single copy gets no noise.
            draw: The random generator for the noise.
            labels: The labels of every epoch, (epochs, samples), if they are known. Each sample is then copied to a
                position with the same label.
        """
        if copies == 1:
            return inputs
        repeated = torch.cat([inputs] * copies) if labels is None else inputs[rows_of_first_epoch(labels).flatten()]
        return repeated + self.noise * torch.randn(repeated.shape, generator=draw).to(repeated)


@dataclass(frozen=True)
class Effort:
    """The number of restarts and retries of an attack on one client.

    Args:
        restarts: The number of independent starting points. The result with the lowest loss is returned.
        vectorise: Whether all restarts run in one vectorised computation.
        retries: The largest number of further attempts if an attempt does not converge, each from another starting
            point. The attacker recognises a failed attempt by its high loss. The attempt with the lowest loss is
            returned.
        enough: A loss. An attempt with this loss or a lower loss counts as a success, even if it did not converge.
    """

    restarts: int = 1
    vectorise: bool = False
    retries: int = 0
    enough: float | None = None

    def __post_init__(self) -> None:
        whole_number("restarts", self.restarts)
        boolean("vectorise", self.vectorise)
        whole_number("retries", self.retries, at_least=0)
        if self.enough is not None:
            positive("enough", self.enough)

    @property
    def attempts(self) -> int:
        """The largest number of attempts on one client, which is one plus the number of retries."""
        return 1 + self.retries


def check_vectorisable(observation: Observation) -> None:
    """Raise an error if restarts cannot run in one vectorised computation, because of batch norm.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
    """
    norms = [module for module in observation.model.modules() if isinstance(module, _NormBase)]
    if observation.training.mode == "train" and any(norm.track_running_stats for norm in norms):
        raise InvalidInput(
            "restarts cannot be vectorised over batch norm in train mode, because each restart would change its "
            "statistics. Use vectorise=False"
        )
