"""Functions that divide a dataset among clients. Each function returns a list with one dataset for each client.

The random draws depend only on ``seed``. No global random generator is used or changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leakgauge.core.checks import positive, whole_number
from leakgauge.core.errors import InvalidInput
from leakgauge.data.dataset import Dataset

_Rows = NDArray[np.int64]

_ATTEMPTS = 1000


def iid(dataset: Dataset, clients: int, seed: int = 0) -> list[Dataset]:
    """Shuffle the samples, and divide them evenly. The sizes of two clients differ by at most one sample.

    Args:
        dataset: The dataset to divide.
        clients: The number of clients.
        seed: The seed of the shuffle.
    """
    _check_clients(dataset, clients)
    whole_number("seed", seed, at_least=0)
    order = np.random.default_rng(seed).permutation(len(dataset))
    return _shares(dataset, np.array_split(order, clients))


def dirichlet(dataset: Dataset, clients: int, alpha: float, seed: int = 0, minimum: int = 1) -> list[Dataset]:
    """Divide each class among the clients in proportions drawn from Dirichlet(alpha) (Hsu et al. 2019).

    Clients then differ in the proportions of their classes. The draw is repeated until every client has at least
    ``minimum`` samples.

    Args:
        dataset: The dataset to divide, which must have classes.
        clients: The number of clients.
        alpha: The concentration parameter. With a small value, each client has few classes. A large value is close to
            :func:`iid`.
        seed: The seed of all draws.
        minimum: The smallest number of samples of a client.
    """
    _check_clients(dataset, clients)
    if dataset.spec.classes is None:
        raise InvalidInput(f"dirichlet() skews labels, but {dataset.name} is a regression. Use iid() or by_group().")
    positive("alpha", alpha)
    whole_number("minimum", minimum, at_least=0)
    if minimum * clients > len(dataset):
        raise InvalidInput(
            f"{len(dataset)} samples are too few for {clients} clients with at least {minimum} each. "
            "Use fewer clients or a smaller minimum."
        )
    whole_number("seed", seed, at_least=0)
    random = np.random.default_rng(seed)
    labels = dataset.targets.numpy()
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(_ATTEMPTS):
        parts: list[list[_Rows]] = [[] for _ in range(clients)]
        for rows in classes:
            shares = random.dirichlet(np.full(clients, alpha))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
            for part, chunk in zip(parts, np.split(random.permutation(rows), cuts), strict=True):
                part.append(chunk)
        joined = [random.permutation(np.concatenate(part)) for part in parts]
        if min(len(rows) for rows in joined) >= minimum:
            return _shares(dataset, joined)
    raise InvalidInput(
        f"after {_ATTEMPTS} draws some of the {clients} clients still had fewer than {minimum} samples. "
        "Use a larger alpha, fewer clients or a smaller minimum."
    )


def by_group(
    dataset: Dataset,
    *,
    clients: int | None = None,
    minimum: int = 1,
    limit: int | None = None,
    seed: int = 0,
) -> list[Dataset]:
    """Make one client for each owner of samples. An owner is a person or a device, such as a writer.

    Each group of the dataset has one owner. Clients and samples keep the order that they have in the dataset.

    Args:
        dataset: The dataset to divide, which must have groups.
        clients: The number of owners to draw at random. Each becomes a client. The default is all owners.
        minimum: The smallest number of samples of an owner. Owners with fewer samples are left out.
        limit: The largest number of samples of a client. If an owner has more, ``limit`` samples are drawn at random.
            The default is no limit.
        seed: The seed of the draws of owners and samples.
    """
    if dataset.groups is None:
        raise InvalidInput(f"{dataset.name} has no groups, so its rows have no owners. Use iid() or dirichlet().")
    for name, value in (("clients", clients), ("limit", limit), ("minimum", minimum)):
        if value is not None:
            whole_number(name, value)
    whole_number("seed", seed, at_least=0)
    random = np.random.default_rng(seed)
    groups = dataset.groups.numpy()
    owners, counts = np.unique(groups, return_counts=True)
    owners = owners[counts >= minimum]
    if len(owners) < (clients or 1):
        raise InvalidInput(
            f"{clients or 1} clients were requested, but of the {len(counts)} groups of {dataset.name} only "
            f"{len(owners)} have {minimum} samples or more. Use fewer clients or a smaller minimum."
        )
    if clients is not None:
        owners = np.sort(random.choice(owners, clients, replace=False))
    parts, names = [], []
    for owner in owners:
        rows = np.flatnonzero(groups == owner)
        if limit is not None and len(rows) > limit:
            rows = np.sort(random.choice(rows, limit, replace=False))
        parts.append(rows)
        names.append(dataset.group_names[owner] if dataset.group_names else f"group {owner}")
    return _shares(dataset, parts, names)


def adult_phd(dataset: Dataset, seed: int = 0, total: int | None = 12_300) -> list[Dataset]:
    """Divide Adult among ten clients as in Local Model Reconstruction Attacks (Driouich et al., appendix C.1).

    Clients 0, 1 and 2 hold the people with a doctorate. Client 0 has those younger than 38, client 1 those from 38 to
    52, and client 2 those older than 52. People without a doctorate are divided at random and evenly among the other
    seven clients.

    The sizes of the clients differ from Table 3 of the paper. In Table 3, the first three clients have 2, 3 and 2 % of
    the 12,300 records, which is about 860 people. Adult has only 594 people with a doctorate (127, 281 and 186 in the
    three groups), and 544 of these have no missing value. Therefore, Table 3 cannot be reproduced. This function keeps
    every person with a doctorate. With all training and test rows without missing values, the first three clients have
    1.0, 2.2 and 1.3 % of the records. The other seven clients have 13.7 % each.

    The paper does not explain how its 12,300 records were chosen, or which 53 features they have.

    Args:
        dataset: The dataset, loaded with ``load("adult")``.
        seed: The seed of all draws.
        total: The number of records of all clients together. ``None`` takes all records of the dataset.
    """
    columns = dataset.spec.columns
    for column in ("age", "education=Doctorate"):
        if column not in columns:
            raise InvalidInput(
                f"adult_phd() needs the column {column!r}, which {dataset.name} lacks. Use load('adult')."
            )
    whole_number("seed", seed, at_least=0)
    random = np.random.default_rng(seed)
    ages = dataset.inputs[:, columns.index("age")].numpy()
    doctors = dataset.inputs[:, columns.index("education=Doctorate")].numpy() == 1
    young, old = ages < 38, ages > 52
    parts = [np.flatnonzero(doctors & chosen) for chosen in (young, ~young & ~old, old)]
    others = random.permutation(np.flatnonzero(~doctors))
    if total is not None:
        without = total - int(doctors.sum())
        if not 7 <= without <= len(others):
            raise InvalidInput(
                f"a total of {total} records needs {without} people without a doctorate. There must be at least 7, "
                f"and {dataset.name} has {len(others)}. Change total, or pass None for all records."
            )
        others = others[:without]
    if len(others) < 7 or not all(len(part) for part in parts):
        raise InvalidInput(f"{dataset.name} has too few people of some kind to fill all ten clients. Load more.")
    return _shares(dataset, [*parts, *np.array_split(others, 7)])


def orl_lmra(dataset: Dataset, seed: int = 0, images: tuple[int, int] = (3, 4)) -> list[Dataset]:
    """Divide the ORL faces among ten clients as in Local Model Reconstruction Attacks (Driouich et al., appendix C.1).

    Each client holds all pictures of four people, and a few random pictures of every other person. The same picture can
    therefore belong to several clients. No two clients have the same person among their four people. The paper does not
    mention this detail.

    Clients 0, 1, 2, 3 and 9 get the larger number of random pictures, because Table 4 of the paper lists more records
    for them. The list below gives the share of the records that each of these clients holds, and then the share that
    each other client holds:

    - 12 % and 8 % of 1,800 records in Table 4 of the paper.
    - 11.1 % and 8.9 % of 1,660 records with ``images=(3, 4)``, which are the numbers in the text of the paper.
    - 12 % and 8 % of 1,840 records with ``images=(3, 5)``.

    Args:
        dataset: The dataset, loaded with ``load("orl_faces")``.
        seed: The seed of all draws.
        images: The smaller and the larger number of random pictures of every other person.
    """
    people, counts = np.unique(dataset.targets.numpy(), return_counts=True)
    if len(people) != 40:
        raise InvalidInput(f"orl_lmra() needs 40 people, but {dataset.name} has {len(people)}")
    if not 1 <= min(images) <= max(images) <= counts.min():
        raise InvalidInput(f"images must lie between 1 and {counts.min()} pictures a person, not {images}")
    whole_number("seed", seed, at_least=0)
    random = np.random.default_rng(seed)
    labels = dataset.targets.numpy()
    rows_of = [np.flatnonzero(labels == person) for person in people]
    owned = random.permutation(40).reshape(10, 4)
    parts = []
    for client in range(10):
        pictures = images[1] if client in (0, 1, 2, 3, 9) else images[0]
        rows = [
            rows_of[person]
            if person in owned[client]
            else np.sort(random.choice(rows_of[person], pictures, replace=False))
            for person in range(40)
        ]
        parts.append(np.concatenate(rows))
    return _shares(dataset, parts)


def _check_clients(dataset: Dataset, clients: int) -> None:
    whole_number("clients", clients)
    if clients > len(dataset):
        raise InvalidInput(f"{clients} clients cannot share {len(dataset)} samples. Use fewer clients.")


def _shares(dataset: Dataset, parts: Sequence[_Rows], names: Sequence[str] | None = None) -> list[Dataset]:
    names = names or [f"client {client}" for client in range(len(parts))]
    return [dataset.share(rows.tolist(), name) for rows, name in zip(parts, names, strict=True)]
