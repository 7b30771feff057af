"""The table of known answers. The short form in CI and the long form (``make gauntlet``) read the same rows."""

from tests.known_answers.known_answer import (
    BREAST_CANCER,
    DATA,
    DIABETES,
    LABELS,
    LABELS_KNOWN,
    NO_SAMPLES,
    NOTHING,
    PEOPLE,
    KnownAnswer,
    built_in,
    gradient,
    inverting,
    network,
    only,
    own,
    path,
    population,
    trained,
    weights,
)

ADAM = "Adam adds eps to the size of each gradient, so its steps still hold the sample (adam_read_off)."
APRIL = "APRIL solves for the patches from the gradients of the patch layer and the positions (Lu et al. 2022)."
READ_OFF = "A biased dense layer sees the sample, so a neuron's weight gradient over its bias gradient is the sample."
TOKENS = "Every patch and every token lies in the row space of a gradient, which determines the patches (token_spans)."
SPANS = "The row spaces of two dense layers determine every sample (two_spans)."
LOCAL_SPANS = "The updates of two dense layers span the samples, also after several local steps (local_spans)."
FEATURES = "Two dense layers at the end determine each sample's features, and the features determine the picture."
LBFGS = "L-BFGS on the gradient of a smooth small network reaches the sample (DLG, iDLG, EPAFL)."
SIMULATED = "L-BFGS through the simulation of the local steps reaches 62 to 86 dB."
COSINE = "Matching the direction of the gradient returns the picture (Inverting Gradients, Geiping et al. 2020)."
COUNTING = "The message has far fewer numbers than the samples have, so single samples are not determined."
PRIVATE = "DP-SGD with epsilon 1 bounds the success of every attack (Balle et al. 2022)."
MASKS = "The whole gradient is linear in the mask, and has far more equations than pixels and mask (gauss_newton)."
WHOLE = "The whole gradient has far more equations than the sample has pixels (gauss_newton)."
BAGS = "Each row of the embedding's gradient is a sum over the samples that have this word (embedding_read_off)."
LINEAR = "A linear model's gradient is one weighted sum of rows for each class."
DROWNED = "The noise is more than a thousand times larger than the gradient."

DENSE = network("dense")
TEXTURES = population("textures")
WIDE = network("dense", hidden=[256, 128])
LENET = built_in("lenet", activation="sigmoid")
VIT = built_in("vit", patch=2, width=32, depth=1, heads=2)
FIXED_VIT = built_in("vit", patch=2, width=32, depth=1, heads=2, positions="fixed")
CNN = network("convolutional")
SMOOTH_CNN = network("convolutional", activation="gelu")
SEVERAL = population("labelled_digits", targets="labels")
NUMBERS = population("labelled_digits", targets="numbers")
TAIL = network("convolutional", channels=[8, 16], tail=[96])
DP = ({"name": "dpsgd", "epsilon": 1.0, "clip": 1.0},)
NOISE = ({"name": "gaussian_noise", "sigma": 30.0},)

