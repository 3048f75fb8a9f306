"""Held-out examples of every client: what is kept out, how it is scored, what it leaves alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

import hofl
from hofl.core.errors import HoflError
from hofl.data.partition import Pool, dirichlet, iid
from hofl.data.shards import hold_out, subset
from hofl.data.task import LabelWords
from hofl.evaluation.clients import evaluate_clients
from hofl.experiment.build import build_simulation
from support.models import tiny
from support.number_texts import number_set
from support.runs import adapter_bytes, quick
from support.word_scores import WORDS, prompts, word_loss, word_scores


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 0.99])
def test_every_shard_is_divided_without_loss_or_overlap(share: float) -> None:
    shards = [*iid(100, 7, seed=3), np.array([200, 201])]
    kept, held = hold_out(shards, share, seed=3)
    for shard, train, rest in zip(shards, kept, held, strict=True):
        assert sorted([*train, *rest]) == shard.tolist()
        assert len(train) >= 1
        assert abs(len(rest) - share * len(shard)) <= 0.5 or len(rest) in (1, len(shard) - 1)


def test_a_clients_split_depends_on_its_own_shard_and_the_seed_only() -> None:
    shards = iid(60, 4, seed=0)
    _, held = hold_out(shards, 0.3, seed=1)
    _, other = hold_out([np.arange(90, 99), *shards[1:]], 0.3, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(held[1:], other[1:], strict=True))
    _, reseeded = hold_out(shards, 0.3, seed=2)
    assert any(not np.array_equal(a, b) for a, b in zip(held, reseeded, strict=True))


def test_an_example_that_a_shard_holds_twice_is_on_one_side_only() -> None:
    shard = np.array([3, 3, 3, 8, 9, 9, 12, 15])
    for seed in range(20):
        (train,), (held,) = hold_out([shard], 0.4, seed)
        assert not set(train) & set(held)
        assert set(train) | set(held) == set(shard)


def test_nobody_trains_on_what_another_client_holds_out() -> None:
    """A Dirichlet partition whose pools run dry gives one example to several clients."""
    labels = np.repeat([0, 1, 2, 3], 60)
    shards = dirichlet(Pool(len(labels), labels), 12, 7, alpha=0.1, per_client=40)
    assert len(np.unique(np.concatenate(shards))) < 12 * 40  # they do overlap
    kept, held = hold_out(shards, 0.25, seed=3)
    assert not set(np.concatenate(kept)) & set(np.concatenate(held))
    for shard, train, rest in zip(shards, kept, held, strict=True):
        assert set(train) | set(rest) <= set(shard)
    twins = [np.array([1, 2])] * 12  # some of them hold out 1 and some 2
    with pytest.raises(HoflError, match="client 0 shares all of its examples"):
        hold_out(twins, 0.5, seed=0)


def test_a_client_with_one_example_cannot_hold_it_out() -> None:
    with pytest.raises(HoflError, match="client 1 has 1 example"):
        hold_out([np.arange(5), np.array([7])], 0.2, seed=0)


def test_a_subset_stays_inside_every_shard_and_grows_with_its_size() -> None:
    shards = [*iid(100, 6, seed=3), np.array([300, 301])]
    small, large = subset(shards, 5, seed=2), subset(shards, 9, seed=2)
    for shard, few, more in zip(shards, small, large, strict=True):
        assert len(few) == min(5, len(shard))
        assert set(few) <= set(more) <= set(shard)


def test_client_means_are_over_examples_then_over_clients() -> None:
    """Oracle: one prompt at a time through the whole vocabulary head; uneven clients and tiers."""
    model = tiny("llama")
    labels = tuple(i % 4 for i in range(len(prompts())))
    answer = LabelWords(tuple(map(str, WORDS)))
    examples = number_set([prompt[:-1] for prompt in prompts()], answer, label=labels)
    shards = [np.array([0]), np.array([1, 2, 3, 4, 5]), np.array([6, 7, 8])]
    found = evaluate_clients(model, examples, shards, (1, 3, 1), batch_size=2)
    scores = [word_scores(model, prompt) for prompt in prompts()]
    losses = [word_loss(s, label) for s, label in zip(scores, labels, strict=True)]
    per_client = [sum(losses[i] for i in shard) / len(shard) for shard in shards]
    summary = found.summary()
    assert summary["each"]["loss"] == pytest.approx(per_client, rel=1e-5)
    assert summary["loss"] == pytest.approx(sum(per_client) / 3, rel=1e-5)
    outer = (per_client[0] + per_client[2]) / 2
    assert summary["tiers"]["1"]["loss"] == pytest.approx(outer, rel=1e-5)
    assert summary["tiers"]["3"]["loss"] == pytest.approx(per_client[1], rel=1e-5)
    assert abs(sum(losses[:9]) / 9 - summary["loss"]) > 1e-4  # not the mean over all examples
    right = [max(range(4), key=s.__getitem__) == y for s, y in zip(scores, labels, strict=True)]
    assert summary["each"]["accuracy"] == [
        sum(right[i] for i in shard) / len(shard) for shard in shards
    ]


def test_evaluation_never_changes_the_training(tiny_folder: Path, tmp_path: Path) -> None:
    results = [
        hofl.run(
            quick(tiny_folder, evaluation={"holdout": 0.2, **evaluation}), tmp_path / str(number)
        )
        for number, evaluation in enumerate([{"every": 1}, {}, {"test": False}])
    ]
    assert len({adapter_bytes(result.path) for result in results}) == 1
    every, ends, own = (result.summary for result in results)
    assert every["final"] == ends["final"]
    clients = every["final"]["clients"]
    assert len(clients["each"]["loss"]) == 6
    assert set(clients["tiers"]) == {"1", "2", "3"}
    assert own["final"]["loss"] == clients["loss"] != every["final"]["loss"]
    assert own["final"]["clients"] == clients


def test_held_out_examples_are_never_trained_on(tiny_folder: Path) -> None:
    experiment = build_simulation(quick(tiny_folder, evaluation={"holdout": 0.25}))
    shards = experiment.client._shards
    for train, held in zip(shards, experiment.held_out.rows, strict=True):
        assert len(held) == 20
        assert not set(train) & set(held)
    assert build_simulation(quick(tiny_folder)).held_out is None


def test_the_fleets_seed_keeps_data_tiers_and_preferred_clients(tiny_folder: Path) -> None:
    """Two trainings of one fleet: other directions and cohorts, the same clients."""
    first, second, other = (
        build_simulation(quick(tiny_folder, seed=seed, fleet=fleet, evaluation={"holdout": 0.25}))
        for seed, fleet in [(5, {"clients": 30}), (6, {"clients": 30, "seed": 5}), (6, {})]
    )
    assert first.boundaries() == second.boundaries()
    everyone, again = first.present(0), second.present(0)
    assert np.array_equal(first.marginals(0, everyone), second.marginals(0, again))
    for a, b in zip(first.held_out.rows, second.held_out.rows, strict=True):
        assert np.array_equal(a, b)
    assert not torch.equal(first.start.w, second.start.w)
    cohorts = [first.cohort(t, everyone) for t in range(5)]
    assert cohorts != [second.cohort(t, again) for t in range(5)]
    assert not np.array_equal(first.held_out.rows[0], other.held_out.rows[0])


def test_nothing_to_evaluate_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(HoflError, match=r"evaluation\.test=false leaves nothing"):
        build_simulation(quick(tiny_folder, evaluation={"test": False}))
