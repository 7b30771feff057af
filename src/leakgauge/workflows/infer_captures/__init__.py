"""What many rounds of captures give away together: each client's own model, a hidden column, who holds a record.

The attacker's part is :mod:`leakgauge.attacks.local_model`, on observations and on records that it is granted; how much of it is
right is told where the clients' data is at hand. Nothing in a folder of captures is trusted
(:mod:`leakgauge.workflows.attack_captures`), and rebuilt models are kept, so that a run that was stopped goes on where it was.
"""

from leakgauge.reports.inference import figures_table, models_table, sentences, write_inferred
from leakgauge.workflows.infer_captures.inferences import Figure
from leakgauge.workflows.infer_captures.run import Inferred, infer_captures

__all__ = ["Figure", "Inferred", "figures_table", "infer_captures", "models_table", "sentences", "write_inferred"]
