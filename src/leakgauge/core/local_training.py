"""The local training of a client, as far as an attacker knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from leakgauge.core.checks import is_finite
from leakgauge.core.errors import InvalidInput, MissingKnowledge, UnknownName, shown
from leakgauge.core.limits import BETA, RECIPE, check_batches
from leakgauge.core.schedules import CONSTANT, Schedule, checked_schedule, factor_at

Mode = Literal["train", "eval"]
OptimiserName = Literal["sgd", "adam", "adamw"]
OPTIMISERS: tuple[OptimiserName, ...] = ("sgd", "adam", "adamw")
#: The settings that only some optimisers have.
OPTIONS_OF = {"sgd": ("momentum", "nesterov", "dampening"), "adam": ("betas", "eps"), "adamw": ("betas", "eps")}
#: The settings that every report lists. The others are listed if they differ from their defaults.
ALWAYS_LISTED = ("lr", "epochs", "batch_size", "samples", "weight_decay", "loss", "mode")
#: The settings with an effect on a single gradient (FedSGD).
OF_ONE_GRADIENT = ("samples", "loss", "mode", "label_smoothing", "clip_norm")
LONGEST_LOSS = 200


@dataclass(frozen=True)
class LocalTraining:
    """The known settings of a client's local training. ``None`` stands for an unknown setting.

    The defaults are plain SGD. The formulas are in :mod:`leakgauge.federation.update_rules`.

    Args:
        lr: The learning rate.
        epochs: The number of passes over the client's samples.
        local_steps: The number of batches in a round, after which the client stops within an epoch. ``epochs`` is then
            the number of epochs that the client begins. By default, every epoch is finished.
        batch_size: The number of samples in a batch. The last batch of an epoch may be smaller.
        samples: The number of the client's samples.
        momentum: The momentum of SGD.
        weight_decay: The weight decay. SGD and Adam add it to the gradient, and AdamW applies it separately.
        loss: The name of the loss, from :data:`leakgauge.federation.losses.LOSSES`.
        mode: The mode of the client's model, "train" (with batch statistics and dropout) or "eval".
        optimiser: The optimiser, "sgd", "adam" or "adamw". The client starts each round with a new optimiser state.
        nesterov: Whether SGD uses Nesterov's momentum.
        dampening: The dampening of SGD's momentum.
        betas: The two decay rates of Adam and AdamW.
        eps: The number that Adam and AdamW add to the denominator.
        schedule: The factors of the learning rate over the local steps (:mod:`leakgauge.core.schedules`).
        clip_norm: The norm to which the gradient of a step is clipped, as by ``clip_grad_norm_``. 0 means no clipping.
        proximal: The weight mu of FedProx's term ``mu / 2 |w - w_sent|^2`` (Li et al. 2020). 0 means plain FedAvg.
        label_smoothing: The share of each label that is spread over all classes.
        accumulation: The number of batches whose mean gradient makes one step. The last step of an epoch may use
            fewer.
    """

    lr: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    samples: int | None = None
    momentum: float | None = 0.0
    weight_decay: float | None = 0.0
    loss: str = "cross_entropy"
    mode: Mode = "train"
    optimiser: OptimiserName | None = "sgd"
    nesterov: bool | None = False
    dampening: float | None = 0.0
    betas: tuple[float, float] | None = (0.9, 0.999)
    eps: float | None = 1e-8
    schedule: Schedule | None = CONSTANT
    clip_norm: float | None = 0.0
    proximal: float | None = 0.0
    label_smoothing: float | None = 0.0
    accumulation: int | None = 1
    local_steps: int | None = None

    def __post_init__(self) -> None:
        for name, limit in RECIPE.items():
            value = getattr(self, name)
            if value is not None:  # stored as a plain number, which JSON can hold
                object.__setattr__(self, name, limit.checked(name, value))
        if self.samples is not None and self.batch_size is not None:
            check_batches(self.samples, self.batch_size, self.epochs or 1)
        self._check_local_steps()
        self._check_names()
        self._check_optimiser()
        if self.schedule is not None:
            object.__setattr__(self, "schedule", checked_schedule(self.schedule))

    def _check_local_steps(self) -> None:
        if self.local_steps is None:
            return
        if (self.accumulation or 1) > 1:
            raise InvalidInput("local_steps count batches, so they cannot be combined with accumulation. Set epochs.")
        if self.samples is None or self.batch_size is None:
            return
        begun = -(-self.local_steps // len(self.batch_sizes))
        check_batches(self.samples, self.batch_size, begun)
        if self.epochs is None:
            object.__setattr__(self, "epochs", begun)
        elif self.epochs != begun:
            raise InvalidInput(
                f"{self.local_steps} local steps begin {begun} epochs of {len(self.batch_sizes)} batches, not "
                f"{self.epochs}. Set epochs or local_steps, but not both."
            )

    def _check_names(self) -> None:
        if not isinstance(self.loss, str) or not 0 < len(self.loss) <= LONGEST_LOSS:
            raise InvalidInput(f"loss must be the name of a loss, not {shown(self.loss)}")
        if self.mode not in ("train", "eval"):
            raise InvalidInput(f"mode must be 'train' or 'eval', not {shown(self.mode)}")
        if self.optimiser is not None and self.optimiser not in OPTIMISERS:
            raise UnknownName("optimiser", self.optimiser, OPTIMISERS)

    def _check_optimiser(self) -> None:
        if self.nesterov is not None and not isinstance(self.nesterov, bool):
            raise InvalidInput(f"nesterov must be True or False, not {shown(self.nesterov)}")
        if self.nesterov and (self.momentum == 0 or self.dampening):
            raise InvalidInput("Nesterov's momentum needs a momentum above 0 and no dampening, as in torch.optim.SGD")
        if self.betas is not None:
            betas = tuple(self.betas) if isinstance(self.betas, (tuple, list)) else ()
            if len(betas) != 2 or not all(map(is_finite, betas)):
                raise InvalidInput(f"betas must be two numbers in [0, 1), not {shown(self.betas)}")
            object.__setattr__(self, "betas", tuple(BETA.checked("each of the betas", beta) for beta in betas))
        if self.optimiser in ("adam", "adamw"):
            for name in ("momentum", "nesterov", "dampening"):
                if getattr(self, name):
                    raise InvalidInput(f"{name} is a setting of SGD, but the optimiser is {self.optimiser}. Set betas.")

    @property
    def is_sgd(self) -> bool:
        """Whether the optimiser is SGD, whose steps are linear in the gradients. An unknown optimiser counts as SGD."""
        return self.optimiser in (None, "sgd")

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The sizes of the batches of one epoch. The last batch may be smaller."""
        samples, size = self.need("samples"), self.need("batch_size")
        full, rest = divmod(int(samples), int(size))
        return (int(size),) * full + ((rest,) if rest else ())

    @property
    def batches_of_steps(self) -> tuple[int, ...]:
        """The number of batches in each local step of one epoch. It is 1 unless gradients are accumulated."""
        each = self.accumulation or 1
        full, rest = divmod(len(self.batch_sizes), each)
        return (each,) * full + ((rest,) if rest else ())

    @property
    def steps(self) -> int:
        """The number of local steps in all epochs."""
        if self.local_steps is not None:
            return self.local_steps
        return len(self.batches_of_steps) * int(self.need("epochs"))

    @property
    def finishes_epochs(self) -> bool:
        """Whether the client finishes every epoch. It does not if it stops after some local steps of an epoch."""
        if self.local_steps is None or None in (self.samples, self.batch_size):
            return self.local_steps is None
        return self.local_steps % len(self.batch_sizes) == 0

    def factor(self, step: int) -> float:
        """Return the schedule's factor of the learning rate at one local step. It is 1 if the schedule is unknown.

        Args:
            step: The index of the local step, from 0.
        """
        if self.schedule in (None, CONSTANT):
            return 1.0
        assert self.schedule is not None
        if isinstance(self.schedule, tuple):
            return factor_at(self.schedule, step, 1, 0, 1)
        per_epoch, epochs = len(self.batches_of_steps), int(self.need("epochs"))
        return factor_at(self.schedule, step, self.steps, step // per_epoch, epochs)

    @property
    def factors(self) -> tuple[float, ...]:
        """The factors of the learning rate, one for each local step."""
        return tuple(self.factor(step) for step in range(self.steps))

    @property
    def applied_gradients(self) -> float:
        """The number of times that local training applies a gradient with the rate ``lr``, added up over all steps.

        If every step has the same gradient ``g``, SGD changes the weights by ``applied_gradients * lr * g``. For plain
        SGD, the result is the number of steps. With a schedule, each step counts with its factor. With momentum ``m``,
        later steps apply a gradient again. A gradient then counts as ``1+m+...+m^s`` gradients, where ``s`` is the
        number of later steps.
        For Adam, the result is the sum of the schedule's factors.
        """
        momentum, steps = float(self.momentum or 0.0), self.steps
        plain = self.schedule in (None, CONSTANT)
        if plain and (not momentum or not self.is_sgd):
            return steps
        if plain and not self.nesterov and not self.dampening:
            return sum((1 - momentum ** (steps - step)) / (1 - momentum) for step in range(steps))
        total = velocity = 0.0
        for step in range(steps):  # the recurrence of SGD with a gradient of 1 in every step
            velocity = 1.0 if step == 0 else momentum * velocity + 1 - float(self.dampening or 0.0)
            applied = 1.0 if not momentum else 1 + momentum * velocity if self.nesterov else velocity
            total += self.factor(step) * applied
        return total

    @property
    def kept_share(self) -> float:
        """The factor with which weight decay alone multiplies the weights in all local steps of SGD.

        SGD with weight decay returns the sent weights times this factor, minus a weighted sum of gradients. The factor
        is 1 without weight decay.
        """
        decay, momentum = float(self.weight_decay or 0.0), float(self.momentum or 0.0)
        if not decay:
            return 1.0
        weight, velocity = 1.0, 0.0
        for step in range(self.steps):  # the recurrence of SGD with gradients of zero
            gradient = decay * weight
            fresh = gradient if step == 0 else (1 - float(self.dampening or 0.0)) * gradient
            velocity = momentum * velocity + fresh
            applied = gradient + momentum * velocity if self.nesterov else velocity
            weight -= self.need("lr") * self.factor(step) * (applied if momentum else gradient)
        return weight

    def listed(self, *, one_gradient: bool = False) -> dict[str, Any]:
        """Return the settings that have an effect, as a dictionary for reports.

        Settings of other optimisers are left out, and so are rarely used settings that have their default.

        Args:
            one_gradient: Whether the client sends one gradient, on which most settings have no effect.
        """
        options = {name for names in OPTIONS_OF.values() for name in names}
        own = {"momentum"} if self.optimiser is None else set(OPTIONS_OF[self.optimiser])
        always = {*ALWAYS_LISTED, *own - {"nesterov", "dampening"}}
        listed = {}
        for name, value in vars(self).items():
            default = getattr(type(self), name)
            if name in (options - own) or (one_gradient and name not in OF_ONE_GRADIENT):
                continue
            if name in always or value != default:
                listed[name] = value
        return listed

    def need(self, name: str) -> float:
        """Return a setting, or raise :class:`~leakgauge.core.errors.MissingKnowledge` if the setting is unknown."""
        value = getattr(self, name)
        if value is None:
            raise MissingKnowledge(
                f"this attack needs the client's {name}, which this observation does not have. "
                f"Supply it with observation.knowing({name}=...), or with --know {name}=... on the command line."
            )
        return float(value) if isinstance(value, float) else int(value)
