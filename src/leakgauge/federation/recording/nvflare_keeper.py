"""A keeper for the training script of an NVFlare client, which stores the samples in the order of the training.

::

    import leakgauge as lg
    from leakgauge.federation.recording.nvflare_keeper import Keeper

    data = lg.DataSpec((3, 32, 32), classes=10, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))  # as the app normalises
    keeper = Keeper("captures", data=data)

    with keeper.training(input_model):  # what flare.receive() returned
        train(net, optimizer, keeper.watch(loader))
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leakgauge.core.container import Location
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import MissingExtra
from leakgauge.federation.recording.keeper import ClientTraining, working_on
from leakgauge.federation.recording.keeper import Keeper as LoopKeeper

try:
    import nvflare.client as flare
except ImportError as problem:
    raise MissingExtra("keeping the samples of an NVFlare job", "nvflare", "nvflare") from problem

from leakgauge.federation.recording.nvflare import run_name

if TYPE_CHECKING:
    from nvflare.app_common.abstract.fl_model import FLModel


class Keeper(LoopKeeper):
    """A keeper of the samples that the training script of an NVFlare client trains on.

    Args:
        folder: The folder to write to. The samples of a job are in the folder ``run-JOB/kept``.
        data: The shape, classes and normalisation of a sample. ``mean`` and ``std`` must be stated.
        key: The file of the auditor's public key, for which the samples are encrypted. By default, they are not.
        inputs: The key or the place of the samples in a batch. By default, it is found.
        targets: The key or the place of the targets in a batch. By default, it is found.
    """

    def __init__(
        self,
        folder: Location,
        data: DataSpec,
        *,
        key: Location | None = None,
        inputs: str | int | None = None,
        targets: str | int | None = None,
    ) -> None:
        super().__init__(folder, data, None, key, inputs, targets)

    @contextmanager
    def training(self, model: FLModel) -> Iterator[None]:
        """Keep the samples of the loaders that this client trains on, as a context manager around its training.

        Args:
            model: The model that the client received, which holds the round.
        """
        try:
            name, run = str(flare.get_site_name()), run_name(str(flare.get_job_id()))
            training = ClientTraining(int(model.current_round or 0), (name,), run)
        except Exception as problem:
            self.note(f"Leakgauge kept no samples of this client: {problem!r}")
            training = ClientTraining(0, ("this client",), wanted=False)
        with working_on(training):
            yield
