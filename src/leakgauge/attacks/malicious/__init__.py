"""Servers that send models of their own making, which every report calls malicious.

An honest-but-curious server reads what its clients send. A malicious one also chooses what they train. This package
holds what is known to work from one message of a client:

=========================  ==========================================================================================
:mod:`.plant`              weights with traps, which few samples activate, for an agreed architecture
:mod:`.block`              a block with traps, if the server chooses the architecture
:mod:`.server`             rules for live rounds: traps for a client, and a dead layer for the others of a secure sum
:mod:`.read_off`           the attack that reads samples from the gradients of traps
:mod:`.prediction`         how many samples to expect
=========================  ==========================================================================================

Attacks of a malicious server over many rounds are in :mod:`leakgauge.attacks.local_model.active`.
"""

from leakgauge.attacks.malicious.block import AddedBlock, with_added_block
from leakgauge.attacks.malicious.plant import Scale, Trapped, plant
from leakgauge.attacks.malicious.prediction import Split, clean_share, peeled_share
from leakgauge.attacks.malicious.read_off import TrapReadOff, trap_read_off
from leakgauge.attacks.malicious.server import DeadLayer, TrapServer

__all__ = [
    "AddedBlock",
    "DeadLayer",
    "Scale",
    "Split",
    "TrapReadOff",
    "TrapServer",
    "Trapped",
    "clean_share",
    "peeled_share",
    "plant",
    "trap_read_off",
    "with_added_block",
]
