"""The attack iDLG as its authors run it, whose time is the reference for the times of other attacks.

The attack reconstructs one sample after another with torch's L-BFGS.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.attacks.base import Attack, Reconstruction
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.attacks.inversion.solve import Trace
from leakgauge.attacks.inversion.stopping import Outcome
from leakgauge.core.observation import Observation
from leakgauge.core.progress import Report
from leakgauge.core.seeding import generator


@dataclass(frozen=True)
class OneByOne(Attack):
    """The attack iDLG (Zhao et al. 2020) with a fixed number of iterations.

    Each iteration is one call of ``torch.optim.LBFGS.step``. The result is the last iterate. This attack and
    :func:`leakgauge.attacks.papers.idlg` share only the random start, so each can be used to check the other.

    Args:
        steps: The number of iterations.
        threshold: The loss below which the attack ends early. The authors' code uses 1e-6. With ``None``, the attack
            never ends early.
    """

    steps: int = 300
    threshold: float | None = None

    def run(self, observation: Observation, seed: int, report: Report) -> Reconstruction:
        """Reconstruct the client's samples from the observation."""
        labels = LastLayer()(observation, generator(seed, "labels"))
        model = copy.deepcopy(observation.model)
        model.load_state_dict({**observation.sent, **observation.model_buffers()})
        weights = list(model.parameters())
        targets = [observation.summed_gradient()[name] for name, _ in model.named_parameters()]
        samples = int(observation.training.need("samples"))
        start = torch.randn(samples, *observation.data.shape, generator=generator(seed, "start", 0))
        dummy = start.to(weights[0]).requires_grad_()
        optimiser = torch.optim.LBFGS([dummy], lr=1)
        calls = 0

        def closure() -> Tensor:
            nonlocal calls
            calls += 1
            optimiser.zero_grad()
            gradients = torch.autograd.grad(F.cross_entropy(model(dummy), labels), weights, create_graph=True)
            pairs = zip(gradients, targets, strict=True)
            loss = torch.stack([(gradient - target).square().sum() for gradient, target in pairs]).sum()
            dummy.grad = torch.autograd.grad(loss, dummy)[0]
            return loss.detach()

        losses: list[float] = []
        evaluations: list[int] = []
        outcome = Outcome("finished", self.steps - 1, f"used all {self.steps} steps")
        for step in range(self.steps):
            losses.append(float(optimiser.step(closure)))
            evaluations.append(calls)
            report(step + 1, self.steps, losses[-1])
            if self.threshold is not None and losses[-1] < self.threshold:
                words = f"converged: the loss fell below {self.threshold:g} at step {step}"
                outcome = Outcome("converged", step, words)
                break
        pixels = observation.data.denormalise(dummy.detach()).nan_to_num(0.0)
        trace = Trace(torch.tensor(losses, dtype=torch.double), {}, evaluations=torch.tensor(evaluations))
        bounded = pixels.clamp(0, 1) if observation.data.bounded else pixels
        return Reconstruction(bounded, labels, outcome, losses[-1], trace)
