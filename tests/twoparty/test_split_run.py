"""``hofl split``: an ordinary run folder, the same bits after a stop, one line for a mistake."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import hofl
from hofl.cli.split import EXAMPLES
from hofl.experiment.launcher import prepared
from hofl.experiment.method import build_method
from hofl.experiment.runs import RunDirectory
from hofl.models.halves import Half
from hofl.twoparty import build
from hofl.twoparty.build import build_side, check_split
from hofl.twoparty.run import resume_split, run_split
from support.runs import adapter_bytes, run_cli, stop_at
from support.twoparty import SPLIT, split_config

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SPLIT)
def test_a_run_is_recorded_resumed_to_the_same_bits_and_loads(
    name: str, tiny_folder: Path, tmp_path: Path
) -> None:
    config = split_config(tiny_folder, name)
    whole = run_split(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_split(config, tmp_path / "stopped", stop_at(2))
    resumed = resume_split(tmp_path / "stopped")
    assert adapter_bytes(whole.path) == adapter_bytes(resumed.path)
    one, two = (RunDirectory(run.path).metrics() for run in (whole, resumed))
    assert [r.ledger for r in one] == [r.ledger for r in two]
    assert [len(r.cohort) for r in one] == [0, 2, 2, 2]
    assert one[0].scores
    assert one[3].scores
    totals = whole.record.ledger
    assert totals["act_up"]["bytes"] > 0
    assert ("grad_down" in totals) == (name == "ho-sfl")
    assert ("client_weights_up" in totals) == (name == "heron-sfl")
    assert resume_split(whole.path).summary == whole.summary
    loaded = whole.load()
    trained = [p for n, p in loaded.named_parameters() if "lora_B" in n]
    assert all(p.abs().sum() > 0 for p in trained), "both segments have moved"


def test_the_command_prints_the_ledger_and_the_adapter(tiny_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = tmp_path / "config.toml"
    config.write_text(
        f'rounds = 1\n[model]\nname = "{tiny_folder}"\n[fleet]\nclients = 2\ncohort = 1\n'
        "boundaries = [0.5]\n[task]\nbatch_size = 2\nmax_length = 48\n[engine]\nthreads = 1\n"
    )
    code, output = run_cli("split", str(config), "method.name=hosl", "--out", str(out))
    assert code == 0, output
    for text in ("act_up", "loss_down", "scalars_up", "adapter:"):
        assert text in output
    code, output = run_cli("run", "--resume", str(out))
    assert code == 0, "a finished run is shown by any command"


def test_mistakes_are_one_line(tiny_folder: Path, tmp_path: Path) -> None:
    def refused(name: str = "ho-sfl", processes: int = 0, **changes: Any) -> str:
        config = split_config(tiny_folder, name, **changes)
        with pytest.raises(hofl.HoflError) as error:
            run_split(config, tmp_path / "no", processes=processes)
        assert not (tmp_path / "no").exists()
        return str(error.value)

    assert "has no split workflow: choose one of ho-sfl, hosl, heron-sfl" in refused(
        method={"name": "fedavg", "workflow": "whole-model"}
    )
    assert "lies in 1..3, got 4" in refused(fleet={"boundaries": [4]})
    assert "set fleet.boundaries=[B]" in refused(fleet={"boundaries": [], "budgets": ["1GiB"]})
    assert "set adapter.kind=lora" in refused(adapter={"kind": "full"})
    assert "unknown workflow 'mail'" in refused(method={"workflow": "mail"})
    assert "'shared-steps' has no option 'speed'" in refused(method={"workflow": {"speed": 1}})
    assert "set fleet.dropout=0" in refused(fleet={"dropout": 0.1})
    for key, value, allowed in [
        ("method.proximal", 0.1, "0.0"),
        ("method.uplink_bits", 8, "32"),
        ("method.aggregation", "median", "mean"),
        ("server.min_answers", 2, "1"),
        ("server.max_scalar", 3.0, "inf"),
        ("server.max_ratio", 10.0, "1000.0"),
        ("server.wait", 5.0, "86400.0"),
    ]:
        section, _, option = key.partition(".")
        reason = f"{key}={value} has no effect in hofl split: set {key}={allowed}."
        assert refused(**{section: {option: value}}) == reason
    assert "server.divergence=false has no effect" in refused(server={"divergence": False})
    assert "set method.directions=gaussian" in refused(method={"directions": "curved"})
    assert "set method.estimator to forward or central" in refused(
        "hosl", method={"estimator": "forward-mode"}
    )
    head = {"name": "auxiliary-head", "rank": 2, "blocks": 3}
    assert "set method.surrogate.blocks to at most 2" in refused(
        "heron-sfl", method={"surrogate": head}
    )
    assert "or leave out --processes" in refused(processes=1, model={"weights": "random"})
    assert "set --processes to at most 4" in refused(processes=5)
    assert "set engine.device=cpu" in refused(processes=1, engine={"device": "cuda"})


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [("server.deadline", 3.0, "SERVER_READ"), ("method.mu", 0.5, "RULE_READ")],
)
def test_a_key_is_refused_until_a_workflow_reads_it(
    key: str, value: float, read: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is added later is refused, too, because nothing lists those without effect."""
    section, _, name = key.partition(".")
    config = split_config(tiny_folder, "ho-sfl", **{section: {name: value}})
    check_split(config, build_method(config))
    monkeypatch.setattr(build, read, getattr(build, read) - {name})
    with pytest.raises(hofl.HoflError, match=rf"{key}={value} has no effect in hofl split"):
        check_split(config, build_method(config))


def test_examples_that_are_printed_can_be_run() -> None:
    """Of the help and of the first page; their model is not loaded here."""
    printed = [*EXAMPLES["split"], *(ROOT / "docs" / "index.md").read_text().splitlines()]
    lines = [line for line in printed if re.match(r"hofl split (demo|sst2) ", line)]
    assert len(lines) == 2
    for line in lines:
        source, *changes = line.partition(" --out")[0].split()[2:]
        config = hofl.read_config(source, changes)
        check_split(config, build_method(config))


def test_every_role_starts_from_the_adapter_that_the_run_starts_from(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """A client process that began with a fresh adapter would send scalars of another bottom."""
    before = run_split(split_config(tiny_folder, "ho-sfl"), tmp_path / "before")
    simulation = prepared(
        split_config(tiny_folder, "ho-sfl", adapter={"start": str(before.adapter)})
    )
    for half in Half:
        model = build_side(simulation.config, half, 2).model.split
        assert torch.equal(model.w, simulation.start.w)
    fresh = prepared(split_config(tiny_folder, "ho-sfl")).start.w
    assert not torch.equal(fresh, simulation.start.w)


def test_a_split_run_and_another_are_not_resumed_as_each_other(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = split_config(tiny_folder, "ho-sfl")
    for run, other, hint in [
        (run_split, hofl.resume, "hofl split --resume"),
        (hofl.run, resume_split, "hofl run --resume"),
    ]:
        path = tmp_path / run.__name__
        with pytest.raises(KeyboardInterrupt):
            run(config, path, stop_at(2))
        with pytest.raises(hofl.HoflError, match=hint):
            other(path)


def test_the_saved_adapter_leaves_the_head_out(tiny_folder: Path, tmp_path: Path) -> None:
    result = run_split(split_config(tiny_folder, "heron-sfl"), tmp_path / "run")
    with safe_open(result.adapter / "adapter_model.safetensors", "pt") as file:
        names = list(file.keys())
    assert names
    assert not any("auxiliary" in name for name in names)
