"""Attacks that compute samples from an update by division or by solving equations, without matching gradients.

The attacks take seconds, and return only samples that the attacker can check. An audit runs these attacks first.

=====================  ====================================================================================
:mod:`.read_off`       Samples from single neurons of a dense first layer
:mod:`.adam_read_off`  One sample of a client that trains with Adam, from a dense first layer
:mod:`.spans`          Whole batches, from the row spaces of the gradients of two dense layers
:mod:`.local_spans`    Whole batches after several local steps, from the row spaces of two dense layers' updates
:mod:`.local_rows`     Rows of a table with categories, after several local steps
:mod:`.factorisation`  Whole batches, from row and column spaces of gradients, also with one hidden layer
:mod:`.features`       Whole batches, from the features that enter the last two dense layers
:mod:`.output_features` Whole batches, from the features that enter the only dense layer
:mod:`.feature_read_off` One sample, from its features in the gradient of any dense layer
:mod:`.patches`        One sample of a vision transformer, from its patch layer and positions
:mod:`.counting`       The number of samples, and the equations of a convolution, without an attack
=====================  ====================================================================================
"""
