import pytest
import torch

from leakgauge.attacks.inversion.heads import Classes, Numbers, OneHot, Places, YesNo

HEADS = {
    "classes": Classes(4),
    "one-hot": OneHot(4),
    "places": Places(3, (2, 5)),
    "labels": YesNo((4,)),
    "mask": YesNo((2, 5)),
    "channels": YesNo((3, 2, 5)),
    "number": Numbers(()),
    "numbers": Numbers((4,), torch.tensor([[1.0, 2.0, 3.0, 4.0]]), 10.0),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_targets_can_be_differentiated_and_equal_variables_fit_every_place(head):
    variables = torch.randn(2, *head.variables).requires_grad_()
    targets = head.targets(variables)
    (slope,) = torch.autograd.grad((targets * torch.randn_like(targets)).sum(), variables)
    assert slope.abs().max() > 0
    assert torch.zeros(1, *head.shared).expand(2, *head.variables).shape == variables.shape


@pytest.mark.parametrize(
    ("head", "variables", "decided"),
    [
        (Classes(3), [[0.0, 2.0, 1.0]], [1]),
        (OneHot(3), [[0.0, 2.0, 1.0]], [[0.0, 1.0, 0.0]]),
        (Places(2, (2,)), [[[0.0, 3.0], [1.0, -1.0]]], [[1, 0]]),
        (YesNo((3,)), [[-1.0, 0.5, 4.0]], [[0.0, 1.0, 1.0]]),
        (Numbers((), 5.0, 2.0), [1.5], [8.0]),
    ],
)
def test_the_decision_has_the_form_of_the_clients_targets(head, variables, decided):
    result = head.decided(torch.tensor(variables))
    assert result.tolist() == decided


def test_probabilities_add_up_to_one_in_each_place():
    targets = Places(3, (2, 5)).targets(torch.randn(4, 3, 2, 5))
    torch.testing.assert_close(targets.sum(1), torch.ones(4, 2, 5))
