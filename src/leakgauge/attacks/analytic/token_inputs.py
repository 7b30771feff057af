r"""The first layer that sees every token of a transformer, and the function that maps a token to this layer's input.

A transformer adds a position to each embedded patch :math:`z_t`, mostly normalises the sum, and passes it to the
queries, keys and values of its first attention layer. All usual normalisations have the form

.. math:: u_t = s + r_t\,(M z_t + a_t), \qquad r_t > 0.

Here :math:`M` is a matrix, the offset :math:`a_t` belongs to the position, the shift :math:`s` belongs to the
normalisation, and only the factor :math:`r_t` depends on the length of the token. LayerNorm has :math:`M =
\operatorname{diag}(\gamma)(I - 11^\top/n)` and :math:`s = \beta`, and RMSNorm has :math:`M =
\operatorname{diag}(\gamma)` and :math:`s = 0`. Without a normalisation, :math:`r_t = 1`.

The functions of this module measure :math:`M`, :math:`a_t` and :math:`s`. They pass chosen tokens through the model and
look at the input of the layer. So they need no names and no classes of layers, and a test shows whether the form holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.attacks.analytic.dense import DoesNotFit
from leakgauge.attacks.analytic.tokens import PatchLayer
from leakgauge.core.observation import Observation
from leakgauge.core.params import Params
from leakgauge.core.seeding import generator
from leakgauge.federation.training import in_mode

#: The number of layers after the patch layer among which the first layer that sees every token is looked for.
LAYERS_TRIED = 6
#: The length of tokens beside which positions vanish.
FAR = 1e8
#: The largest relative error of the form above, for models in double precision.
LARGEST_MISMATCH = 1e-5
#: A shift is zero up to this share of what the layers see, which is the accuracy of its measurement.
NO_SHIFT = 1e-6
#: A row depends on a patch if it changes by at least this share.
CHANGED = 1e-9


@dataclass(frozen=True)
class SeeingLayer:
    """A layer with trained weights, and the names of its weights and bias.

    Args:
        module: The name of the module.
        weight: The name of the weights.
        bias: The name of the trained bias, or the empty text if the layer has none.
    """

    module: str
    weight: str
    bias: str


@dataclass(frozen=True, eq=False)
class TokenInputs:
    """The layers that see every token first, and the form of what they see (see the top of this module).

    Args:
        layers: The layers, such as those of the queries, the keys and the values.
        rows: The number of rows that the layers see, one for each token.
        of_patches: The row of each patch.
        matrix: The matrix ``M``.
        offsets: The offset of each patch, (patches, size of a layer's input).
        shift: The shift ``s``.
        normalised: Whether the factor depends on the token. If not, it is 1 and the shift is zero.
    """

    layers: tuple[SeeingLayer, ...]
    rows: int
    of_patches: Tensor
    matrix: Tensor
    offsets: Tensor
    shift: Tensor
    normalised: bool

    @property
    def biased(self) -> bool:
        """Whether all layers have a trained bias."""
        return all(layer.bias for layer in self.layers)

    def directions(self) -> Tensor:
        """Return an orthonormal basis of all rows that the layers can see, (size of a row, directions).

        A row has an appended 1 if there are biases. The rows after a LayerNorm lack one direction.
        """
        columns, offsets, shift = self.matrix, self.offsets.T, self.shift[:, None]
        if self.biased:
            ones = offsets.new_ones(1, offsets.shape[1])
            columns = torch.cat([columns, 0 * ones[:, :1].expand(1, columns.shape[1])])
            offsets = torch.cat([offsets, 0 * ones if self.normalised else ones])
            shift = torch.cat([shift, ones[:, :1] if self.normalised else 0 * ones[:, :1]])
        scale = columns.norm() / math.sqrt(columns.shape[1])
        left, sizes, _ = torch.linalg.svd(torch.cat([columns, offsets, scale * shift], 1), full_matrices=False)
        basis: Tensor = left[:, sizes > LARGEST_MISMATCH * sizes[0]]
        return basis

    def gradient(self, update: Params) -> Tensor:
        """Return the gradient of the layers as one matrix. The last column belongs to the biases, if there are any.

        Args:
            update: The update of all parameters.
        """
        weights = torch.cat([update[layer.weight] for layer in self.layers])
        if not self.biased:
            return weights
        return torch.cat([weights, torch.cat([update[layer.bias] for layer in self.layers])[:, None]], 1)


class _Seen(Exception):
    """The exception that ends a forward pass when all layers of interest have been reached."""


class Probe:
    """Forward passes on chosen tokens, in double precision.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        layer: The layer that embeds the patches.
    """

    def __init__(self, observation: Observation, layer: PatchLayer) -> None:
        self.observation, self.layer = observation, layer
        self.model = observation.model
        state = {**observation.sent, **observation.model_buffers()}
        self.state = {name: value.double() if value.is_floating_point() else value for name, value in state.items()}
        # PyTorch's encoder layers skip their submodules, and so the hooks, unless a weight requires a gradient.
        self.state[layer.weight] = self.state[layer.weight].detach().clone().requires_grad_()
        self.image = self.state[layer.weight].new_zeros(1, *observation.data.shape)

    def __call__(
        self, tokens: Tensor | None, layers: Sequence[SeeingLayer], *, stop: bool = True
    ) -> list[list[Tensor]]:
        """Return the inputs that each layer sees, one matrix for each call of the layer.

        Args:
            tokens: The tokens in the place of the embedded patches, (patches, width). ``None`` keeps those of a zero
                sample.
            layers: The layers to look at.
            stop: Whether the pass ends as soon as every layer has been reached.
        """
        seen: list[list[Tensor]] = [[] for _ in layers]

        def keep(number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            value: Tensor = args[0] if args else kwargs["query" if "query" in kwargs else "input"]
            seen[number].append(value.detach().reshape(-1, value.shape[-1]))
            if stop and all(seen):
                raise _Seen

        handles = [
            self.model.get_submodule(layer.module).register_forward_pre_hook(
                lambda module, args, kwargs, number=number: keep(number, args, kwargs), with_kwargs=True
            )
            for number, layer in enumerate(layers)
        ]
        with self._prepared(tokens, handles), suppress(_Seen):
            functional_call(self.model, self.state, (self.image,))
        return seen

    @contextmanager
    def _prepared(self, tokens: Tensor | None, handles: Sequence[torch.utils.hooks.RemovableHandle]) -> Iterator[None]:
        """Replace the output of the patch layer inside the ``with`` block, and remove the hooks afterwards."""

        def replace(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            if tokens is None:
                return None
            values = tokens.T if isinstance(module, nn.Conv2d) else tokens
            return values.to(output).reshape(output.shape)

        handle = self.model.get_submodule(self.layer.name).register_forward_hook(replace)
        with _removed([handle, *handles]), in_mode(self.model, "eval"), torch.enable_grad():
            yield


def find_token_inputs(observation: Observation, layer: PatchLayer) -> tuple[TokenInputs, Probe]:
    """Find the first layers that see every token after its position is added, and measure what they see.

    Args:
        observation: The client's message (gradient or weights), as the server sees it.
        layer: The layer that embeds the patches.

    Raises:
        DoesNotFit: If no such layer is found. The text is the reason.
    """
    probe = Probe(observation, layer)
    reason = "no trained dense layer sees every token before the tokens are mixed"
    for layers, rows, count in _candidates(probe):
        form = _Form(probe, layers, rows)
        measured = form.measured(count)
        if measured is None:
            reason = "its tokens enter the first attention layer by more than one normalisation"
        elif bool((measured.offsets - measured.offsets[0]).abs().max() <= LARGEST_MISMATCH * measured.matrix.norm()):
            reason = "no positions are added to its patches, so nothing shows the order of the patches"
        else:
            return measured, probe
    raise DoesNotFit(f"made for transformers with known positions, and {reason}")


def factors_at(probe: Probe, inputs: TokenInputs, tokens: Tensor) -> Tensor:
    """Return the factors of tokens, which are ``r`` in the form at the top of this module.

    Args:
        probe: The forward passes of the model.
        inputs: The layers that see every token, and what they see.
        tokens: The tokens in the place of the embedded patches, (patches, width).
    """
    ((seen,),) = probe(tokens, inputs.layers[:1])
    inner = tokens @ inputs.matrix.T + inputs.offsets
    return ((seen[inputs.of_patches] - inputs.shift) * inner).sum(1) / inner.square().sum(1).clamp_min(1e-300)


def _candidates(probe: Probe) -> Iterator[tuple[tuple[SeeingLayer, ...], Tensor, int]]:
    """Yield groups of layers that see the same tokens, the row of each patch, and the number of rows."""
    patches, width = len(probe.layer.pixels), probe.layer.width
    every = [layer for layer in _seeing_layers(probe.observation) if layer.weight != probe.layer.weight]
    calls = probe(None, every, stop=False)
    order = [(layer, seen[0]) for layer, seen in zip(every, calls, strict=True) if len(seen) == 1]
    tried = [layer for layer, seen in order if len(seen) >= patches][:LAYERS_TRIED]
    draws = generator(0, "token inputs")
    tokens = torch.randn(patches, width, generator=draws, dtype=torch.double).to(probe.image)
    grouped: set[SeeingLayer] = set()
    inputs = dict(zip(tried, (seen[0] for seen in probe(tokens, tried)), strict=True)) if tried else {}
    for layer in tried:
        if layer in grouped:
            continue
        group = tuple(other for other in tried if _same(inputs[other], inputs[layer]))
        grouped.update(group)
        rows = _rows_of_patches(probe, group[:1], patches, width)
        if rows is not None:
            yield group, rows, len(inputs[layer])


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= CHANGED * one.abs().max())


def _seeing_layers(observation: Observation) -> Iterator[SeeingLayer]:
    """Yield the dense and the attention layers whose weights are trained and in the message."""
    for name, module in observation.model.named_modules():
        weight, bias = "weight", "bias"
        if isinstance(module, nn.MultiheadAttention):
            weight, bias = "in_proj_weight", "in_proj_bias"
        elif not isinstance(module, nn.Linear):
            continue
        tensors = {short: cast("Tensor | None", getattr(module, short)) for short in (weight, bias)}
        full = {short: f"{name}.{short}".removeprefix(".") for short in tensors}
        trained = {
            short: value is not None and value.requires_grad and full[short] in observation.sent
            for short, value in tensors.items()
        }
        if trained[weight]:
            yield SeeingLayer(name, full[weight], full[bias] if trained[bias] else "")


def _rows_of_patches(probe: Probe, layers: Sequence[SeeingLayer], patches: int, width: int) -> Tensor | None:
    """Return the row of each patch in what a layer sees, or ``None`` if some row depends on several patches.

    The patches are numbered from 1. Each pass changes those patches whose number has one bit set. The bits of the rows
    that change make up the number of the row's patch.
    """
    draws = generator(0, "rows of patches")
    tokens, others = (torch.randn(patches, width, generator=draws, dtype=torch.double).to(probe.image) for _ in "ab")
    numbers = torch.arange(1, patches + 1, device=tokens.device)
    ((before,),) = probe(tokens, layers)
    codes = torch.zeros(len(before), dtype=torch.long, device=tokens.device)
    for bit in range(patches.bit_length()):
        changed = ((numbers >> bit) & 1).bool()
        ((after,),) = probe(torch.where(changed[:, None], others, tokens), layers)
        moved = (after - before).norm(dim=1) > CHANGED * before.norm(dim=1)
        codes += moved.long() << bit
    found = codes[codes > 0]
    if len(found) != patches or not torch.equal(found.sort().values, numbers):
        return None
    rows = torch.zeros(patches, dtype=torch.long, device=tokens.device)
    rows[found - 1] = codes.nonzero().flatten()
    return rows


class _Form:
    """The measurement of the form at the top of this module.

    Args:
        probe: The forward passes of the model.
        layers: The layers that see the same tokens.
        rows: The row of each patch in what the layers see.
    """

    def __init__(self, probe: Probe, layers: tuple[SeeingLayer, ...], rows: Tensor) -> None:
        self.probe, self.layers, self.rows = probe, layers, rows
        self.patches, self.width = len(rows), probe.layer.width
        draws = generator(0, "form of tokens")
        self.first, self.second = (
            torch.randn(self.patches, self.width, generator=draws, dtype=torch.double).to(probe.image) for _ in "ab"
        )
        self.direction = self.first[0]

    def seen(self, tokens: Tensor) -> Tensor:
        """Return what the layers see of each patch."""
        ((inputs,),) = self.probe(tokens, self.layers[:1])
        return inputs[self.rows]

    def measured(self, count: int) -> TokenInputs | None:
        """Return the measured form, or ``None`` if the layers see something of another form.

        Args:
            count: The number of rows that the layers see.
        """
        at_zero = self.seen(torch.zeros_like(self.first))
        alike = self.seen(self.first) + self.seen(self.second) - self.seen(self.first + self.second) - at_zero
        if float(alike.norm()) <= LARGEST_MISMATCH * float(self.seen(self.first).norm()):
            matrix = self._columns(lambda tokens: self.seen(tokens) - at_zero)
            shift, offsets, normalised = torch.zeros_like(at_zero[0]), at_zero, False
        else:
            far = FAR * self.direction.expand_as(self.first)
            shift = ((self.seen(far) + self.seen(-far)) / 2)[0]
            if float(shift.norm()) <= NO_SHIFT * float(self.seen(far)[0].norm()):
                shift = torch.zeros_like(shift)
            matrix = self._columns(lambda tokens: self._plane(tokens, shift))
            offsets, normalised = self._offsets(at_zero - shift, matrix, shift), True
        result = TokenInputs(self.layers, count, self.rows, matrix, offsets, shift, normalised)
        return result if self._holds(result) else None

    def _columns(self, column: Any) -> Tensor:
        """Return the matrix whose columns are the images of the unit vectors, of which each pass has one a patch."""
        parts = []
        for units in torch.eye(self.width, dtype=torch.double, device=self.first.device).split(self.patches):
            tokens = torch.zeros_like(self.first)
            tokens[: len(units)] = units
            parts.append(column(tokens)[: len(units)])
        return torch.cat(parts).T

    def _plane(self, units: Tensor, shift: Tensor) -> Tensor:
        r"""Return the images of vectors, measured far from the origin, where positions vanish.

        Let :math:`a` be the image of a direction :math:`d`. What the layers see of :math:`d \pm e` has the directions
        :math:`v_\pm = r_\pm (a \pm M e)`. So :math:`2a = v_+/r_+ + v_-/r_-`, which determines both factors.
        """
        middle = self.seen(FAR * self.direction.expand_as(units)) - shift
        plus = self.seen(FAR * (self.direction + units)) - shift
        minus = self.seen(FAR * (self.direction - units)) - shift
        one, other = _combination(plus, minus, 2 * middle[:1].expand_as(plus))
        return (one * plus - other * minus) / 2

    def _offsets(self, at_zero: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
        """Return the offset of each patch, from what the layers see of zero and of one direction."""
        image = (matrix @ self.direction).expand_as(at_zero)
        moved = self.seen(self.direction.expand_as(self.first)) - shift
        _, factor = _combination(moved, -at_zero, image)
        return factor * at_zero

    def _holds(self, inputs: TokenInputs) -> bool:
        """Return whether what the layers see of random tokens has the measured form."""
        for tokens in (self.first, 0.1 * self.second):
            seen = self.seen(tokens) - inputs.shift
            inner = tokens @ inputs.matrix.T + inputs.offsets
            factor = (seen * inner).sum(1) / inner.square().sum(1).clamp_min(1e-300)
            if not inputs.normalised:
                factor = torch.ones_like(factor)
            wrong = (seen - factor[:, None] * inner).norm(dim=1) > LARGEST_MISMATCH * seen.norm(dim=1)
            if bool(wrong.any()) or not bool((factor > 0).all()):
                return False
        return True


def _combination(one: Tensor, other: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two factors for which ``x * one + y * other`` is nearest to the target, in each row."""
    basis = torch.stack([one, other], 2)
    lengths = basis.norm(dim=1).clamp_min(1e-300)
    solution = torch.linalg.pinv(basis / lengths[:, None]) @ target[..., None]
    factors = solution[..., 0] / lengths
    return factors[:, :1], factors[:, 1:]


@contextmanager
def _removed(handles: Sequence[torch.utils.hooks.RemovableHandle]) -> Iterator[None]:
    """Remove the hooks at the end of the ``with`` block."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
