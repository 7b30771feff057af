"""The section of a page of inference that shows what stops each attack on many rounds.

The figures were measured in one federation: Medical cost, 10 clients of 33 records, a network with 64 neurons, one
full-batch step in each of 60 rounds (the rows ``defences/...`` of the benchmark ``lmra``). They show which kind of
defence works against which kind of attack. They are no promise for another federation.
"""

from __future__ import annotations

from collections.abc import Iterable

from leakgauge.reports.page import Section

#: The measured protections. Each is a row ``defences/NAME`` of the benchmark ``lmra``, with its heading in the table.
PROTECTIONS = {
    "none": "no defence",
    "secure-aggregation": "secure aggregation of 10",
    "dp-10": "DP-SGD, epsilon 10",
    "mixup": "mixup",
    "cohort-40": "40 clients",
}
#: The methods and measures of these rows, for each attack of an inference.
METHODS = {
    "attribute_by_equations": ("equations", "aia"),
    "attribute_by_gradient": ("gradient", "aia"),
    "attribute_by_model": ("lmra", "aia"),
    "source_by_equations": ("equations", "sia"),
    "source_by_vote": ("gradient", "sia"),
    "source_by_loss": ("lmra", "sia"),
}
#: The share of records for which each attack was right, in the order of ``PROTECTIONS``.
MEASURED: dict[str, tuple[float, ...]] = {
    "attribute_by_equations": (1.00, 0.58, 0.47, 0.65, 1.00),
    "attribute_by_gradient": (0.97, 0.93, 0.64, 0.96, 0.97),
    "attribute_by_model": (0.96, 0.97, 0.95, 0.98, 0.97),
    "source_by_equations": (0.80, 0.09, 0.14, 0.43, 0.62),
    "source_by_vote": (0.15, 0.10, 0.15, 0.14, 0.05),
    "source_by_loss": (0.17, 0.12, 0.11, 0.21, 0.06),
}
#: The figures of attackers who have no message, in the order of ``PROTECTIONS``.
WITHOUT_MESSAGES: dict[str, tuple[float, ...]] = {
    "the other columns": (0.95, 0.95, 0.95, 0.95, 0.95),
    "always the more frequent value": (0.76, 0.76, 0.76, 0.76, 0.79),
    "any client": (0.10, 0.10, 0.10, 0.10, 0.025),
}

_WORDS = (
    "DP-SGD is the only defence here that stopped every attack on messages, and it also holds against attacks that "
    "were not tried, as far as its epsilon goes. Secure aggregation hides whose records they are, so it stopped the "
    "attacks on sources. It does not hide attributes from an attacker who knows the other columns of all clients in "
    "a sum: on Adult, 99% of the values came back from one sum of 10 clients. Mixup stopped the attack by equations "
    "on attributes, but not the one on sources. More clients in a round stop nothing by themselves, because the "
    "server still gets every message."
)
_COLUMNS = (
    "What follows from the other columns of a record cannot be hidden by any defence of the messages. An attack that "
    "does no better than the other columns has learned nothing from them."
)
_MALICIOUS = (
    "A malicious server sent these clients weights of its own making. The defence same_model refuses weights that "
    "differ from those of the other clients. Secure aggregation leaves such a server no answer of a single client."
)
_SCOPE = (
    "The table was measured on Medical cost with 10 clients of 33 records, one step a round, 60 rounds. It shows the "
    "share of records for which an attack was right. Measure your own federation: record it with a defence, and run "
    "leakgauge infer again, or compare defences with leakgauge frontier."
)


def advice(attacks: Iterable[str], *, malicious: bool = False) -> Section:
    """Return a section about what stops the attacks of an inference.

    Args:
        attacks: The names of the attacks that were run. Those that were not measured with defences are left out.
        malicious: Whether the server was malicious.
    """
    measured = [name for name in dict.fromkeys(attacks) if name in MEASURED]
    rows = [["attack", *PROTECTIONS.values()]]
    rows += [[name, *_shown(MEASURED[name])] for name in measured]
    kinds = {name.partition("_")[0] for name in measured}
    for name, values in WITHOUT_MESSAGES.items():
        if ("source" if name == "any client" else "attribute") in kinds:
            rows.append([f"no message: {name}", *_shown(values)])
    words = [_WORDS, *([_COLUMNS] if "attribute" in kinds else []), *([_MALICIOUS] if malicious else [])]
    return Section("What to do about it", [*words, *([_SCOPE] if measured else [])], rows if measured else ())


def _shown(values: tuple[float, ...]) -> list[str]:
    return [f"{value:.3f}" if value < 0.05 else f"{value:.2f}" for value in values]
