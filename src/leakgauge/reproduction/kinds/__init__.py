"""The kinds of benchmark rows. ``KINDS`` maps the name of each kind to a :class:`Kind`, which measures such rows."""

from leakgauge.reproduction.kinds.base import Job, Kind, Outcome
from leakgauge.reproduction.kinds.epochs import EPOCHS
from leakgauge.reproduction.kinds.labels import LABELS
from leakgauge.reproduction.kinds.linear import LINEAR
from leakgauge.reproduction.kinds.local_models import LOCAL_MODELS
from leakgauge.reproduction.kinds.matching import MATCHING
from leakgauge.reproduction.kinds.reconstruction import RECONSTRUCTION
from leakgauge.reproduction.kinds.stopping import STOPPING
from leakgauge.reproduction.kinds.together import TOGETHER
from leakgauge.reproduction.kinds.weight_search import SEARCH

__all__ = ["KINDS", "Job", "Kind", "Outcome"]

KINDS: dict[str, Kind] = {
    "reconstruction": RECONSTRUCTION,
    "labels": LABELS,
    "epochs": EPOCHS,
    "matching": MATCHING,
    "search": SEARCH,
    "together": TOGETHER,
    "stopping": STOPPING,
    "linear": LINEAR,
    "local_models": LOCAL_MODELS,
}