TRANSFORMERS = (
    KnownAnswer("ViT, learned positions, one gradient of 1", VIT, gradient(1), DATA, APRIL, short=only("april")),
    KnownAnswer(
        "ViT, learned positions, 5 local steps on 1", VIT, weights(1, epochs=5), DATA, APRIL, short=only("april")
    ),
    KnownAnswer(
        "ViT, learned positions, mean pooling, one gradient of 1",
        built_in("vit", patch=4, width=48, depth=1, heads=2, pooling="mean"), gradient(1), DATA, APRIL,
        short=only("april"),
    ),
    KnownAnswer(
        "ViT, fixed positions, one gradient of 1", FIXED_VIT, gradient(1), DATA, WHOLE,
    ),
    KnownAnswer(
        "ViT, fixed positions, mean pooling, one gradient of 1",
        built_in("vit", patch=2, width=24, depth=1, heads=4, positions="fixed", pooling="mean"), gradient(1), DATA,
        WHOLE, short=only("gauss_newton", clients=1),
    ),
    KnownAnswer(
        "ViT, fixed positions, 5 local steps on 1",
        built_in("vit", patch=2, width=24, depth=1, heads=4, positions="fixed", pooling="mean"), weights(1, epochs=5),
        DATA, "The simulated local steps have far more equations than the sample has pixels (gauss_newton).",
    ),
    KnownAnswer(
        "ViT, frozen positions, one gradient of 1", network("frozen_vit"), gradient(1), DATA, TOKENS,
        short=only("token_spans"),
    ),
    KnownAnswer(
        "ViT of pictures of 32 x 32, frozen positions, mean pooling, one gradient of 1",
        network("frozen_vit", patch=4, width=192, depth=6, pooling="mean"), gradient(1), DATA, TOKENS, TEXTURES,
        short=only("token_spans"),
    ),
    KnownAnswer(
        "PyTorch's encoder layers, norms first, one gradient of 1", network("encoder"), gradient(1), DATA, TOKENS,
        short=only("token_spans"),
    ),
    KnownAnswer(
        "PyTorch's encoder layers, norms first, 5 local steps on 1", network("encoder"), weights(1, epochs=5, lr=0.1),
        DATA, TOKENS, short=only("token_spans"),
    ),
    KnownAnswer(
        "PyTorch's encoder layers, norms last, one gradient of 1", network("encoder", norm_first=False), gradient(1),
        DATA, TOKENS, short=only("token_spans"),
    ),
)  # fmt: skip

DENSE_NETWORKS = (
    KnownAnswer("MLP ReLU, one gradient of 1", DENSE, gradient(1), DATA, READ_OFF, short=only("dense_read_off")),
    KnownAnswer("MLP ReLU, 1 local step on 1", DENSE, weights(1), DATA, READ_OFF, short=only("dense_read_off")),
    KnownAnswer("MLP ReLU, 20 local steps on 1", DENSE, weights(1, epochs=20), DATA, READ_OFF,
                short=only("dense_read_off")),
    KnownAnswer("MLP ReLU, one gradient of 4", DENSE, gradient(4), DATA, SPANS, short=only("two_spans")),
    KnownAnswer("MLP ReLU, one gradient of 16", WIDE, gradient(16), DATA, SPANS, short=only("two_spans", clients=1)),
    KnownAnswer("MLP ReLU, one gradient of 32", WIDE, gradient(32), DATA, SPANS, short=only("two_spans", clients=1)),
    KnownAnswer("MLP ReLU, 1 local step on 16", WIDE, weights(16), DATA, SPANS, short=only("two_spans", clients=1)),
    KnownAnswer("MLP GELU, one gradient of 8", network("dense", activation="gelu"), gradient(8), DATA, SPANS,
                short=only("two_spans", clients=1)),
    KnownAnswer("MLP tanh, one gradient of 4", network("dense", activation="tanh"), gradient(4), DATA, SPANS,
                short=only("two_spans")),
    KnownAnswer("MLP sigmoid, one gradient of 4", network("dense", activation="sigmoid"), gradient(4), DATA, SPANS,
                short=only("two_spans")),
    KnownAnswer("MLP ReLU without bias, one gradient of 1", network("dense", bias=False), gradient(1), DATA,
                "The rows of the first layer's gradient are the sample up to a factor, which matching finds.",
                short=only(inverting(300))),
    KnownAnswer("one hidden layer ReLU, one gradient of 4", network("dense", hidden=[128]), gradient(4), DATA, SPANS,
                short=only("two_spans")),
    KnownAnswer("one hidden layer GELU, one gradient of 8", network("dense", hidden=[256], activation="gelu"),
                gradient(8), DATA, SPANS, short=only("two_spans", clients=1)),
    KnownAnswer("one hidden layer ReLU, one gradient of 16", network("dense", hidden=[256]), gradient(16), DATA,
                "Sparse factorisation of the first layer's gradient (SPEAR, Dimitrov et al. 2024).",
                short=only("dense_factorisation", clients=1)),
    KnownAnswer("trained MLP ReLU, one gradient of 8", trained(WIDE, 20), gradient(8, lr=0.1), DATA, SPANS,
                short=only("two_spans", clients=1)),
    KnownAnswer("MLP ReLU, 2 epochs of batches of 2 on 4", WIDE, weights(4, 2, 2), DATA,
                "Neurons that fire for one sample only are copies of it, also after several small steps.",
                short=only("dense_read_off")),
    KnownAnswer("MLP ReLU, 3 epochs of batches of 4 on 12", WIDE, weights(12, 3, 4), DATA, LOCAL_SPANS,
                short=only("local_spans", clients=1)),
    KnownAnswer("MLP tanh, momentum 0.9, hidden learning rate, 2 epochs of batches of 4 on 8",
                network("dense", hidden=[256, 128], activation="tanh"), weights(8, 2, 4, momentum=0.9), DATA,
                LOCAL_SPANS, attacker={"hidden": ["lr"]}, short=only("local_spans", clients=1)),
    KnownAnswer("MLP ReLU, momentum 0.9, 4 local steps on 1", DENSE, weights(1, epochs=4, momentum=0.9), DATA, READ_OFF,
                short=only("dense_read_off")),
    KnownAnswer("MLP ReLU, Adam, 1 local step on 1", DENSE, weights(1, optimiser="adam", lr=0.001), DATA, ADAM,
                short=only("adam_read_off")),
    KnownAnswer("MLP ReLU, Adam, hidden learning rate, 1 local step on 1", DENSE,
                weights(1, optimiser="adam", lr=0.001), DATA, ADAM, attacker={"hidden": ["lr"]},
                short=only("adam_read_off")),
    KnownAnswer("MLP GELU, Adam, 4 local steps on 1", network("dense", activation="gelu"),
                weights(1, epochs=4, optimiser="adam", lr=0.001), DATA, ADAM, short=only("adam_read_off", clients=1)),
    KnownAnswer("MLP ReLU, Adam, 1 local step on 4", WIDE, weights(4, optimiser="adam", lr=0.001), DATA,
                "Neurons that are active for one sample only are read as if the client had this sample only.",
                short=only("adam_read_off")),
    KnownAnswer("MLP ReLU, AdamW, 1 local step on 1", DENSE, weights(1, optimiser="adamw", lr=0.001, weight_decay=0.01),
                DATA, ADAM, short=only("adam_read_off")),
    KnownAnswer("MLP ReLU, AdamW, 3 local steps on 1", DENSE,
                weights(1, epochs=3, optimiser="adamw", lr=0.001, weight_decay=0.01), DATA, ADAM,
                short=only("adam_read_off", clients=1)),
    KnownAnswer("MLP SiLU, table, Adam, 3 local steps on 1", network("dense", activation="silu"),
                weights(1, epochs=3, optimiser="adam", lr=0.001), DATA, ADAM, BREAST_CANCER,
                short=only("adam_read_off", clients=1)),
)  # fmt: skip

