r"""Generated records of clients with a linear relation of their own, a regression.

Client :math:`c` has records :math:`(x_i, s_i)` with :math:`x_i \sim N(0, I)` and a fair binary attribute :math:`s_i`.
Its targets are :math:`y_i = w_c^\top x_i + b_c s_i + e_i`. Here, :math:`w_c = w + v_c` with
:math:`w, v_c \sim N(0, I)`, :math:`b_c \sim N(0, \mathrm{effect}^2)` and :math:`e_i \sim N(0, \mathrm{noise}^2)`. The
effect :math:`b_c` of the attribute differs between clients, so only a client's own model predicts its records well. The
propositions of LMRA (Driouich et al.) hold for such clients.
"""

from __future__ import annotations

import torch

from leakgauge.core.checks import not_negative, whole_number
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.seeding import generator
from leakgauge.data.dataset import Dataset
from leakgauge.data.dataset_source import Source


def load(
    *, clients: int = 10, samples: int = 300, features: int = 10, effect: float = 1.0, noise: float = 0.5, seed: int = 0
) -> Dataset:
    """Generate the records of all clients as one dataset. Each client is a group, and ``attribute`` is sensitive.

    Args:
        clients: The number of clients.
        samples: The number of records of each client.
        features: The number of features beside the attribute.
        effect: The standard deviation of the attribute's effect among clients.
        noise: The standard deviation of the noise on the targets.
        seed: The seed of all random draws.
    """
    for name, value in (("clients", clients), ("samples", samples), ("features", features)):
        whole_number(name, value)
    not_negative("effect", effect)
    not_negative("noise", noise)
    draw = generator(seed, "personal effects")
    common = torch.randn(features, generator=draw)
    inputs, targets = [], []
    for _ in range(clients):
        weights = torch.cat((common + torch.randn(features, generator=draw), effect * torch.randn(1, generator=draw)))
        rows = torch.randn(samples, features + 1, generator=draw)
        rows[:, -1] = (rows[:, -1] > 0).float()
        inputs.append(rows)
        targets.append(rows @ weights + noise * torch.randn(samples, generator=draw))
    columns = (*(f"feature_{place}" for place in range(features)), "attribute")
    return Dataset(
        torch.cat(inputs),
        torch.cat(targets),
        DataSpec((features + 1,), None, bounded=False, columns=columns),
        name="personal_effects",
        groups=torch.arange(clients).repeat_interleave(samples),
        group_names=tuple(f"client {client}" for client in range(clients)),
        sensitive="attribute",
    )


SOURCE = Source(
    "personal_effects", "clients with a linear relation of their own; sensitive: attribute", "generated", load,
    position=140,
)  # fmt: skip
