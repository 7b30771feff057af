r"""LSTM layers whose second derivatives cost little more than their first.

PyTorch computes the first derivative of an LSTM with one fused kernel, but differentiates it again through some twenty
small operations a step. Here both are loops of a few operations, and all else is computed for all steps together.

Let :math:`a_t = p_t + W h_{t-1}` be the gates' inputs, :math:`c_t = f_t c_{t-1} + i_t g_t` and :math:`h_t = o_t \tanh
c_t`. For slopes :math:`v` of :math:`h` and :math:`w` of :math:`c`, the slopes of all steps follow from the last step to
the first:

.. math:: \gamma_t = v_t + W^T \lambda_{t+1}, \qquad
          \kappa_t = w_t + A_t \gamma_t + f_{t+1} \kappa_{t+1}, \qquad
          \lambda_t = (G_t \kappa_t, F_t \gamma_t),

with :math:`A = \partial h / \partial c`, :math:`F = \partial h / \partial a^o` and :math:`G = \partial c / \partial
(a^i, a^f, a^g)`, which are numbers for each entry. This recursion is linear. Its own slopes follow from the
transposed recursion, which runs forwards, and the slopes of that from this one again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _Lstm(torch.autograd.Function):
    """The states h and c after each step, from the gates' inputs without the recurrent part."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        turned, hiddens, cells = weight.t(), [], []
        for given in inputs.unbind(0):
            i, f, g, o = torch.addmm(given, hidden, turned).chunk(4, -1)
            cell = torch.addcmul(f.sigmoid() * cell, i.sigmoid(), g.tanh())
            hidden = o.sigmoid() * cell.tanh()
            hiddens.append(hidden)
            cells.append(cell)
        return torch.stack(hiddens), torch.stack(cells)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, of_hidden: Tensor, of_cell: Tensor) -> tuple[Tensor, ...]:
        inputs, weight, hidden, cell, hiddens, cells = ctx.saved_tensors
        before, cells_before = (
            torch.cat([first[None], later[:-1]]) for first, later in ((hidden, hiddens), (cell, cells))
        )
        i, f, g, o = (inputs + before @ weight.t()).chunk(4, -1)
        i, f, g, o, squashed = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid(), cells.tanh()
        of_gates = torch.cat([g * i * (1 - i), cells_before * f * (1 - f), i * (1 - g * g)], -1)
        slopes = of_gates, o * (1 - squashed * squashed), squashed * o * (1 - o), f
        sources = torch.zeros_like(inputs), of_cell, of_hidden
        gates, kappa, _ = _Backwards.apply(*slopes, weight, *sources)  # type: ignore[no-untyped-call]
        of_weight = gates.flatten(0, 1).t() @ before.flatten(0, 1)
        return gates, of_weight, gates[0] @ weight, f[0] * kappa[0]


