import pytest

from leakgauge.attacks import agic_epochs, awa, build
from leakgauge.attacks.inversion.labels import LastLayer
from leakgauge.core.errors import CorruptFile, FileError, UnknownName
from leakgauge.federation.defences import GaussianNoise, LaplacianNoise, RandomPruning
from leakgauge.reproduction import federations as watched
from leakgauge.reproduction.kinds.many_clients import TOGETHER, attack_of
from leakgauge.reproduction.kinds.weight_search import OPTIONS
from leakgauge.reproduction.rows import find_rows, papers
from leakgauge.reproduction.runner import KINDS
from leakgauge.reproduction.setting import KEYS, defences_of

# the rows of LMRA are of kinds of their own: test_local_models.py
ROWS = [row for paper in papers() if paper != "lmra" for row in find_rows(paper)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paper}/{row.name}")
def test_every_row_names_things_that_exist(row):
    assert row.kind in KINDS or row.kind in TOGETHER
    assert row.setting.keys() <= KEYS
    assert row.methods
    defences_of(row.setting)
    for method in row.methods.values():
        if row.kind == "reconstruction":
            build(method.attack, **method.options)
        elif row.kind in TOGETHER:
            attack_of(method)
        elif row.kind == "search":
            awa(**{name: value for name, value in method.options.items() if name not in OPTIONS})
        elif method.attack == "agic_epochs":
            agic_epochs(**{name: value for name, value in method.options.items() if name != "epochs"})
        elif row.kind == "epochs":
            build(method.attack, **{name: value for name, value in method.options.items() if name != "epochs"})
        else:
            LastLayer(**{name: value for name, value in method.options.items() if name != "refine"})


def test_rows_are_found_by_name_and_by_table():
    assert [row.name for row in find_rows("dlf", "table1/femnist-10x5x50")] == ["table1/femnist-10x5x50"]
    assert len(find_rows("dlf", "table1")) == 10
    methods = find_rows("dlf", "table1/femnist-10x5x50")[0].methods
    assert list(methods) == ["prior", "no-prior", "shared", "fedsgd-epoch", "fedsgd", "fast", "fast-30"]
    assert methods["prior"].published == {"recovered": 0.655, "psnr": 21.5}


def test_defended_rows_have_the_defences_of_their_names():
    found = {row.name.removeprefix("defended/"): defences_of(row.setting) for row in find_rows("dlf", "defended")}
    assert found == {
        "femnist-gaussian-0.01": (GaussianNoise(0.01),),
        "femnist-gaussian-0.03": (GaussianNoise(0.03),),
        "femnist-laplacian-0.01": (LaplacianNoise(0.01),),
        "femnist-laplacian-0.02": (LaplacianNoise(0.02),),
        "femnist-pruning-0.2": (RandomPruning(0.2),),
        "femnist-pruning-0.5": (RandomPruning(0.5),),
    }


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'dlf'"):
        find_rows("dfl")
    with pytest.raises(UnknownName, match="did you mean 'table1/femnist-10x5x50'"):
        find_rows("dlf", "table1/femnist-10x5x5")
    with pytest.raises(UnknownName, match="did you mean 'prior'"):
        find_rows("dlf", "table1/femnist-10x5x50")[0].method("priors")


def test_a_row_that_is_none_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("LEAKGAUGE_BENCHMARKS", str(tmp_path))
    path = tmp_path / "mine" / "table" / "row.toml"
    path.parent.mkdir(parents=True)
    for text in ("no toml [", 'title = "t"', 'title = "t"\nkind = "k"\nsetting = {}\n[methods.a]\nattak = "x"'):
        path.write_text(text)
        with pytest.raises(CorruptFile, match=r"row\.toml: not a benchmark row"):
            find_rows("mine")
    monkeypatch.setenv("LEAKGAUGE_BENCHMARKS", str(tmp_path / "nowhere"))
    with pytest.raises(FileError, match="LEAKGAUGE_BENCHMARKS"):
        papers()


def test_a_row_may_have_a_short_setting():
    (row,) = find_rows("agic", "table4/cifar10-b1")
    assert row.short == {"steps": 1000, "clients": 2}
    (row,) = find_rows("dlf", "table1/femnist-10x5x50")
    assert row.short == {}
    for row in find_rows("lmra"):
        assert row.short.get("setting", {}).keys() <= watched.KEYS