CONVOLUTIONS = (
    KnownAnswer("CNN without normalisation, one gradient of 1", CNN, gradient(1), DATA, COSINE,
                short=only(inverting(300))),
    KnownAnswer("CNN without normalisation, one gradient of 4", CNN, gradient(4), DATA, COSINE,
                short=only(inverting(300), clients=1)),
    KnownAnswer("CNN with batch norm in eval mode, one gradient of 1", network("convolutional", norm="batch"),
                gradient(1, mode="eval"), DATA, COSINE, short=only(inverting(300))),
    KnownAnswer("CNN with batch norm, one gradient of 4", network("convolutional", norm="batch"),
                gradient(4), DATA, "Inverting Gradients uses the statistics of the dummy batch as the client does.",
                short=only(inverting(300), clients=1)),
    KnownAnswer("CNN with group norm, one gradient of 1", network("convolutional", norm="group"), gradient(1), DATA,
                COSINE, short=only(inverting(300))),
    KnownAnswer("CNN with layer norm, one gradient of 1", network("convolutional", norm="layer"), gradient(1), DATA,
                COSINE, short=only(inverting(300))),
    KnownAnswer("CNN with group norm, 4 local steps on 4", network("convolutional", norm="group"), weights(4, 2, 2),
                DATA, "inverting_gradients and agic return 25 to 100% on such clients.",
                short=only(inverting(200), clients=1)),
    KnownAnswer("CNN with a dense tail, one gradient of 4", TAIL, gradient(4), DATA, FEATURES,
                short=only({"name": "dense_tail_features", "steps": 300, "restarts": 1}, clients=1)),
    KnownAnswer("CNN with a dense tail, one gradient of 16", TAIL, gradient(16), DATA, FEATURES),
    KnownAnswer("CNN without normalisation, 1 local step on 1", CNN, weights(1), DATA, COSINE,
                short=only(inverting(300))),
    KnownAnswer("CNN without normalisation, 10 local steps on 1", CNN, weights(1, epochs=10), DATA,
                "The steps are small and the sample is the same in each, so the update has one gradient's direction.",
                short=only(inverting(100), clients=1)),
    KnownAnswer("small ResNet without normalisation, one gradient of 1", network("small_resnet"), gradient(1), DATA,
                COSINE, short=only(inverting(300), clients=1)),
    KnownAnswer("small ResNet with batch norm in eval mode, one gradient of 1", network("small_resnet", norm="batch"),
                gradient(1, mode="eval"), DATA, COSINE),
    KnownAnswer("small ResNet with group norm, one gradient of 1", network("small_resnet", norm="group"), gradient(1),
                DATA, COSINE),
    KnownAnswer("trained CNN, one gradient of 1", trained(CNN, 20), gradient(1, lr=0.1), DATA, COSINE,
                short=only(inverting(300))),
    KnownAnswer("sigmoid LeNet, one gradient of 1", LENET, gradient(1), DATA, LBFGS, short=only("epafl")),
    KnownAnswer("sigmoid LeNet, one gradient of 4", LENET, gradient(4), DATA, LBFGS, short=only("epafl", clients=1)),
    KnownAnswer("sigmoid LeNet, 1 local step on 1", LENET, weights(1), DATA, SIMULATED,
                short=only({"name": "lbfgs_simulation", "retries": 2}, clients=1)),
    KnownAnswer("sigmoid LeNet, 2 local steps on 1", LENET, weights(1, epochs=2), DATA, SIMULATED,
                short=only({"name": "lbfgs_simulation", "retries": 2}, clients=1)),
    KnownAnswer("sigmoid LeNet, Adam, 4 local steps on 1", LENET, weights(1, epochs=4, optimiser="adam", lr=0.001),
                DATA, "L-BFGS through the simulation of Adam reaches the sample.",
                short=only({"name": "lbfgs_simulation", "retries": 2}, clients=1)),
    KnownAnswer("sigmoid LeNet, 2 epochs of batches of 2 on 4", LENET, weights(4, 2, 2), DATA, SIMULATED),
)  # fmt: skip

