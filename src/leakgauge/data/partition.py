"""Ways to hand a dataset out to clients. Each returns shares, which know the whole as their population.

Everything random comes from ``seed``; no global generator is touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leakgauge.core.checks import at_least
from leakgauge.core.errors import InvalidInput
from leakgauge.data.dataset import Dataset

_Rows = NDArray[np.int64]

_ATTEMPTS = 1000


def iid(dataset: Dataset, clients: int, seed: int = 0) -> list[Dataset]:
    """Shuffle, and cut into parts whose sizes differ by one at most."""
    _check_clients(dataset, clients)
    at_least(0, seed=seed)
    order = np.random.default_rng(seed).permutation(len(dataset))
    return _shares(dataset, np.array_split(order, clients))


def dirichlet(dataset: Dataset, clients: int, alpha: float, seed: int = 0, minimum: int = 1) -> list[Dataset]:
    """Skew the labels: each class is handed out in proportions drawn from Dirichlet(alpha) (Hsu et al. 2019).

    A small ``alpha`` gives clients few classes each, a large one nears :func:`iid`. Draws are repeated until
    every client has ``minimum`` samples.
    """
    _check_clients(dataset, clients)
    if dataset.spec.classes is None:
        raise InvalidInput(f"dirichlet() skews labels, but {dataset.name} is a regression; use iid() or by_group()")
    if not (alpha > 0 and np.isfinite(alpha)):
        raise InvalidInput(f"alpha must be a finite number above 0, not {alpha}")
    at_least(0, minimum=minimum)
    if minimum * clients > len(dataset):
        raise InvalidInput(
            f"{clients} clients with at least {minimum} samples each cannot be made of {len(dataset)}; "
            "ask for fewer clients or a smaller minimum"
        )
    at_least(0, seed=seed)
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
        f"after {_ATTEMPTS} draws some of the {clients} clients still had fewer than {minimum} samples; "
        "use a larger alpha, fewer clients or a smaller minimum"
    )


def by_group(
    dataset: Dataset,
    *,
    clients: int | None = None,
    minimum: int = 1,
    limit: int | None = None,
    seed: int = 0,
) -> list[Dataset]:
    """One client for each natural owner (writer, person) with at least ``minimum`` samples.

    ``clients`` draws so many of them, ``limit`` so many samples of each; both keep the dataset's order.
    """
    if dataset.groups is None:
        raise InvalidInput(f"{dataset.name} does not say whose its rows are; use iid() or dirichlet()")
    at_least(1, clients=clients, limit=limit, minimum=minimum)
    at_least(0, seed=seed)
    random = np.random.default_rng(seed)
    groups = dataset.groups.numpy()
    owners, counts = np.unique(groups, return_counts=True)
    owners = owners[counts >= minimum]
    if len(owners) < (clients or 1):
        raise InvalidInput(
            f"{clients or 1} clients are wanted, but of the {len(counts)} groups of {dataset.name} only "
            f"{len(owners)} have {minimum} samples or more; ask for fewer clients or a smaller minimum"
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
    """The LMRA paper's ten clients for Adult (appendix C.1): doctors by age, then everybody else.

    Clients 0, 1 and 2 hold the people with a doctorate who are younger than 38, 38 to 52, and older. The
    other seven share out, at random and evenly, as many of the rest as bring the sum to ``total`` (``None``:
    all of them).

    What the text leaves open: it does not say how its 12,300 records were chosen, nor its 53 features. Its
    Table 3 gives the first three clients 2, 3 and 2 % of them, about 860 people; Adult has 594 doctorates in
    all (127, 281 and 186 by age), 544 of them in complete rows, so no choice of rows reproduces it. We keep
    every doctorate of ``dataset``: with complete rows of both files, clients hold 1.0, 2.2, 1.3 and seven
    times 13.7 %.
    """
    columns = dataset.spec.columns
    for column in ("age", "education=Doctorate"):
        if column not in columns:
            raise InvalidInput(
                f"adult_phd() needs the column {column!r}, which {dataset.name} lacks; use load('adult')"
            )
    at_least(0, seed=seed)
    random = np.random.default_rng(seed)
    ages = dataset.inputs[:, columns.index("age")].numpy()
    doctors = dataset.inputs[:, columns.index("education=Doctorate")].numpy() == 1
    young, old = ages < 38, ages > 52
    parts = [np.flatnonzero(doctors & chosen) for chosen in (young, ~young & ~old, old)]
    others = random.permutation(np.flatnonzero(~doctors))
    if total is not None:
        wanted = total - int(doctors.sum())
        if not 7 <= wanted <= len(others):
            raise InvalidInput(
                f"a total of {total} records asks for {wanted} people without a doctorate, but there must "
                f"be at least 7, and {dataset.name} has {len(others)}; change total, or pass None for all"
            )
        others = others[:wanted]
    if len(others) < 7 or not all(len(part) for part in parts):
        raise InvalidInput(f"{dataset.name} has too few people of some kind to fill all ten clients; load more")
    return _shares(dataset, [*parts, *np.array_split(others, 7)])


def orl_lmra(dataset: Dataset, seed: int = 0, images: tuple[int, int] = (3, 4)) -> list[Dataset]:
    """The LMRA paper's ten clients for the ORL faces (appendix C.1).

    Each client holds every picture of four people, and 3 or 4 pictures, drawn at random, of each of the
    others; so clients share pictures.

    What the text leaves open: whether two clients may have the same four people. Ten times four is the
    number of people, so we deal all 40 out. Table 4 gives clients 0, 1, 2, 3 and 9 a share of 12 % and the
    rest 8 %, of 1,800 records; we give the former ``images[1]`` and the latter ``images[0]`` pictures. With
    the text's 3 and 4 this makes 11.1 and 8.9 % of 1,660; ``images=(3, 5)`` would make Table 4's 12 and 8 %,
    of 1,840.
    """
    people, counts = np.unique(dataset.targets.numpy(), return_counts=True)
    if len(people) != 40:
        raise InvalidInput(f"orl_lmra() deals out 40 people, but {dataset.name} has {len(people)}")
    if not 1 <= min(images) <= max(images) <= counts.min():
        raise InvalidInput(f"images must lie between 1 and {counts.min()} pictures a person, not {images}")
    at_least(0, seed=seed)
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
    at_least(1, clients=clients)
    if clients > len(dataset):
        raise InvalidInput(f"{clients} clients cannot share {len(dataset)} samples; ask for fewer clients")


def _shares(dataset: Dataset, parts: Sequence[_Rows], names: Sequence[str] | None = None) -> list[Dataset]:
    names = names or [f"client {client}" for client in range(len(parts))]
    return [dataset.share(rows.tolist(), name) for rows, name in zip(parts, names, strict=True)]
