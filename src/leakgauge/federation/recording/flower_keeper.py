"""A keeper for the client app of Flower, which stores the samples of each message in the order of the training.

::

    import leakgauge as lg
    from leakgauge.federation.recording.flower_keeper import Keeper

    data = lg.DataSpec((3, 32, 32), classes=10, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))  # as the app normalises
    keeper = Keeper("captures", data=data)
    app = ClientApp(mods=[keeper.mod])  # names the client, the round and the run

    trainloader = keeper.watch(trainloader)  # before the training

Flower copies the objects of an app for each message, also in its simulation with several clients in one process. The
mod and the watched loader therefore need not belong to the same object.
"""

from __future__ import annotations

from collections.abc import Callable

from leakgauge.core.container import Location
from leakgauge.core.data_spec import DataSpec
from leakgauge.core.errors import MissingExtra
from leakgauge.federation.recording.flower_messages import training_message
from leakgauge.federation.recording.keeper import Keeper as LoopKeeper
from leakgauge.federation.recording.keeper import working_on

try:
    from flwr.app import Context, Message
except ImportError as problem:
    raise MissingExtra("keeping the samples of a Flower run", "flwr", "flower") from problem

Next = Callable[[Message, Context], Message]


class Keeper(LoopKeeper):
    """A keeper of the samples that a client app of Flower trains on.

    Args:
        folder: The folder to write to. The samples of a run are in the folder ``run-ID/kept``.
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

    def mod(self, message: Message, context: Context, call_next: Next) -> Message:
        """Run the rest of the client app, and store the samples that it trains on. Pass it to ``ClientApp(mods=)``.

        Args:
            message: The message, as the client got it.
            context: The context of the client.
            call_next: The rest of the client app.
        """
        try:
            training = training_message(message, context)
        except Exception as problem:
            self.note(f"Leakgauge kept no samples of this client: {problem}")
            training = None
        if training is None:
            return call_next(message, context)
        with working_on(training):
            return call_next(message, context)
