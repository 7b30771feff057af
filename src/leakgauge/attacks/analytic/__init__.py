"""Attacks that read samples off an update or solve exactly for the samples, without matching gradients.

The attacks take seconds, and return only samples that the attacker can check. An audit runs these attacks first.

=====================  ========================================================================
:mod:`.read_off`       Single neurons of a dense first layer, each of which holds one sample
:mod:`.spans`          Whole batches, from the row spaces of two consecutive dense layers
:mod:`.factorisation`  Whole batches, from row and column spaces, also with one hidden layer
:mod:`.features`       Whole batches, from the features that enter the last two dense layers
:mod:`.patches`        One sample of a vision transformer, from its patch layer and positions
:mod:`.counting`       The number of samples, and what a convolution determines, without an attack
=====================  ========================================================================
"""
