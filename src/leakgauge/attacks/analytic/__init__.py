"""Attacks that read samples off an update or solve for them exactly, without matching gradients.

They take seconds, and they return only samples that the attacker can check. An audit runs them first.

================  ======================================================================
:mod:`.read_off`  Single neurons of a dense first layer, each of which holds one sample
:mod:`.spans`     Whole batches, from the row spaces of two consecutive dense layers
:mod:`.features`  The same for the features of a network that ends in two dense layers
:mod:`.patches`   One sample of a vision transformer, from its patch layer and positions
================  ======================================================================
"""
