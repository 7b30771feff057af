"""Write ``README.md`` from ``results.csv``.

python benchmarks/public_data/table.py
"""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from cells import SETUPS

from leakgauge.evaluation.intervals import mean_interval

FOLDER = Path(__file__).parent
HEAD = """# An attacker with public data

Mean over clients of the leakage from one gradient, in dB of PSNR for pictures and as the share of right features for
rows of a table. The attacker was given the labels and knows the defence. `measure.py` makes `results.csv`, and
`table.py` makes this page. [Notes](NOTES.md) say how settings were chosen.

- **Learned** is `learned_inversion`. **Guess** is the best that its attacker could send without the message, such as
  the mean of each class.
- **Gain** is the mean difference of the two, with its 95% interval.
- **Shuffled** is the gain of the same attack on the messages of other people. It must not be above zero.
- **Matching** is `inverting_gradients`, and **path** is `prior_path`, with 200 steps and without public data. Their
  **own guess** knows no labels. A figure below it is a failed attack.
"""


def interval(values: list[float]) -> str:
    """Return a mean with its 95% interval."""
    found = mean_interval(torch.tensor(values, dtype=torch.double))
    if found.low is None or found.high is None:
        return f"{found.mean:.2f}"
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


def line(setup: str, defence: str, rows: list[dict[str, str]]) -> str:
    """Return one row of the table."""
    values = {
        name: [float(row[name]) for row in rows if row[name]]
        for name in ("learned", "chance", "shuffled", "inverting_gradients", "prior_path", "guess")
    }
    means = {name: f"{sum(one) / len(one):.2f}" if one else "-" for name, one in values.items()}
    gain = [a - b for a, b in zip(values["learned"], values["chance"], strict=True)]
    other = [a - b for a, b in zip(values["shuffled"], values["chance"], strict=True)]
    cells = (
        setup, defence, means["learned"], means["chance"], interval(gain), interval(other),
        means["inverting_gradients"], means["prior_path"], means["guess"], str(len(rows)),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the page."""
    with (FOLDER / "results.csv").open() as file:
        results = list(csv.DictReader(file))
    lines = [
        "| set-up | defence | learned | guess | gain | shuffled | matching | path | own guess | clients |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, setup in SETUPS.items():
        for defence in setup.defences:
            rows = [row for row in results if (row["setup"], row["defence"]) == (name, defence)]
            lines += [line(name, defence, rows)] if rows else []
    seconds = [float(row["cpu_seconds"]) for row in results]
    end = f"\nLearned inversion took {min(seconds):.1f} to {max(seconds):.1f} CPU seconds a client on one core.\n"
    (FOLDER / "README.md").write_text(HEAD + "\n" + "\n".join(lines) + "\n" + end)


if __name__ == "__main__":
    main()