TABLES = (
    KnownAnswer("CSV table, MLP, one gradient of 1", DENSE, gradient(1), DATA, READ_OFF, PEOPLE,
                short=only("dense_read_off")),
    KnownAnswer("CSV table, MLP, one gradient of 8", DENSE, gradient(8), DATA, SPANS, PEOPLE,
                short=only("two_spans", clients=1)),
    KnownAnswer("CSV table, MLP, one gradient of 24", WIDE, gradient(24), DATA, SPANS, PEOPLE,
                short=only("two_spans", clients=1)),
    KnownAnswer("CSV table, MLP, 2 epochs of batches of 4 on 12", WIDE,
                weights(12, epochs=2, batch_size=4, lr=0.02), DATA,
                "The updates of two dense layers span the rows, and categories are 0 or 1 (local_rows).", PEOPLE,
                short=only("local_rows", clients=1)),
    KnownAnswer("CSV table, one hidden layer, one gradient of 8", network("dense", hidden=[128]), gradient(8), DATA,
                "Neurons that fire for one row only are copies of it. They return one or two rows of most clients.",
                PEOPLE, short=only("dense_read_off")),
    KnownAnswer("regression, MLP, one gradient of 1", DENSE, gradient(1, loss="mse"), DATA, READ_OFF, DIABETES,
                short=only("dense_read_off")),
    KnownAnswer("regression, MLP, 3 local steps on 1", DENSE, weights(1, epochs=3, lr=1e-5, loss="mse"), DATA, READ_OFF,
                DIABETES, short=only("dense_read_off")),
    KnownAnswer("one logit, binary cross-entropy, one gradient of 1", network("one_logit"),
                gradient(1, loss="binary_cross_entropy"), DATA, READ_OFF, BREAST_CANCER,
                short=only("dense_read_off")),
    KnownAnswer("one logit, binary cross-entropy, one gradient of 4", network("one_logit"),
                gradient(4, loss="binary_cross_entropy"), DATA,
                "The first layer's update spans the samples, and the whole gradient determines them in this span.",
                BREAST_CANCER, short=only("gauss_newton", clients=1)),
    KnownAnswer("linear model, table, one gradient of 64", network("dense", hidden=[]), gradient(64), NO_SAMPLES,
                LINEAR, BREAST_CANCER,
                short=only(inverting(100))),
)  # fmt: skip