class _Backwards(torch.autograd.Function):
    r"""The linear recursion from the last step to the first, which returns :math:`\lambda, \kappa, \gamma`.

    There is a source for each of the three.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        of_gates: Tensor, of_cell: Tensor, of_output: Tensor, kept: Tensor, weight: Tensor, *sources: Tensor
    ) -> tuple[Tensor, ...]:
        results: list[tuple[Tensor, Tensor, Tensor]] = []
        gate, kappa, keep = sources[0][0], sources[1][0], kept[0]  # not used in the first turn
        steps = list(zip(*(one.unbind(0) for one in (of_gates, of_cell, of_output, kept, *sources)), strict=True))
        for g, a, o, f, u, w, v in reversed(steps):
            gamma = torch.addmm(v, gate, weight) if results else v
            now = torch.addcmul(w, a, gamma)
            kappa = torch.addcmul(now, keep, kappa) if results else now
            gate, keep = u + torch.cat([g * kappa.repeat(1, 3), o * gamma], -1), f
            results.append((gate, kappa, gamma))
        return tuple(torch.stack(one) for one in zip(*reversed(results), strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:5], *output)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, ...]:
        linear, own = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
        other = _Forwards.apply(*linear, *slopes)  # type: ignore[no-untyped-call]
        return (*_of_linear(other, own), *other)


class _Forwards(torch.autograd.Function):
    """The transposed recursion, from the first step to the last."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        of_gates: Tensor, of_cell: Tensor, of_output: Tensor, kept: Tensor, weight: Tensor, *sources: Tensor
    ) -> tuple[Tensor, ...]:
        results: list[tuple[Tensor, Tensor, Tensor]] = []
        hidden, cell, turned, three = sources[2][0], sources[1][0], weight.t(), of_gates.shape[-1]  # as above
        steps = zip(*(one.unbind(0) for one in (of_gates, of_cell, of_output, kept, *sources)), strict=True)
        for g, a, o, f, u, w, v in steps:
            gate = torch.addmm(u, hidden, turned) if results else u
            now = w + (g * gate[:, :three]).unflatten(-1, (3, -1)).sum(-2)
            cell = torch.addcmul(now, f, cell) if results else now
            hidden = torch.addcmul(torch.addcmul(v, a, cell), o, gate[:, three:])
            results.append((gate, cell, hidden))
        return tuple(torch.stack(one) for one in zip(*results, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:5], *output)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, ...]:
        linear, own = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
        other = _Backwards.apply(*linear, *slopes)  # type: ignore[no-untyped-call]
        return (*_of_linear(own, other), *other)


def _of_linear(forwards: tuple[Tensor, ...], backwards: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the slopes of the numbers of both recursions."""
    (through, cells, hiddens), (gates, kappas, gammas) = forwards, backwards
    size = kappas.shape[-1]
    inner, outer = through[..., : 3 * size], through[..., 3 * size :]
    of_kept = torch.cat([torch.zeros_like(cells[:1]), cells[:-1] * kappas[1:]])
    of_weight = gates[1:].flatten(0, 1).t() @ hiddens[:-1].flatten(0, 1)
    return inner * kappas.repeat(1, 1, 3), cells * gammas, outer * gammas, of_kept, of_weight


def lstm(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an LSTM with the arguments and the results of ``torch.lstm``.

    Args:
        original: PyTorch's LSTM, which is used for packed sequences, projections, dropout and autocast.
    """

    def replaced(*args: Any, **options: Any) -> Any:
        if options or not _helps(args):
            return original(*args, **options)
        inputs, (first, cells), weights, bias, layers, _, _, both_ways, batch_first = args
        sequence = inputs.transpose(0, 1) if batch_first else inputs
        ways, each = 1 + both_ways, 4 if bias else 2
        hidden_after, cells_after = [], []
        for layer in range(layers):
            outputs = []
            for way in range(ways):
                place = layer * ways + way
                own = weights[each * place : each * (place + 1)]
                given = F.linear(sequence.flip(0) if way else sequence, own[0], own[2] + own[3] if bias else None)
                states = _Lstm.apply(given, own[1], first[place], cells[place])  # type: ignore[no-untyped-call]
                outputs.append(states[0].flip(0) if way else states[0])
                hidden_after.append(states[0][-1])
                cells_after.append(states[1][-1])
            sequence = torch.cat(outputs, -1) if both_ways else outputs[0]
        output = sequence.transpose(0, 1) if batch_first else sequence
        return output, torch.stack(hidden_after), torch.stack(cells_after)

    return replaced


def _helps(args: Sequence[Any]) -> bool:
    """Return whether these are the arguments of a plain LSTM, without dropout and projections."""
    if len(args) != 9 or not isinstance(args[1], (tuple, list)) or len(args[1]) != 2:
        return False
    inputs, states, weights, bias, layers, dropout, training, both_ways, _ = args
    tensors = [inputs, *states, *weights]
    if inputs.dim() != 3 or not inputs.numel() or (dropout and training and layers > 1):
        return False
    if len({(one.dtype, one.device) for one in tensors}) > 1 or torch.is_autocast_enabled(inputs.device.type):
        return False
    return bool(len(weights) == layers * (1 + both_ways) * (4 if bias else 2))
