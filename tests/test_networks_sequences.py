"""Networks for text and trees: they beat models that only count."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import windtunnel as wt
from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson
from windtunnel.job.trainer import Trainer
from windtunnel.learning import data, trees
from windtunnel.networks import bert, gpt2, lstm, recursive
from windtunnel.strategy import Strategy

SMALLEST: dict[str, dict[str, Any]] = {
    "lstm": {"alphabet": 5, "embedding": 2, "width": 4, "length": 3, "batch": 2},
    "recursive": {"width": 4, "hidden": 8, "depth": 2},
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def learn(lesson: Lesson, epochs: int) -> torch.nn.Module:
    torch.manual_seed(0)
    model = lesson.model()
    generator = torch.Generator().manual_seed(0)
    for stage in lesson.stages:
        optimizers = stage.optimizers(model)
        for _ in range(epochs):
            assert (
                len([stage.step(model, batch, optimizers) for batch in stage.batches(generator)])
                == stage.steps
            )
    return model


def a_little_of(text: Dataset, characters: int, held_out: int, piece: int = 1000) -> Dataset:
    """Pieces at equal distances in a text, so that a small part still has the style of every file."""

    def thin(ids: torch.Tensor, wanted: int) -> torch.Tensor:
        pieces = ids[: len(ids) // piece * piece].view(-1, piece)
        return pieces[:: len(ids) // wanted].flatten()

    parts = {"text": thin(text.train["text"], characters)}, {"text": thin(text.held_out["text"], held_out)}
    return Dataset(name="a little text", train=parts[0], held_out=parts[1], facts=text.facts)


def trigram_bits(text: Dataset) -> float:
    """Bits per character of a trigram model, interpolated as in Witten and Bell 1991.

    The weight of each order depends on how many different characters followed its context. Nothing is tuned.
    """
    train, held_out = (tuple(part["text"].tolist()) for part in (text.train, text.held_out))
    grams = [Counter(train[i - order : i + 1] for i in range(order, len(train))) for order in range(3)]
    seen: Counter[tuple[int, ...]] = Counter()
    kinds: Counter[tuple[int, ...]] = Counter()
    for counts in grams:
        for gram, count in counts.items():
            seen[gram[:-1]] += count
            kinds[gram[:-1]] += 1
    bits = 0.0
    for i in range(2, len(held_out)):
        chance = 1 / len(text.facts["alphabet"])
        for order in range(3):
            context = held_out[i - order : i]
            if seen[context]:
                chance = (grams[order][held_out[i - order : i + 1]] + kinds[context] * chance) / (
                    seen[context] + kinds[context]
                )
        bits -= math.log2(chance)
    return bits / (len(held_out) - 2)


def test_the_trigram_model_agrees_with_a_text_worked_by_hand() -> None:
    # Learn "aab" with an alphabet of 2: a (2 of 3), b (1 of 3), 2 kinds; after a: a and b (2 seen, 2 kinds);
    # after aa: b (1 seen, 1 kind).
    # p(b) = (1 + 2/2) / 5 = 0.4; p(b|a) = (1 + 2 * 0.4) / 4 = 0.45; p(b|aa) = (1 + 0.45) / 2 = 0.725
    ids = {"text": torch.tensor([0, 0, 1])}
    assert trigram_bits(
        Dataset(name="tiny", train=ids, held_out=ids, facts={"alphabet": "ab"})
    ) == pytest.approx(-math.log2(0.725))


def test_lstm_beats_a_trigram_model_on_held_out_text(tmp_path: Path) -> None:
    text = a_little_of(data.text(), characters=50_000, held_out=10_000)
    lesson = lstm.teach(lstm.Settings(), text)
    model = learn(lesson, epochs=5)
    bits = lesson.examine(model)["bits_per_character"]
    assert (lesson.metric, lesson.better) == ("bits_per_character", "lower")
    assert bits < trigram_bits(text) - 0.1
    assert lesson.draw is not None
    (path,) = lesson.draw(model, tmp_path)
    passage = path.read_text(encoding="utf-8")
    assert path.suffix == ".txt"
    assert len(passage) == 600
    assert set(passage) <= set(text.facts["alphabet"])
    assert len(set(passage)) > 15


def test_an_untrained_lstm_needs_about_the_bits_of_a_uniform_guess() -> None:
    text = a_little_of(data.text(), characters=5_000, held_out=5_000)
    lesson = lstm.teach(lstm.Settings(width=16), text)
    assert lesson.examine(lesson.model())["bits_per_character"] == pytest.approx(
        math.log2(len(text.facts["alphabet"])), abs=0.3
    )


def bag_accuracy(arithmetic: Dataset) -> float:
    """Accuracy on the deeper held-out trees of a network that gets only counts of leaves and operators."""
    symbols = [*arithmetic.facts["operators"], *range(arithmetic.facts["leaves"])]

    def counts(tree: Any) -> Counter[Any]:
        return (
            Counter([tree])
            if isinstance(tree, int)
            else Counter([tree[0]]) + counts(tree[1]) + counts(tree[2])
        )

    def bags(part: Any) -> torch.Tensor:
        counted = [counts(tree) for tree in part["trees"]]
        return torch.tensor([[float(bag[symbol]) for symbol in symbols] for bag in counted])

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(len(symbols), 256), torch.nn.ReLU(), torch.nn.Linear(256, arithmetic.facts["classes"])
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    shown, labels = bags(arithmetic.train), arithmetic.train["labels"]
    for _ in range(15):
        for chosen in torch.randperm(len(labels)).tensor_split(len(labels) // 64):
            optimizer.zero_grad()
            F.cross_entropy(model(shown[chosen]), labels[chosen]).backward()
            optimizer.step()
    right = model(bags(arithmetic.held_out)).argmax(1) == arithmetic.held_out["labels"]
    return float(right[len(right) // 2 :].float().mean())


def test_recursive_generalises_to_deeper_trees_and_counting_does_not() -> None:
    arithmetic = trees.generate()
    lesson = recursive.teach(recursive.Settings(), arithmetic)
    figures = lesson.examine(learn(lesson, epochs=10))
    assert figures["accuracy"] >= 0.9
    assert figures["deeper_accuracy"] >= 0.85
    assert figures["deeper_accuracy"] >= bag_accuracy(arithmetic) + 0.3


def height(tree: Any) -> int:
    return 0 if isinstance(tree, int) else 1 + max(height(tree[1]), height(tree[2]))


def test_held_out_trees_are_not_in_training_and_half_of_them_are_deeper() -> None:
    arithmetic = trees.generate(examples=500, held_out=100, depth=3, deepest=5)
    assert max(height(tree) for tree in arithmetic.train["trees"]) == 3
    depths = [height(tree) for tree in arithmetic.held_out["trees"]]
    assert max(depths[:50]) <= 3 < min(depths[50:])
    assert max(depths) == 5
    assert not set(arithmetic.train["trees"]) & set(arithmetic.held_out["trees"])


def test_trees_depend_on_the_seed_only() -> None:
    first, again, other = (
        trees.generate(examples=50, held_out=10, seed=seed).train["trees"] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_the_value_of_a_tree_is_as_computed_by_hand() -> None:
    assert trees.value(("*", ("-", 1, 2), 3), 5) == 2  # -3 modulo 5
    assert trees.value(("-", 1, ("*", 2, 3)), 5) == 0  # the same leaves, -5 modulo 5


@pytest.mark.parametrize("wrong", [{"depth": 1}, {"deepest": 4}, {"modulus": 1}, {"examples": 0}])
def test_impossible_trees_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadRecord, match="arithmetic:"):
        trees.generate(**wrong)


def test_more_trees_than_exist_are_refused_without_hanging() -> None:
    with pytest.raises(BadRecord, match="tree of depth 2 to 2 is left"):
        trees.generate(examples=40_000, held_out=2000, depth=2, deepest=3, modulus=2)


def test_a_tree_has_the_same_scores_in_a_forest_and_alone() -> None:
    model = recursive.RecursiveNetwork(recursive.Settings())
    grown = [3, ("+", 1, 2), ("*", ("-", 4, 0), ("+", 2, ("*", 3, 3))), ("-", 2, ("+", 1, 1))]
    together = model(recursive.plant(grown, trees.OPERATORS))
    alone = torch.cat([model(recursive.plant([tree], trees.OPERATORS)) for tree in grown])
    assert torch.allclose(together, alone, atol=1e-5)


def test_the_order_of_children_matters_to_a_recursive_network() -> None:
    model = recursive.RecursiveNetwork(recursive.Settings())
    scores = model(recursive.plant([("-", 1, 2), ("-", 2, 1)], trees.OPERATORS))
    assert not torch.allclose(scores[0], scores[1])


def test_a_step_on_complete_trees_has_one_call_for_each_level() -> None:
    forest, labels = recursive.build(recursive.Settings(depth=3)).batch(5)
    assert [len(level.operators) for level in forest.levels] == [20, 10, 5]
    assert len(forest.leaves) == 40
    assert forest.roots.tolist() == list(range(70, 75))
    assert len(labels) == 5


WORDS = "step batch device link worker".split()


def words(count: int, seed: int) -> str:
    order = torch.randint(0, len(WORDS), (count,), generator=torch.Generator().manual_seed(seed))
    return " ".join(WORDS[i] for i in order.tolist())


def test_gpt2_learns_to_spell_a_few_words(tmp_path: Path) -> None:
    text = data.from_text("words", words(2000, 0), words(300, 1))
    lesson = gpt2.teach(gpt2.Settings(size="tiny", length=32, dropout=0.0, rate=0.003), text)
    model = learn(lesson, epochs=4)
    # There are five words of about 5.2 characters with their space: log2(5) / 5.2 = 0.45 bits is optimal.
    assert 0.4 < lesson.examine(model)["bits_per_character"] < 1.0
    assert lesson.draw is not None
    written = lesson.draw(model, tmp_path)[0].read_text(encoding="utf-8").split()
    assert sum(word in WORDS for word in written) > len(written) / 2


def test_bert_learns_to_fill_in_masked_characters() -> None:
    text = data.from_text("cycle", "abcdef" * 3000, "abcdef" * 200)
    lesson = bert.teach(bert.Settings(size="tiny", layers=1, length=12, dropout=0.0, rate=0.003), text)
    figures = lesson.examine(learn(lesson, epochs=4))
    assert figures["accuracy"] > 0.5  # chance is one in six


def test_a_batch_records_the_masked_characters_and_their_positions() -> None:
    text = torch.arange(200) % 7
    pairs = bert._pairs(text, 7, 20, 50, torch.Generator().manual_seed(0))
    marks = (pairs.tokens == 9).sum()
    assert 0.6 * pairs.words.numel() < marks < 0.95 * pairs.words.numel()  # eight of ten are masked
    assert pairs.words.max() < 7
    whole = pairs.tokens.scatter(1, pairs.places, pairs.words)
    assert (whole[:, 0] == 7).all() and (whole[:, 9] == 8).all() and (whole[:, -1] == 8).all()
    following = pairs.follows == 1
    assert torch.equal((whole[following][:, 8] + 1) % 7, whole[following][:, 10])


def test_epochs_cut_the_text_differently_but_depend_on_the_generator_only() -> None:
    text = a_little_of(data.text(), characters=5_000, held_out=5_000)
    stage = lstm.teach(lstm.Settings(), text).stages[0]
    generator = torch.Generator().manual_seed(0)
    first, second = next(stage.batches(generator))[0], next(stage.batches(generator))[0]
    again = next(stage.batches(torch.Generator().manual_seed(0)))[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_the_target_of_each_character_is_the_next_one() -> None:
    text = Dataset(
        name="count",
        train={"text": torch.arange(500)},
        held_out={"text": torch.arange(500)},
        facts={"alphabet": "a" * 500},
    )
    for shown, wanted in (
        lstm.teach(lstm.Settings(), text).stages[0].batches(torch.Generator().manual_seed(0))
    ):
        assert torch.equal(shown + 1, wanted)


@pytest.mark.parametrize("name", SMALLEST)
def test_a_sequence_network_trains_and_its_loss_on_one_batch_falls(name: str) -> None:
    job = wt.Workload.named(name, **SMALLEST[name])
    batch = job.batch(8)
    trainer = Trainer(job, job.model(), Strategy(), "cpu")
    losses = [float(trainer.step(batch).detach()) for _ in range(60)]
    assert sum(losses[-10:]) < sum(losses[:10])


@pytest.mark.parametrize("name", SMALLEST)
def test_a_sequence_network_can_be_forecast(name: str) -> None:
    forecast = wt.predict(
        wt.Workload.named(name, **SMALLEST[name]), wt.Machine.named("h200"), Strategy(batch=2)
    )
    assert forecast.step_seconds > 0


@pytest.mark.parametrize("module", [lstm, gpt2, bert])
def test_a_text_too_short_is_refused_with_its_length(module: Any) -> None:
    short = data.from_text("short", "abc" * 10, "abc" * 10)
    with pytest.raises(BadRecord, match="has 30 characters"):
        module.teach(module.Settings(), short)


def test_data_of_another_kind_is_refused() -> None:
    with pytest.raises(BadRecord, match="job lstm: learns from text"):
        lstm.teach(lstm.Settings(), data.images(examples=4, held_out=4))
    with pytest.raises(BadRecord, match="job recursive: learns from trees"):
        recursive.teach(recursive.Settings(), data.images(examples=4, held_out=4))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("lstm", {"width": -1}, "job lstm: width must be above 0, not -1"),
        ("lstm", {"length": 0}, "job lstm: length must be above 0"),
        ("lstm", {"dropout": 1.5}, "job lstm: dropout"),
        ("lstm", {"init": "-1"}, "job lstm: init"),
        ("recursive", {"width": -3}, "job recursive: width must be above 0, not -3"),
        ("recursive", {"depth": 0}, "job recursive: depth must be above 0"),
        ("recursive", {"depth": 40}, "job recursive: depth must be at most 20, not 40"),
        ("recursive", {"rate": 0}, "job recursive: rate must be above 0"),
    ],
)
def test_impossible_settings_are_refused_by_name(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRecord) as caught:
        wt.Workload.named(name, **settings)
    assert str(caught.value).startswith(words)