NOT_RECOVERABLE = (
    KnownAnswer("constant images, one gradient of 1", DENSE, gradient(1), NO_SAMPLES,
                "Everybody holds the same picture, so it is known without the message.",
                population("constant_images"), short=only("dense_read_off")),
    KnownAnswer("constant images, one gradient of 4", DENSE, gradient(4), NO_SAMPLES,
                "Everybody holds the same picture, so it is known without the message.",
                population("constant_images"), short=only("dense_read_off", inverting(50))),
    KnownAnswer("near-identical images, one gradient of 1", DENSE, gradient(1), NO_SAMPLES,
                "The pictures differ by less than one grey level, so any other person's picture shows them.",
                population("near_identical_images"), short=only("dense_read_off")),
    KnownAnswer("few pictures that many people hold, one gradient of 1", DENSE, gradient(1), DATA,
                "There are 40 pictures. A guess rarely names the right one, and the read-off always does.",
                population("few_pictures"), short=only("dense_read_off")),
    KnownAnswer("huge batch of 256, narrow MLP", network("dense", hidden=[24, 16], activation="gelu"),
                gradient(256), NOTHING, COUNTING, attacker=LABELS_KNOWN,
                short=only(inverting(60), clients=1)),
    KnownAnswer("huge batch of 512, CNN", network("convolutional", channels=[6, 6], activation="gelu"),
                gradient(512), NOTHING, COUNTING, attacker=LABELS_KNOWN, short=only(inverting(60), clients=1)),
    KnownAnswer("DP-SGD with epsilon 1, MLP, one gradient of 16", DENSE, gradient(16), NOTHING, PRIVATE, defences=DP,
                short=only("dense_read_off", inverting(60), clients=2)),
    KnownAnswer("DP-SGD with epsilon 1, CNN, 2 epochs on 16", CNN, weights(16, 2, 8), NOTHING, PRIVATE, defences=DP),
    KnownAnswer("huge noise, MLP, one gradient of 1", DENSE, gradient(1), NOTHING, DROWNED, defences=NOISE,
                short=only("dense_read_off", path(100), clients=3)),
    KnownAnswer("huge noise, CNN, one gradient of 4", CNN, gradient(4), NOTHING, DROWNED, defences=NOISE,
                short=only(path(150), clients=2)),
    KnownAnswer("top 10% of the gradient, MLP, one gradient of 1", DENSE, gradient(1), DATA,
                "The largest entries of the first layer's gradient are the sample's bright pixels. Matching them shows "
                "the digit.", defences=({"name": "top_k", "keep": 0.1},), short=only(inverting(300))),
    KnownAnswer("secure aggregation of 10 clients with 1 each, MLP", WIDE, gradient(1), DATA,
                "The sum is a gradient of 10 samples, and " + SPANS[0].lower() + SPANS[1:],
                defences=({"name": "secure_aggregation", "clients": 10},), short=only("two_spans", clients=1)),
    KnownAnswer("secure aggregation of 10 clients with 32 each, CNN",
                network("convolutional", channels=[6, 6], activation="gelu"), gradient(32), NOTHING, COUNTING,
                attacker=LABELS_KNOWN, defences=({"name": "secure_aggregation", "clients": 10},),
                short=only(inverting(60), clients=1)),
    KnownAnswer("hidden learning rate, MLP, 5 local steps on 1", DENSE, weights(1, epochs=5), DATA, READ_OFF,
                attacker={"hidden": ["lr"]}, short=only("dense_read_off")),
    KnownAnswer("hidden learning rate, CNN, 1 local step on 1", CNN, weights(1), DATA,
                "The last layer shows the learning rate of one step. " + COSINE, attacker={"hidden": ["lr"]},
                short=only(path(300), clients=1)),
    KnownAnswer("hidden learning rate, smooth CNN, 1 local step on 4", network("convolutional", activation="gelu"),
                weights(4), DATA, "The direction of one step is that of the gradient. " + COSINE,
                attacker={"hidden": ["lr"]}, short=only(path(400), clients=1)),
    KnownAnswer("hidden number of samples, MLP, one gradient of 4", DENSE, gradient(4), DATA,
                "The rank of the first layer's gradient is the number of samples.",
                attacker={"hidden": ["samples", "batch_size"]}, short=only("two_spans")),
)  # fmt: skip

