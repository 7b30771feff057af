import pytest

from leakgauge.attacks import agic_epochs, awa, build, local_model
from leakgauge.core.errors import FileError, InvalidInput, UnknownName
from leakgauge.federation.defences import GaussianNoise, LaplacianNoise, RandomPruning
from leakgauge.reproduction.federations import PARTITIONS
from leakgauge.reproduction.inferences import OWN_MODELS, WITHOUT_MODEL
from leakgauge.reproduction.kinds import KINDS
from leakgauge.reproduction.kinds.labels import label_estimator
from leakgauge.reproduction.kinds.local_models import MEASURES
from leakgauge.reproduction.kinds.together import attack_of
from leakgauge.reproduction.kinds.weight_search import SEARCH_OPTIONS
from leakgauge.reproduction.metrics import row_metric
from leakgauge.reproduction.rows import Short, find_rows, papers

ROWS = [row for paper in papers() for row in find_rows(paper)]


def without(options, *names):
    return {name: value for name, value in options.items() if name not in names}


def build_local_model(method):
    if method.attack not in (*WITHOUT_MODEL, *OWN_MODELS):
        local_model.build(method.attack, **method.options)


#: For each kind, a function that refuses a method with unknown names or options.
CHECKS = {
    "reconstruction": lambda method: build(method.attack, **method.options),
    "together": attack_of,
    "stopping": attack_of,
    "search": lambda method: awa(**without(method.options, *SEARCH_OPTIONS)),
    "matching": lambda method: agic_epochs(**method.options),
    "epochs": lambda method: (
        agic_epochs(**without(method.options, "epochs"))
        if method.attack == "agic_epochs"
        else build(method.attack, **without(method.options, "epochs"))
    ),
    "labels": lambda method: label_estimator(method.options),
    "linear": lambda method: local_model.build(method.attack, **without(method.options, "size", "epochs", "observed")),
    "local_models": build_local_model,
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paper}/{row.name}")
def test_every_row_names_things_that_exist(row):
    assert row.setting.tables.keys() <= KINDS[row.kind].tables
    assert row.setting.data.get("partition", "iid") in PARTITIONS
    assert set(row.measuring.get("measures", [])) <= MEASURES.keys()
    row.setting.chain  # noqa: B018
    row.shortened()
    for method in row.methods.values():
        CHECKS[row.kind](method)
        for metric in row.published(method):
            row_metric(metric)


def test_there_are_rows_for_every_table():
    assert {row.table for row in ROWS if row.paper == "lmra"} == {
        "authors",
        "defences",
        "linear",
        "quick",
        "table1",
        "table9",
        "table10",
        "theory",
        *(f"figure{number}" for number in (2, 3, 4, 6, 7)),
    }


def test_rows_are_found_by_name_and_by_table():
    assert [row.name for row in find_rows("dlf", "table1/femnist-10x5x50")] == ["table1/femnist-10x5x50"]
    assert len(find_rows("dlf", "table1")) == 10
    row = find_rows("dlf", "table1/femnist-10x5x50")[0]
    assert list(row.methods) == ["prior", "no-prior", "shared", "fedsgd-epoch", "fedsgd", "fast", "fast-30"]
    assert row.methods["prior"].published == {"recovered": 0.655, "psnr": 21.5}
    assert row.methods["fast"].published == {}
    assert row.published(row.methods["fast"]) == row.methods["prior"].published


def test_defended_rows_have_the_defences_of_their_names():
    rows = find_rows("dlf", "defended")
    assert {row.name.removeprefix("defended/"): row.setting.chain for row in rows} == {
        "femnist-gaussian-0.01": (GaussianNoise(0.01),),
        "femnist-gaussian-0.03": (GaussianNoise(0.03),),
        "femnist-laplacian-0.01": (LaplacianNoise(0.01),),
        "femnist-laplacian-0.02": (LaplacianNoise(0.02),),
        "femnist-pruning-0.2": (RandomPruning(0.2),),
        "femnist-pruning-0.5": (RandomPruning(0.5),),
    }
    assert not any(row.setting.exposure["knows_defence"] for row in rows)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'dlf'"):
        find_rows("dfl")
    with pytest.raises(UnknownName, match="did you mean 'table1/femnist-10x5x50'"):
        find_rows("dlf", "table1/femnist-10x5x5")
    with pytest.raises(UnknownName, match="did you mean 'prior'"):
        find_rows("dlf", "table1/femnist-10x5x50")[0].method("priors")


HEAD = '[row]\ntitle = "t"\nkind = "labels"\n'
SETUP = '[model]\nname = "lenet"\n[data]\nname = "digits"\n'
METHOD = "[methods.a]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no toml [", r"row\.toml"),
        (SETUP + METHOD, r"row\.toml: \[row\] needs a title"),
        (HEAD + SETUP, "needs at least one method"),
        (HEAD + METHOD + "[model]\nname = 'lenet'\n", r"\[data\] needs one of"),
        (HEAD + METHOD + "[data]\nname = 'digits'\n", r"\[model\] needs a name"),
        (HEAD + SETUP + "[methods.a]\nattak = 'x'", r"\[methods.a\].*'attak'; did you mean 'attack'"),
        (HEAD + SETUP + METHOD + "[training]\nlearning_rate = 1", r"\[training\].*'learning_rate'"),
        (HEAD + SETUP + METHOD + "[training]\nepochs = 'two'", r"\[training\] epochs must be"),
        (HEAD + SETUP + METHOD + "[trainings]\nepochs = 2", r"'trainings'; did you mean 'training'"),
        (HEAD + SETUP + METHOD + "[short]\nrounds = 2", r"\[short\].*'rounds'"),
        (HEAD + SETUP + METHOD + "[short]\nfederation = { round = 2 }", r"\[short\] federation.*'round'"),
        (HEAD + 'timed_against = "b"\n' + SETUP + METHOD, r"\[row\] timed_against"),
        (HEAD + SETUP + METHOD + 'compared_with = "b"', r"\[methods.a\] compared_with"),
        (HEAD + SETUP + METHOD + "[[defence]]\n[[defence]]\n", r"at most one \[\[defence\]\]"),
        (HEAD + SETUP + METHOD + '[[defence]]\nchain = [{ name = "gausian_noise" }]', "did you mean 'gaussian_noise'"),
    ],
)
def test_mistakes_in_a_row_are_named_with_their_table(tmp_path, monkeypatch, text, message):
    monkeypatch.setenv("LEAKGAUGE_BENCHMARKS", str(tmp_path))
    path = tmp_path / "mine" / "table" / "row.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        find_rows("mine")


def test_a_missing_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAKGAUGE_BENCHMARKS", str(tmp_path / "nowhere"))
    with pytest.raises(FileError, match="LEAKGAUGE_BENCHMARKS"):
        papers()


def test_a_row_may_have_a_short_setting():
    (row,) = find_rows("agic", "table4/cifar10-b1")
    assert row.short == Short(1000, 2)
    (row,) = find_rows("dlf", "table1/femnist-10x5x50")
    assert row.short == Short()
    (row,) = find_rows("lmra", "table1/diabetes-bn")
    short = row.shortened().setting
    assert short.model["options"] == {"hidden": [64, 64, 64], "batch_norm": True}
    assert short.federation == {"clients": 10, "rounds": 200, "every": 2}
    assert row.setting.federation["rounds"] == 1000
