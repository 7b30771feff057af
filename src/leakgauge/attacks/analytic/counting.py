r"""Functions that estimate how much a gradient reveals, from its rank or from a count of equations, without an attack.

- The gradient of a dense layer is a sum with one term for each sample. The rank of this gradient is the number of
  distinct samples, if the layer has more inputs and more outputs than there are samples.
- The gradient and the weights of a first convolution give linear equations for a single sample (R-GAP, Zhu and
  Blaschko, "R-GAP: Recursive Gradient Attack on Privacy", ICLR 2021, section 4). The layer computes :math:`z = K * x`
  from a sample :math:`x` and a kernel :math:`K`. Each known output gives one equation. Each entry of the kernel's
  gradient :math:`\partial K = \sum_p \delta_p x_p^T` gives another equation, where :math:`x_p` is the part of the
  sample at position :math:`p` and :math:`\delta_p` the gradient at the output. If there are fewer equations than
  pixels, several samples have the same gradient, so no formula can give the sample.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from leakgauge.attacks.analytic.dense import DenseChain, DoesNotFit, augmented, one_gradient_of
from leakgauge.attacks.analytic.layer_span import rank_of
from leakgauge.core.observation import Observation
from leakgauge.federation.training import in_mode


def count_samples(observation: Observation) -> int | None:
    """Return the number of distinct samples in one gradient, or ``None`` if the gradient does not show it.

    The number is the rank of the gradient of the first dense layer. Copies of a sample are counted once, and samples
    whose gradients are rounding errors are not counted.

    Args:
        observation: The message of the client.
    """
    try:
        gradient = one_gradient_of(observation)
        chain = _chain(observation)
    except DoesNotFit:
        return None
    matrix = augmented(gradient, chain.first)
    precision = torch.finfo(next(iter(observation.sent.values())).dtype).eps / 2
    rank = rank_of(matrix, precision)
    # Noise hides the rank of a matrix with a high rank.
    return rank if 0 < 2 * rank <= min(matrix.shape) else None


def _chain(observation: Observation) -> DenseChain:
    try:
        return DenseChain(observation, needs_bias=False)
    except DoesNotFit:
        return DenseChain(observation, on_samples=False, needs_bias=False)


def convolution_equations(observation: Observation) -> str | None:
    """Return a sentence that compares the number of equations for one sample with the number of its values.

    The linear equations come from the gradient and the weights of the model's first convolution, as in the rank
    analysis of R-GAP (Zhu and Blaschko 2021). They assume the best case for the attacker. In this case, the attacker
    has already computed the outputs of the convolution, and the gradients at these outputs, from the later layers.

    Args:
        observation: The message of the client. ``None`` is returned if the samples do not enter a trained convolution.
    """
    found = _first_convolution(observation)
    if found is None:
        return None
    layer, outputs = found
    unknowns, equations = math.prod(observation.data.shape), outputs + layer.weight.numel()
    words = f"The first convolution's gradient and weights give {equations} equations for {unknowns} unknowns"
    if equations < unknowns:
        return f"{words}, so a single sample is not determined by this layer (R-GAP's count)."
    return f"{words}, so a single sample is determined if the later layers are solved first (R-GAP's count)."


def _first_convolution(observation: Observation) -> tuple[_ConvNd, int] | None:
    """Return the trained convolution whose inputs are the samples, and its number of outputs for one sample."""
    calls: list[tuple[_ConvNd, Tensor, Tensor]] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, _ConvNd)
        calls.append((module, inputs[0].detach(), output.detach()))

    layers = [module for module in observation.model.modules() if isinstance(module, _ConvNd)]
    like = next(iter(observation.sent.values()))
    dummy = torch.rand(1, *observation.data.shape, generator=torch.Generator().manual_seed(0)).to(like)
    handles = [module.register_forward_hook(record) for module in layers]
    try:
        with torch.no_grad(), in_mode(observation.model, "eval"):
            observation.model(dummy)
    except Exception:  # a model that does not run on a dummy sample has no statement
        return None
    finally:
        for handle in handles:
            handle.remove()
    if not calls or not calls[0][0].weight.requires_grad or calls[0][1].numel() != dummy.numel():
        return None
    return calls[0][0], calls[0][2].numel()