OWN_MODELS = (
    KnownAnswer("own loss (focal), smooth CNN, one gradient of 1", network("convolutional", activation="gelu"),
                gradient(1, loss=own("focal")), DATA, COSINE, short=only(inverting(200))),
    KnownAnswer("own loss (multi-label), MLP, one gradient of 4", DENSE, gradient(4, loss=own("multi_label")), DATA,
                "Neurons that fire for one sample only are copies of it.", short=only("dense_read_off")),
    KnownAnswer("autoencoder, one gradient of 4", network("autoencoder"), gradient(4, loss=own("rebuilt")), DATA, WHOLE,
                short=only({"name": "gauss_newton", "starts": 3}, clients=1)),
    KnownAnswer("adapters between frozen layers, one gradient of 1", network("adapted"), gradient(1), DATA, WHOLE,
                short=only({"name": "gauss_newton", "starts": 2}, clients=2)),
    KnownAnswer("frozen body, trained head, one gradient of 1", network("frozen_body"), gradient(1), DATA,
                "The head's gradient holds the features, and the known body is inverted.",
                short=only(inverting(300), clients=1)),
    KnownAnswer("weight normalisation, one gradient of 1", network("weight_normed"), gradient(1), DATA, COSINE,
                short=only(inverting(300), clients=1)),
    KnownAnswer("black slices among digits, smooth CNN, one gradient of 4", network("convolutional", activation="gelu"),
                gradient(4), DATA, LBFGS, population("black_slices"),
                short=only({"name": "lbfgs_simulation", "retries": 1}, clients=2)),
    KnownAnswer("gradient clipped to 0.01, MLP, one gradient of 4", DENSE, gradient(4), DATA,
                "Clipping scales the gradient of each sample, so the first layer still spans the samples.",
                defences=({"name": "clipping", "norm": 0.01},), short=only(path(150), clients=2)),
    KnownAnswer("quantisation to 8 bits, MLP, one gradient of 4", DENSE, gradient(4), DATA,
                "Rounding to 255 levels leaves the direction of the gradient.",
                defences=({"name": "quantisation", "bits": 8},), short=only(path(150), clients=2)),
    KnownAnswer("rare words, linear model, one gradient of 8", network("dense", hidden=[]), gradient(8), DATA,
                "The columns of the gradient that are not zero are the words of the client.", population("rare_words"),
                short=only("word_read_off")),
    KnownAnswer("rare words, linear model, 3 local steps on 4", network("dense", hidden=[]), weights(4, epochs=3), DATA,
                "The columns of the update that are not zero are the words of the client.", population("rare_words"),
                short=only("word_read_off")),
    KnownAnswer("embeddings of categories, one gradient of 1", network("embedded"), gradient(1), DATA,
                "The rows of an embedding's gradient that are not zero are the client's categories.",
                population("codes"), short=only("embedding_read_off")),
    KnownAnswer("embeddings of categories, one gradient of 8", network("embedded"), gradient(8), DATA,
                "Two dense layers determine the embeddings of each row, and the embeddings name the categories.",
                population("codes"), short=only("embedding_read_off")),
    KnownAnswer("texts, mean of embeddings, one gradient of 4", network("of_words"), gradient(4), DATA, BAGS,
                population("texts"), short=only("embedding_read_off")),
    KnownAnswer("texts, mean of embeddings, 3 local steps on 4", network("of_words"), weights(4, epochs=3, lr=0.1),
                DATA, BAGS, population("texts"), short=only("embedding_read_off")),
    KnownAnswer("texts, mean of embeddings, Adam, 3 local steps on 4", network("of_words"),
                weights(4, epochs=3, optimiser="adam", lr=0.001), frozenset({*DATA, *LABELS}),
                "The rows of an embedding that Adam has changed are the client's words.", population("texts"),
                short=only("embedding_read_off")),
    KnownAnswer("texts, recurrent network, one gradient of 1", network("of_words", body="gru"), gradient(1), DATA,
                "The head's gradient holds the last state, which only the right order of the words gives.",
                population("texts"), short=only("embedding_read_off")),
    KnownAnswer("texts, recurrent network, one gradient of 16", network("of_words", body="gru"), gradient(16),
                frozenset({*DATA, *LABELS}), "The rows of the embedding that are not zero are the client's words.",
                population("texts"), short=only("embedding_read_off")),
)  # fmt: skip

