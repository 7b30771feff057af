"""Rules of malicious servers that plant traps, for rounds of a live federation.

A rule is passed to :class:`leakgauge.federation.steering.Steering` or to
:class:`leakgauge.federation.recording.malicious_flower.MaliciousServer`. The messages of such rounds name the rule in
``steered``, and every report calls the server malicious. Use them only on a federation that is your own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from leakgauge.attacks.malicious.layout import filled, layout_of
from leakgauge.attacks.malicious.plant import Kind, Trapped, plant
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import UnknownName
from leakgauge.core.local_training import LocalTraining
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params, buffers_of, inside

#: The names of the rules by the kind of their traps.
RULE_OF = {"thresholds": "trap_rows", "half_negative": "half_negative_rows"}
#: The bias of a layer that no sample activates.
CLOSED = -1e3


@dataclass(frozen=True, eq=False)
class TrapServer:
    """A malicious server that sends weights with traps (:func:`leakgauge.attacks.malicious.plant.plant`).

    Args:
        model: The architecture of the federation.
        data: The description of the clients' samples.
        training: The settings of the clients' training, as far as the server knows them.
        kind: The kind of the traps.
        public: Samples of the same kind that the server has. By default, it draws random ones.
        seed: The seed of the server's draws.
    """

    model: nn.Module = field(repr=False)
    data: DataSpec
    training: LocalTraining | None = None
    kind: Kind = "thresholds"
    public: Tensor | None = field(default=None, repr=False)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in RULE_OF:
            raise UnknownName("kind of traps", self.kind, RULE_OF)

    @property
    def rule(self) -> str:
        """The name of the rule, which observations of steered rounds hold in ``steered``."""
        return RULE_OF[self.kind]

    def next_weights(self, observations: Sequence[Observation], current: Params) -> Params:
        """Return weights with traps, for the number type and the device of the honest weights.

        Args:
            observations: The client's recorded messages so far, which the server does not need.
            current: The weights that an honest server would send.
        """
        return self.planted(current).weights

    def planted(self, current: Params) -> Trapped:
        """Return the prepared weights, and what the server expects of them.

        Args:
            current: The weights that an honest server would send.
        """
        mode = "eval" if self.training is None else self.training.mode
        dtype = next(iter(current.values())).dtype
        model = filled(self.model, current, buffers_of(self.model), mode, dtype)
        for (_, value), (_, original) in zip(model.named_parameters(), self.model.named_parameters(), strict=True):
            value.requires_grad_(original.requires_grad)
        return plant(model, self.data, self.training, kind=self.kind, public=self.public, seed=self.seed)


@dataclass(frozen=True, eq=False)
class DeadLayer:
    """A malicious server that sends clients a layer of traps which no sample activates (Pasquini et al. 2022).

    Under secure aggregation, the sum of all clients' gradients of this layer is then the gradient of the one client
    that got working traps.

    Args:
        model: The architecture of the federation.
        data: The description of the clients' samples.
    """

    model: nn.Module = field(repr=False)
    data: DataSpec

    @property
    def rule(self) -> str:
        """The name of the rule, which observations of steered rounds hold in ``steered``."""
        return "dead_layer"

    def next_weights(self, observations: Sequence[Observation], current: Params) -> Params:
        """Return weights whose trapped layer has the output zero and the gradient zero, and which are else the same.

        Args:
            observations: The client's recorded messages so far, which the server does not need.
            current: The weights that an honest server would send, or that it sends to the target.
        """
        work = filled(self.model, current, buffers_of(self.model), "eval", torch.double)
        dense = layout_of(work, self.data.shape).dense
        weight, bias = inside(dense, "weight"), inside(dense, "bias")
        changed = dict(current)
        changed[weight] = torch.zeros_like(current[weight])
        changed[bias] = torch.full_like(current[bias], CLOSED)
        return changed
