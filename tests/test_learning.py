"""Networks learn, a killed training resumes, and data that cannot be used is refused with a reason."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import windtunnel as wt
from windtunnel.errors import BadInput, BadJob, Interrupted, StoreError, Unavailable, UnknownName
from windtunnel.job.lesson import Lesson, Stage
from windtunnel.learning import checkpoint, data, decision, pictures, training
from windtunnel.learning.options import TrainingIdentity
from windtunnel.learning.result import TrainingResult
from windtunnel.networks import autoencoder, ffn, rnn


def train(lesson, *, identity=None, progress=None, **options):
    return training.train_lesson(
        lesson, training.TrainingOptions(**options), identity=identity, progress=progress
    )


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


# ---- what the networks learn ----


def test_a_feed_forward_network_reads_95_percent_of_held_out_digits(digits):
    result = train(ffn.teach(ffn.Settings(epochs=12), digits), until="accuracy=0.96")
    assert result.figures["accuracy"] >= 0.95
    assert result.reached
    assert result.rows[0].figures["accuracy"] < 0.3, "an untrained network must not know the digits"
    assert len(result.rows) < 13, "it stops at the target"


def test_an_autoencoder_restores_held_out_digits_better_than_as_many_principal_components(digits):
    settings = autoencoder.Settings(epochs=40)
    result = train(autoencoder.teach(settings, digits))
    seen, unseen = (part["images"].flatten(1).numpy() for part in (digits.train, digits.held_out))
    mean = seen.mean(0)
    components = np.linalg.svd(seen - mean, full_matrices=False)[2][: settings.hidden]
    projected = (unseen - mean) @ components.T @ components + mean
    assert result.figures["reconstruction"] < 0.95 * ((projected - unseen) ** 2).mean()


def test_a_recurrent_network_learns_the_perceptual_decision():
    result = train(rnn.teach(rnn.Settings(), data.load("decision", n_steps=20)), epochs=2)
    assert result.figures["accuracy"] > 0.85
    assert result.figures["accuracy_0.512"] > result.figures["accuracy_0.032"] + 0.2, (
        "easy trials must be easier than hard ones"
    )


def test_a_wide_hidden_layer_of_an_autoencoder_gives_a_caution_with_its_source(digits):
    (caution,) = autoencoder.teach(autoencoder.Settings(hidden=64), digits).cautions
    assert "fewer hidden nodes than inputs" in caution and "Wuensche" in caution
    (caution,) = ffn.teach(ffn.Settings(hidden=32), digits).cautions
    assert "as many nodes as there are inputs" in caution
    assert ffn.teach(ffn.Settings(), digits).cautions == ()


# ---- data ----


def test_digits_are_split_without_overlap_and_every_class_is_in_both_parts(digits):
    assert len(digits.train["images"]) + len(digits.held_out["images"]) == 1797
    assert 0.15 < len(digits.held_out["labels"]) / 1797 < 0.22
    assert digits.held_out["labels"].bincount().min() >= 30
    seen = {image.numpy().tobytes() for image in digits.train["images"]}
    assert not any(image.numpy().tobytes() in seen for image in digits.held_out["images"])
    assert torch.equal(digits.train["labels"], data.digits().train["labels"]), "the split is always the same"


def test_held_out_text_comes_from_other_files():
    text = data.load("text")
    alphabet = text.facts["alphabet"]
    train, unseen = (data.decode(part["text"].tolist(), alphabet) for part in (text.train, text.held_out))
    assert len(train) == 400_000 and "def " in train and "import " in unseen
    assert unseen[1000:1200] not in train
    assert train.count(data.REPLACEMENT) < 0.01 * len(train)


def test_synthetic_images_can_be_classified_by_their_spectrum():
    images = data.images(size=16, examples=200, held_out=100)
    spectra = [
        torch.fft.fft2(part["images"].mean(1)).abs().flatten(1)[:, 1:]
        for part in (images.train, images.held_out)
    ]
    centres = torch.stack([spectra[0][images.train["labels"] == label].mean(0) for label in range(10)])
    guessed = torch.cdist(spectra[1], centres).argmin(1)
    assert (guessed == images.held_out["labels"]).float().mean() > 0.9


def test_the_sum_of_the_stimulus_solves_the_decision_and_the_decision_period_has_no_information():
    trials = data.load("decision", n_steps=20).held_out
    onset, end = decision.periods(20)
    moderate = trials["coherences"] == decision.MODERATE
    stimulus = trials["inputs"][:, onset:end].sum(1).argmax(1) == trials["choices"]
    rest = trials["inputs"][:, end:].sum(1).argmax(1) == trials["choices"]
    assert stimulus[moderate].float().mean() > 0.95
    assert abs(rest.float().mean() - 0.5) < 0.05


def test_pictures_in_class_folders_are_read_with_the_given_size_and_channels(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
        (tmp_path / name).mkdir()
        for i in range(5):
            image.new("RGB", (20, 10), colour).save(tmp_path / name / f"{i}.png")
    colour = data.load(str(tmp_path), "digits", size=12, channels=3)
    assert colour.train["images"].shape == (8, 3, 12, 12) and len(colour.held_out["labels"]) == 2
    first = colour.train["images"][colour.train["labels"] == 0][0]
    assert first[2].min() == 1 and first[0].max() == 0, "class 0 is blue"
    assert data.load(str(tmp_path), "digits", channels=1).facts == {"classes": 2, "channels": 1, "size": 32}


def test_a_network_learns_from_tables_with_and_without_square_rows(tmp_path):
    rows = [f"{i % 2},{i},{5 - i % 2},{'yes' if i % 2 else 'no'}" for i in range(40)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,answer", *rows]))
    table = data.load(str(tmp_path / "table.csv"), "digits")
    assert table.train["images"].shape == (32, 1, 1, 3) and table.train["images"].max() == 1
    assert train(ffn.teach(ffn.Settings(epochs=30, batch=8, rate=0.03), table)).figures["accuracy"] == 1
    np.savez(tmp_path / "pictures.npz", images=np.arange(10 * 16).reshape(10, 4, 4), labels=np.arange(10) % 2)
    assert data.load(str(tmp_path / "pictures.npz"), "digits").facts == {
        "classes": 2,
        "channels": 1,
        "size": 4,
    }
    np.save(
        tmp_path / "table.npy", np.column_stack([np.random.default_rng(0).random((10, 9)), np.arange(10) % 2])
    )
    assert data.load(str(tmp_path / "table.npy"), "digits").facts["size"] == 3


def _one_class(folder: Path) -> Path:
    (folder / "photos" / "cats").mkdir(parents=True)
    return folder / "photos"


def _written(folder: Path, name: str, body: str | bytes) -> Path:
    (folder / name).write_bytes(body.encode() if isinstance(body, str) else body)
    return folder / name


def _broken_pictures(folder: Path) -> Path:
    for name in ("a", "b"):
        (folder / name).mkdir()
        for i in range(2):
            (folder / name / f"{i}.png").write_bytes(b"not a picture")
    return folder


BAD_DATA = {
    "one class": (_one_class, "digits", "1 class folder"),
    "empty folder": (lambda f: f, "digits", "0 class folders"),
    "broken pictures": (_broken_pictures, "digits", "cannot be read as a picture"),
    "text too short": (lambda f: _written(f, "a.txt", "short"), "text", "5 characters"),
    "text that is not UTF-8": (
        lambda f: _written(f, "a.txt", b"\xff\xfe\x00\xd8" * 900),
        "text",
        "cannot be read as text",
    ),
    "empty table": (lambda f: _written(f, "a.csv", ""), "digits", "is empty"),
    "words in a table": (
        lambda f: _written(f, "a.csv", "1,2,x\n1,oops,y\n"),
        "digits",
        "line 2, column 2: 'oops' is not a number",
    ),
    "ragged table": (lambda f: _written(f, "a.csv", "1,2,x\n1,y\n"), "digits", "line 2 has 2 columns"),
    "table of one class": (lambda f: _written(f, "a.csv", "1,2,x\n1,2,x\n"), "digits", "one class"),
    "table with one example of a class": (
        lambda f: _written(f, "a.csv", "1,2,x\n1,2,x\n3,4,y\n"),
        "digits",
        "one example of class 'y'",
    ),
    "not a number in a table": (
        lambda f: _written(f, "a.csv", "1,nan,x\n1,2,x\n3,4,y\n1,1,y\n"),
        "digits",
        "not finite",
    ),
    "broken NumPy file": (lambda f: _written(f, "a.npy", b"junk"), "digits", "cannot be read as NumPy data"),
    "an unknown kind of file": (
        lambda f: _written(f, "a.exe", b"junk"),
        "digits",
        "is not a folder of images, a CSV file or a NumPy file",
    ),
    "a folder where a text is needed": (lambda f: f, "text", "is a folder"),
    "a file where trials are generated": (
        lambda f: _written(f, "a.csv", "1,2,x"),
        "decision",
        "generated decision data only",
    ),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_data_that_cannot_be_used_is_refused_with_a_reason(case, tmp_path):
    make, wanted, reason = BAD_DATA[case]
    with pytest.raises(BadInput, match=reason) as caught:
        data.load(str(make(tmp_path)), wanted)
    assert caught.value.hint


def test_numpy_objects_are_not_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BadInput, match="cannot be read"):
        data.load(str(tmp_path / "a.npy"), "digits")


def test_an_unknown_data_set_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownName, match="digits"):
        data.load("digit")


def test_data_without_a_fact_that_the_network_needs_is_refused(tmp_path):
    _written(tmp_path, "a.csv", "\n".join(f"{i},{i},{i},{i % 2}" for i in range(10)))
    with pytest.raises(BadInput, match="size"):
        training.prepare("dcn", {}, str(tmp_path / "a.csv"))
    with pytest.raises(BadInput, match="images"):
        training.prepare("ffn", {}, "text")


# ---- training: targets, checkpoints, kills ----


def _lesson(broken_from: int | None = None, width: int = 4) -> Lesson:
    """Two stages with dropout: a resumed run differs unless weights, Adam and random state are restored."""
    inputs, steps = torch.randn(24, 3, generator=torch.Generator().manual_seed(5)), [0]

    def batches(generator):
        for rows in torch.randperm(24, generator=generator).split(6):
            yield inputs[rows]

    def step(model, batch, optimizers):
        steps[0] += 1
        loss = ((model(batch).sum(1) - batch.sum(1)) ** 2).mean()
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
        return loss * float("nan") if broken_from is not None and steps[0] > broken_from else loss

    def optimizers(model):
        return {
            "first": torch.optim.Adam(model[0].parameters(), lr=0.02),
            "second": torch.optim.SGD(model[2].parameters(), lr=0.01, momentum=0.9),
        }

    stages = tuple(
        Stage(name=name, epochs=2, steps=4, batches=batches, optimizers=optimizers, step=step)
        for name in ("before", "after")
    )
    return Lesson(
        model=lambda: nn.Sequential(nn.Linear(3, width), nn.Dropout(0.5), nn.Linear(width, 3)),
        stages=stages,
        examine=lambda model: {
            "error": ((model(inputs).sum(1) - inputs.sum(1)) ** 2).mean().item(),
            "other": 1.0,
        },
        metric="error",
        better="lower",
    )


def _without_seconds(result: TrainingResult) -> list[tuple]:
    return [(r.stage, r.epoch, r.steps, r.loss, dict(r.figures)) for r in result.rows]


def _equal_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(
        torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("killed_at", [2, 4, 7, 9, 16])
def test_an_interrupted_training_ends_as_an_uninterrupted_one(killed_at, tmp_path):
    def kill(done, total, text):
        if done == killed_at:
            raise KeyboardInterrupt

    uninterrupted = train(_lesson())
    with pytest.raises(Interrupted, match=f"epoch {(killed_at - 1) // 4}"):
        train(_lesson(), folder=tmp_path, progress=kill)
    resumed = train(_lesson(), folder=tmp_path)
    assert resumed.resumed == (killed_at - 1) // 4
    assert _without_seconds(resumed) == _without_seconds(uninterrupted)
    assert _equal_weights(resumed.model, uninterrupted.model)


def test_a_killed_process_loses_at_most_its_last_epoch(tmp_path):
    body = (
        "import sys, torch, windtunnel as wt; from pathlib import Path\n"
        "from windtunnel.learning.training import TrainingOptions, train\n"
        "torch.set_num_threads(1); job = wt.Workload.named('rnn', n_rec=8, lesson_batch=500)\n"
        "train(job, TrainingOptions(folder=Path(sys.argv[1]), epochs=500))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", body, str(tmp_path)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        deadline = time.monotonic() + 600
        while not (tmp_path / checkpoint.NAME).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    lesson, identity = training.prepare("rnn", {"n_rec": 8, "lesson_batch": 500})
    done = checkpoint.load(tmp_path / checkpoint.NAME)[1]["done"][1]
    resumed = train(lesson, folder=tmp_path, identity=identity, epochs=done + 1)
    assert resumed.resumed == done >= 1
    assert _without_seconds(resumed) == _without_seconds(train(lesson, epochs=done + 1))


def test_a_finished_training_is_not_repeated_but_can_be_extended(tmp_path):
    first = train(_lesson(), folder=tmp_path)
    again = train(_lesson(), folder=tmp_path, progress=lambda *_: pytest.fail("nothing is left to train"))
    assert again.rows == first.rows and again.resumed == 4
    assert train(_lesson(), folder=tmp_path, epochs=3).rows[:5] == first.rows
    assert train(_lesson(), folder=tmp_path, fresh=True).resumed == 0


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"network": "dcn"}, "network 'ffn', not of 'dcn'"),
        ({"settings": {"hidden": 9}}, "hidden=4, not hidden=9"),
        ({"data": "mine"}, "data 'digits'"),
        ({"seed": 3}, "seed 0"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused_and_kept(other, reason, tmp_path):
    identity = {"network": "ffn", "settings": {"hidden": 4}, "data": "digits"}
    train(_lesson(), folder=tmp_path, identity=TrainingIdentity(**identity), epochs=1)
    before = (tmp_path / checkpoint.NAME).read_bytes()
    changed = {**identity, **other}
    seed = changed.pop("seed", 0)
    with pytest.raises(BadInput, match=reason):
        train(_lesson(), folder=tmp_path, identity=TrainingIdentity(**changed), seed=seed)
    assert (tmp_path / checkpoint.NAME).read_bytes() == before


def test_weights_of_another_shape_are_refused_by_name_and_nothing_is_overwritten(tmp_path):
    train(_lesson(width=4), folder=tmp_path, epochs=1)
    before = (tmp_path / checkpoint.NAME).read_bytes()
    with pytest.raises(BadInput, match=r"0\.weight is \(4, 3\) there and \(5, 3\) here"):
        train(_lesson(width=5), folder=tmp_path)
    model = _lesson(width=5).model()
    before_load = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(BadInput, match="another network"):
        checkpoint.load_weights(tmp_path / "weights.safetensors", model)
    assert all(torch.equal(before_load[name], tensor) for name, tensor in model.state_dict().items())
    assert (tmp_path / checkpoint.NAME).read_bytes() == before


@pytest.mark.parametrize("body", [b"", b"junk", b"\x10" + b"\0" * 40])
def test_a_damaged_checkpoint_is_refused_and_kept(body, tmp_path):
    path = _written(tmp_path, checkpoint.NAME, body)
    with pytest.raises(BadInput, match="is not a checkpoint of windtunnel, or is damaged"):
        train(_lesson(), folder=tmp_path)
    assert path.read_bytes() == body


def test_a_checkpoint_holds_no_pickle_and_its_header_is_json(tmp_path):
    train(_lesson(), folder=tmp_path, epochs=1)
    body = (tmp_path / checkpoint.NAME).read_bytes()
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    note = json.loads(header["__metadata__"]["windtunnel"])["note"]
    assert note["done"] == [1, 1] and len(note["rows"]) == 3
    assert any(name.startswith("optimizers/0/state/0/exp_avg") for name in header)


def test_a_loss_that_is_not_finite_stops_the_training_and_keeps_the_last_good_checkpoint(tmp_path):
    train(_lesson(), folder=tmp_path / "good", epochs=1, until="error<=1e9")
    with pytest.raises(BadJob, match=r"epoch 2 \(before\).*epoch 1 is kept") as caught:
        train(_lesson(broken_from=5), folder=tmp_path / "bad")
    assert "Lower the rate" in caught.value.hint
    good, bad = (checkpoint.load(tmp_path / name / checkpoint.NAME)[0]["model"] for name in ("good", "bad"))
    assert all(torch.equal(good[name], bad[name]) for name in good)


def test_a_full_disk_is_an_error_and_the_old_checkpoint_stays(tmp_path, monkeypatch):
    train(_lesson(), folder=tmp_path, epochs=1, until="error<=1e9")
    before = (tmp_path / checkpoint.NAME).read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device") as caught:
        train(_lesson(), folder=tmp_path)
    assert "is kept" in caught.value.hint
    assert (tmp_path / checkpoint.NAME).read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], (
        "no half-written file is left behind"
    )


def test_a_folder_that_cannot_be_made_is_an_error_before_any_step(tmp_path):
    _written(tmp_path, "taken", "a file")
    with pytest.raises(StoreError, match="taken cannot be made"):
        train(_lesson(), folder=tmp_path / "taken", progress=lambda *_: pytest.fail("a step was made"))


def test_synthetic_images_stay_small_unless_a_size_is_set_and_photographs_keep_at_least_32_pixels(
    tmp_path, monkeypatch
):
    calls = []
    monkeypatch.setattr(
        data, "load", lambda source, wanted, **sizes: calls.append(sizes) or data.images(size=32, channels=3)
    )
    training.prepare("resnet18", {})
    training.prepare("resnet18", {"size": "64"})
    training.prepare("resnet18", {}, str(tmp_path))
    training.prepare("dcn", {}, str(tmp_path))
    assert [sizes["size"] for sizes in calls] == [None, 64, 224, 32]


def test_training_restores_the_random_state_of_the_caller_and_is_reproducible():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one = train(_lesson(), epochs=1)
    assert torch.equal(torch.rand(3), expected)
    assert _without_seconds(one) == _without_seconds(train(_lesson(), epochs=1))
    assert _without_seconds(one) != _without_seconds(train(_lesson(), epochs=1, seed=1))


@pytest.mark.parametrize(
    ("until", "reason"),
    [
        ("accuracy=0.9", "no metric 'accuracy'.*Known: error, other"),
        ("other=0.9", "higher or a lower other"),
        ("error", "is not a target"),
        ("error=low", "is not a target"),
        ("error=nan", "is not a target"),
    ],
)
def test_an_impossible_target_is_refused_before_any_step(until, reason):
    with pytest.raises(BadInput, match=r"(?s)" + reason):
        train(_lesson(), until=until, progress=lambda *_: pytest.fail("a step was made"))


def test_a_target_stops_the_training_in_its_own_direction():
    assert train(_lesson(), until="error<=1e9").rows[-1].epoch == 1
    assert train(_lesson(), until="error>=1e9").reached is False
    assert train(_lesson()).reached is None


def test_other_impossible_options_are_refused():
    with pytest.raises(BadInput, match="from 1 to 1,000,000 epochs"):
        train(_lesson(), epochs=0)
    with pytest.raises(BadInput, match="cpu or cuda"):
        train(_lesson(), device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(Unavailable, match="no CUDA GPU"):
            train(_lesson(), device="cuda")
    with pytest.raises(BadInput, match="at least 4 timesteps"):
        data.load("decision", n_steps=3)


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("sklearn.datasets", lambda f: data.load("digits")),
        ("safetensors.torch", lambda f: train(_lesson(), folder=f)),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_installs_it(module, use, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Unavailable) as caught:
        use(tmp_path)
    assert module.split(".")[0].replace("sklearn", "scikit-learn") in caught.value.message
    assert 'pip install "windtunnel[learn]"' in caught.value.hint


def test_a_result_prints_its_metrics_target_and_files(tmp_path):
    text = str(train(_lesson(), folder=tmp_path, until="error<=1e9"))
    assert text.startswith("network: 1 epoch, 4 steps in ")
    assert "target    error<=1e+09: reached in epoch 1" in text and "curve.svg" in text


def test_a_job_by_name_or_workload_is_trained_on_its_own_data():
    options = training.TrainingOptions(epochs=1)
    job = wt.Workload.named("rnn", n_rec=8, lesson_batch=500)
    result = training.train(job, options)
    assert result.title == "rnn on decision" and result.rows[-1].epoch == 1
    own = wt.Workload(name="mine", model=nn.Module, batch=list, step=lambda *_: None)
    with pytest.raises(BadInput, match="mine was made in Python"):
        training.train(own, options)


# ---- pictures ----


@pytest.mark.parametrize("channels", [1, 3])
def test_a_sheet_is_a_png_with_each_image_at_its_position(channels, tmp_path):
    image = pytest.importorskip("PIL.Image")
    images = torch.rand(5, channels, 4, 6, generator=torch.Generator().manual_seed(0))
    path = pictures.save_sheet(tmp_path / "sheet.png", images, columns=3, scale=2)
    with image.open(path) as opened:
        pixels = np.asarray(opened).reshape(opened.height, opened.width, channels)
    assert pixels.shape == (2 * (8 + 2) + 2, 3 * (12 + 2) + 2, channels)
    top, left = 2 + 10, 2 + 14  # the fifth image: second row, second column
    assert np.array_equal(
        pixels[top : top + 8 : 2, left : left + 12 : 2],
        (images[4] * 255).round().permute(1, 2, 0).numpy().astype(np.uint8),
    )


def test_a_learning_curve_has_a_point_for_each_epoch(tmp_path):
    train(_lesson(), folder=tmp_path)
    svg = "{http://www.w3.org/2000/svg}"
    lines = ElementTree.parse(tmp_path / "curve.svg").getroot().findall(f"{svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [5, 4], (
        "the metric has a point before the first epoch, the loss has none"
    )
    assert len(json.loads((tmp_path / "curve.json").read_text())["rows"]) == 5


def test_a_text_curve_runs_from_the_lowest_to_the_highest_bar():
    assert pictures.spark([0, 1, 2, 3]) == "▁▃▆█"
    assert pictures.spark([5.0, 5.0]) == "▁▁"
    assert len(pictures.spark(list(range(1000)), width=40)) == 40


def test_bars_grow_with_the_logarithm_of_the_width():
    assert len(pictures.bar(10_000, 10_000)) == 32
    assert len(pictures.bar(100, 10_000)) == 16
    assert len(pictures.bar(0, 10_000)) == 1


def test_a_table_is_scaled_by_the_rows_to_learn_from_only(tmp_path: Path) -> None:
    numbers, labels = torch.arange(20.0).view(20, 1, 1, 1), torch.arange(20) % 2
    apart = {int(i) for i in data.split("rows", numbers, labels).held_out["images"].flatten()}
    tables = []
    for factor in (1, 100):  # held-out rows of a hundred times the size change nothing in the others
        rows = [(i * factor, -i) if i in apart else (i, -i) for i in range(20)]
        text = "\n".join(f"{x},{y},{'ab'[i % 2]}" for i, (x, y) in enumerate(rows))
        tables.append(data.load(_written(tmp_path, f"{factor}.csv", text), "digits"))
    plain, far = (table.train["images"] for table in tables)
    assert (float(plain.min()), float(plain.max())) == (0.0, 1.0)
    assert far.equal(plain)
    assert float(tables[1].held_out["images"].max()) > 10