#: Set-ups whose targets are no classes. The attacker does not know them, and they are solved for or optimised too.
HEADS = (
    KnownAnswer("several labels, CNN, one gradient of 1", CNN, gradient(1), DATA, COSINE, SEVERAL,
                short=only(inverting(200))),
    KnownAnswer("several labels, CNN, one gradient of 4", CNN, gradient(4), DATA, COSINE, SEVERAL),
    KnownAnswer("several labels, CNN, 4 local steps on 1", CNN, weights(1, epochs=4), DATA, COSINE, SEVERAL,
                short=only(inverting(100), clients=1)),
    KnownAnswer("several labels, smooth CNN, one gradient of 1", SMOOTH_CNN, gradient(1), DATA, LBFGS, SEVERAL,
                short=only("lbfgs_simulation", clients=1)),
    KnownAnswer("several labels, CNN, huge noise, one gradient of 1", CNN, gradient(1), NOTHING, DROWNED, SEVERAL,
                defences=NOISE, short=only(path(100), clients=2)),
    KnownAnswer("two numbers, CNN, one gradient of 1", CNN, gradient(1), DATA, COSINE, NUMBERS,
                short=only(inverting(200))),
    KnownAnswer("two numbers, mean absolute error, CNN, one gradient of 1", CNN, gradient(1, loss="l1"), DATA, COSINE,
                NUMBERS, short=only(inverting(200))),
    KnownAnswer("two numbers, Huber loss, smooth CNN, one gradient of 1", SMOOTH_CNN, gradient(1, loss="huber"), DATA,
                LBFGS, NUMBERS),
    KnownAnswer("own loss (shares), CNN, one gradient of 1", CNN, gradient(1, loss=own("shares")), DATA, COSINE,
                NUMBERS, short=only(inverting(200), clients=1)),
    KnownAnswer("mask of one object, smooth U-Net, one gradient of 1", network("unet"), gradient(1), DATA, MASKS,
                population("labelled_digits", targets="mask"),
                short=only({"name": "gauss_newton", "starts": 3}, clients=1)),
    KnownAnswer("mask of classes, smooth U-Net, one gradient of 1", network("unet"), gradient(1), DATA, MASKS,
                population("labelled_digits", targets="places")),
    KnownAnswer("mask of one object, ReLU U-Net, granted, one gradient of 1", network("unet", activation="relu"),
                gradient(1), DATA, COSINE, population("labelled_digits", targets="mask"), attacker=LABELS_KNOWN,
                short=only(inverting(200), clients=1)),
    KnownAnswer("mask of one object, ReLU U-Net, one gradient of 1", network("unet", activation="relu"), gradient(1),
                DATA, MASKS, population("labelled_digits", targets="mask"),
                needs="an attack that finds masks of networks with kinks"),
)  # fmt: skip

#: All known answers.
TABLE = (*TRANSFORMERS, *DENSE_NETWORKS, *CONVOLUTIONS, *TABLES, *OWN_MODELS, *HEADS, *NOT_RECOVERABLE)
