"""Configurations: reading, changing and refusing them, and the methods they name."""

from pathlib import Path

import pytest

import hofl
from hofl.core.errors import HoflError
from hofl.experiment.config import parse_config, read_config
from hofl.experiment.method import build_method
from hofl.methods import method
from hofl.sampling.policies import Uniform
from hofl.sampling.water_filling import WaterFilling

TEXT = """
name = "small"
seed = 11
[model]
name = "some/model"
[fleet]
clients = 9
cohort = 3
boundaries = [1, 2, 3]
[method]
name = "fedprox"
lr = 2e-4
[server]
max_norm = 10
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def message(values: dict) -> str:
    """What is said about a configuration that must be refused."""
    with pytest.raises(HoflError) as caught:
        parse_config(values)
    return str(caught.value)


def test_file_gives_its_values_and_defaults_for_the_rest(file: Path):
    config = read_config(str(file))
    assert (config.name, config.seed, config.model.name) == ("small", 11, "some/model")
    assert (config.fleet.clients, config.fleet.cohort) == (9, 3)
    assert config.fleet.boundaries == (1, 2, 3)
    assert (config.method.name, config.method.q) == ("fedprox", None)
    assert config.method.optimizer == {"lr": 2e-4}
    assert config.server.max_norm == 10.0
    assert (config.rounds, config.adapter.rank, config.adapter.alpha) == (160, 8, 16)  # the paper's
    assert read_config(str(file)) == config


@pytest.mark.parametrize(
    ("change", "section", "key", "value"),
    [
        ("rounds=3", None, "rounds", 3),
        ("name=other", None, "name", "other"),
        ('name="1"', None, "name", "1"),
        ("method.optimizer={lr = 1e-3}", "method", "optimizer", {"lr": 1e-3}),
        ("method.optimizer.lr=1e-3", "method", "optimizer", {"lr": 1e-3}),
        ("method.lr=1e-3", "method", "optimizer", {"lr": 1e-3}),
        ("method.policy=uniform", "method", "policy", "uniform"),
        ("method.beta=0.5", "method", "policy", {"beta": 0.5}),
        ("method.name=hofl", "method", "name", "hofl"),
        ("method.shared_directions=true", "method", "directions", {"shared": True}),
        ("fleet.boundaries=[4, 5]", "fleet", "boundaries", (4, 5)),
        ("fleet.dropout=0.25", "fleet", "dropout", 0.25),
        ('adapter.targets=["q", "v"]', "adapter", "targets", ("q", "v")),  # a section not in TEXT
        ("model.name=folder/with=sign", "model", "name", "folder/with=sign"),
        ("server.max_scalar=inf", "server", "max_scalar", float("inf")),
    ],
)
def test_change_replaces_one_value_with_its_type(file: Path, change, section, key, value):
    before, after = read_config(str(file)), read_config(str(file), [change])
    holder = getattr(after, section) if section else after
    assert getattr(holder, key) == value
    assert type(getattr(holder, key)) is type(value)
    left, right = before.model_dump(), after.model_dump()
    (left[section] if section else left).pop(key)
    (right[section] if section else right).pop(key)
    assert left == right


def test_a_key_can_be_removed(file: Path):
    """Water-filling over a configuration that sets beta, which it does not take."""
    change = ["method.policy=water-filling", "method.weight=2", "method.beta=0.5"]
    with pytest.raises(HoflError, match=r"no option 'beta'.*~method\.policy\.beta"):
        read_config(str(file), change)
    for removal in ("~method.policy.beta", "~method.beta"):
        chosen = build_method(read_config(str(file), [*change, removal]))
        assert chosen.policy == WaterFilling(2.0)


@pytest.mark.parametrize(
    "changes",
    [
        ["method.policy=water-filling", "method.weight=2", "method.floor=0.1"],
        ["method.weight=2", "method.floor=0.1", "method.policy=water-filling"],
        ["method.policy.weight=2", "method.policy.floor=0.1", "method.policy.name=water-filling"],
        ['method.policy={name = "water-filling", weight = 2, floor = 0.1}'],
    ],
    ids=["flat", "name last", "nested", "table"],
)
def test_a_part_can_be_given_flat_or_as_a_table_in_any_order(
    file: Path, changes: list[str], caplog: pytest.LogCaptureFixture
):
    assert build_method(read_config(str(file), changes)).policy == WaterFilling(2.0, 0.1)
    notes = [record.getMessage() for record in caplog.records]
    flat = any("method.weight" in change for change in changes)
    assert ("note: method.weight is now method.policy.weight." in notes) == flat


def test_a_part_given_by_name_replaces_the_files_table_with_its_options(tmp_path: Path):
    path = tmp_path / "nested.toml"
    path.write_text('[model]\nname = "m"\n[method.policy]\nbeta = 0.5\n')
    assert build_method(read_config(str(path), ["method.policy=uniform"])).policy == Uniform()
    changes = ["method.policy.weight=2", "method.policy=water-filling"]
    assert build_method(read_config(str(path), changes)).policy == WaterFilling(2.0)


@pytest.mark.parametrize(
    "section", [{"policy": 3}, {"policy": 3, "beta": 0.5}, {"optimizer": True}]
)
def test_a_part_of_another_type_is_one_line(section: dict):
    assert "a name or a table" in message({"model": {"name": "m"}, "method": section})


def test_a_change_replaces_what_the_file_says_flat_or_nested(file: Path):
    assert build_method(read_config(str(file))).local.optimizer.lr == 2e-4
    for change in ("method.lr=3e-3", "method.optimizer.lr=3e-3"):
        assert build_method(read_config(str(file), [change])).local.optimizer.lr == 3e-3
    with pytest.raises(HoflError, match=r"lr and optimizer\.lr are the same option"):
        parse_config({"model": {"name": "m"}, "method": {"lr": 1.0, "optimizer": {"lr": 2.0}}})


def test_later_change_wins(file: Path):
    assert read_config(str(file), ["rounds=3", "rounds=4"]).rounds == 4


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("rounds", "'rounds'.*key=value"),
        ("=3", "'=3'.*key=value"),
        ("~rounds=3", "'~rounds=3'.*~key"),
        ("~", "'~'.*~key"),
        ("~method.eps", "cannot remove 'method.eps': the configuration does not set it"),
        ("seed.x=3", "'seed.x'.*'seed' is a value"),
        ("rounds=many", "rounds = 'many'"),
        ("method.lr=", "lr must be a finite number, got ''"),
        ("method.learning_rat=3", "method.learning_rat"),
        ("fleet.cohort=0", "fleet.cohort = 0: .*greater than or equal to 1"),
    ],
)
def test_bad_change_is_reported_with_its_key(file: Path, change: str, expected: str):
    with pytest.raises(HoflError, match=expected):
        read_config(str(file), [change])


@pytest.mark.parametrize(
    ("values", "name", "suggestion"),
    [
        ({"roundz": 3}, "roundz", "rounds"),
        ({"fleet": {"clinets": 3}}, "fleet.clinets", "clients"),
        ({"method": {"local_step": 3}}, "method.local_step", "local_steps"),
        ({"servr": {}}, "servr", "server"),
        ({"custom": {"trian": "x"}}, "custom.trian", "train"),
        ({"fleet": {"planned": [{"budgit": "1"}]}}, "fleet.planned.0.budgit", "budget"),
        ({"fleet": {"changes": [{"rond": 1}]}}, "fleet.changes.0.rond", "round"),
    ],
)
def test_unknown_key_suggests_the_close_one(values: dict, name: str, suggestion: str):
    shown = message({"model": {"name": "m"}, **values})
    assert f"unknown key {name!r}, did you mean {suggestion!r}?" in shown


def test_unknown_key_without_a_close_one_lists_the_allowed_ones():
    shown = message({"model": {"name": "m"}, "engine": {"zzz": 1}})
    assert "unknown key 'engine.zzz', allowed are device, workers, threads" in shown


def test_all_problems_are_reported_at_once():
    shown = message({"rounds": 0, "seed": -1, "fleet": {"dropout": 1.0, "cohorts": 2}, "model": {}})
    for part in ("rounds = 0", "seed = -1", "fleet.dropout = 1.0", "'cohort'", "'model.name'"):
        assert part in shown
    assert shown.count(";") == 4
    assert "\n" not in shown


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("model", {"nam": "m"}),
        ("fleet", {"cohorts": 2, "dropout": 1.0}),
        ("fleet", {"devices": [{"memry": "1GiB"}]}),
        ("method", {"policy": 3}),
        ("evaluation", {"every": "5"}),
    ],
)
def test_mistakes_in_python_give_the_sentence_of_a_file(section: str, values: dict):
    """Whether a section is made by itself or inside the whole."""
    model = {} if section == "model" else {"model": {"name": "m"}}
    expected = message({**model, section: values})
    for make in (
        lambda: getattr(hofl, f"{section.title()}Config")(**values),
        lambda: hofl.ExperimentConfig(**model, **{section: values}),
    ):
        with pytest.raises(HoflError) as caught:
            make()
        assert str(caught.value) == expected


def test_missing_model_is_named():
    assert "'model.name' is required" in message({"model": {}})
    assert "'model' is required" in message({})


def test_invalid_toml_is_reported_with_file_and_place(tmp_path: Path):
    path = tmp_path / "broken.toml"
    path.write_text('name = "x"\nrounds = = 3\n', encoding="utf-8")
    with pytest.raises(HoflError, match=r"broken\.toml is not valid TOML: .*line 2"):
        read_config(str(path))


def test_file_that_cannot_be_read_is_reported_with_the_recipes(tmp_path: Path):
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"name = '\xff\xfe'")
    for source, reason in (
        (tmp_path / "absent.toml", "No such file"),
        (tmp_path, "Is a directory"),
        (binary, "not a text file"),
    ):
        with pytest.raises(HoflError, match=f"{source.name}.*{reason}.*recipes: .*demo"):
            read_config(str(source))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "fedsgd"}, "unknown method 'fedsgd'.*hofl, .*fedavg"),
        ({"name": "hofl", "learning_rate": 1}, "no option 'learning_rate'.*lr"),
        ({"name": "hofl", "clip_norm": 1.0}, "clip_norm couples"),
        ({"name": "mezo", "beta1": 0.5}, "sgd has no option .*beta1"),
    ],
)
def test_bad_method_is_refused_with_what_is_allowed(changes: dict, expected: str):
    with pytest.raises(HoflError, match=expected):
        method(**changes)
