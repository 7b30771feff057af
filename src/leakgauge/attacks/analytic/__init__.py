"""Attacks that read samples off an update or solve for them exactly, without matching gradients.

The attacks take seconds, and return only samples that the attacker can check. An audit runs these attacks first.

================  =======================================================================
:mod:`.read_off`  Single neurons of a dense first layer, each of which holds one sample
:mod:`.spans`     Whole batches, from the row spaces of two consecutive dense layers
:mod:`.features`  Whole batches of a network that ends in two dense layers, by features
:mod:`.patches`   One sample of a vision transformer, from its patch layer and positions
================  =======================================================================
"""
