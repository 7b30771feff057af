"""One set-up with a known answer, and the words in which the tables are written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakgauge.evaluation.verdict import Verdict

#: The verdicts that are right where an attack returns samples.
DATA = frozenset({Verdict.RECOVERS_DATA})
#: The verdicts that are right where nothing can be found.
NOTHING = frozenset({Verdict.NOTHING_ABOVE_CHANCE})
#: The verdicts that are right where samples cannot be found, and labels may be found.
NO_SAMPLES = frozenset({Verdict.NOTHING_ABOVE_CHANCE, Verdict.RECOVERS_ATTRIBUTES})
#: The verdicts that are right where labels are found, and samples cannot be.
LABELS = frozenset({Verdict.RECOVERS_ATTRIBUTES})

HERE = Path(__file__).parent
NETWORKS, POPULATIONS = "tests.known_answers.networks", "tests.known_answers.populations"
LOSSES = "tests.known_answers.losses"

DIGITS: dict[str, Any] = {"name": "digits"}
PEOPLE: dict[str, Any] = {"csv": str(HERE / "people.csv"), "options": {"target": "ill"}}
DIABETES: dict[str, Any] = {"name": "diabetes"}
BREAST_CANCER: dict[str, Any] = {"name": "breast_cancer"}


@dataclass(frozen=True)
class KnownAnswer:
    """A set-up, the verdicts that are right, and the reason why they are known to be right.

    Args:
        name: The set-up in words.
        model: The table ``[model]``.
        training: The table ``[training]``.
        right: The verdicts that are right.
        why: The attack that finds the data, or the argument that nothing can be found.
        data: The table ``[data]``.
        attacker: The table ``[attacker]``.
        defences: The chain of defences.
        short: The table ``[audit]`` of the short form. ``None`` leaves the row out of the short form.
        needs: The part of Leakgauge that does not exist yet. The short form leaves such a row out.
    """

    name: str
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    right: frozenset[Verdict]
    why: str
    data: Mapping[str, Any] = field(default_factory=lambda: DIGITS)
    attacker: Mapping[str, Any] = field(default_factory=dict)
    defences: Sequence[Mapping[str, Any]] = ()
    short: Mapping[str, Any] | None = None
    needs: str = ""

    def document(self, *, short: bool, clients: int | None = None) -> dict[str, Any]:
        """Return the set-up as the document of an audit.

        Args:
            short: Whether the audit runs the few attacks of the short form. The long form is the default audit.
            clients: The number of clients of the long form. By default, that of an audit.
        """
        tables = {"model": self.model, "data": self.data, "training": self.training, "attacker": self.attacker}
        document: dict[str, Any] = {name: dict(table) for name, table in tables.items() if table}
        document["seed"] = 5
        if self.defences:
            document["defence"] = [{"title": "defended", "chain": [dict(one) for one in self.defences]}]
        if short:
            document["audit"] = dict(self.short or {})
        elif clients is not None:
            document["audit"] = {"clients": clients}
        return document


def network(name: str, **options: Any) -> dict[str, Any]:
    """Return the table ``[model]`` of a network from :mod:`tests.known_answers.networks`."""
    return {"name": f"{NETWORKS}:{name}", **({"options": options} if options else {})}


def built_in(name: str, **options: Any) -> dict[str, Any]:
    """Return the table ``[model]`` of a network that Leakgauge has."""
    return {"name": name, **({"options": options} if options else {})}


def trained(model: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Return the table ``[model]`` of a network that is trained before it is attacked."""
    return {**model, "trained_rounds": rounds}


def population(name: str, **options: Any) -> dict[str, Any]:
    """Return the table ``[data]`` of a function from :mod:`tests.known_answers.populations`."""
    return {"factory": f"{POPULATIONS}:{name}", **({"options": options} if options else {})}


def gradient(samples: int, **more: Any) -> dict[str, Any]:
    """Return the table ``[training]`` of a client that sends one gradient of all its samples."""
    return {"sends": "gradient", "samples": samples, **more}


def weights(
    samples: int, epochs: int = 1, batch_size: int | None = None, lr: float = 0.01, **more: Any
) -> dict[str, Any]:
    """Return the table ``[training]`` of a client that sends its weights after local training."""
    return {"samples": samples, "epochs": epochs, "batch_size": batch_size or samples, "lr": lr, **more}


def only(*attacks: str | Mapping[str, Any], clients: int = 2, **more: Any) -> dict[str, Any]:
    """Return the table ``[audit]`` of the short form, with a few attacks on a few clients."""
    return {"attacks": [one if isinstance(one, str) else dict(one) for one in attacks], "clients": clients, **more}


def own(loss: str) -> str:
    """Return the name of a loss from :mod:`tests.known_answers.losses`."""
    return f"{LOSSES}:{loss}"


def inverting(steps: int) -> dict[str, Any]:
    """Return the attack ``inverting_gradients`` with few steps."""
    return {"name": "inverting_gradients", "steps": steps}


def path(steps: int) -> dict[str, Any]:
    """Return the attack ``prior_path`` with few steps."""
    return {"name": "prior_path", "steps": steps}


LABELS_KNOWN = {"granted": ["labels"]}
