"""The commands windtunnel network list, show and train, with their exit codes."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from windtunnel import cli, networks
from windtunnel.learning import checkpoint


@pytest.fixture
def windtunnel(monkeypatch, tmp_path, capsys):
    """Run a command in an empty folder; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["windtunnel", "network", *arguments])
        monkeypatch.delenv("COLUMNS", raising=False)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_list_groups_every_network_by_its_kind(windtunnel):
    code, out, _ = windtunnel("list")
    lines = out.splitlines()
    assert code == 0 and [line for line in lines if not line.startswith(" ")] == [
        "shallow",
        "deep",
        "landmark",
    ]
    assert {line.split()[0] for line in lines if line.startswith(" ")} == set(networks.names())
    assert [row["name"] for row in json.loads(windtunnel("list", "--json")[1])] == list(networks.names())


def test_show_prints_purpose_guide_layers_flop_and_memory(windtunnel):
    code, out, _ = windtunnel("show", "autoencoder", "hidden=8")
    assert code == 0
    for text in (
        "compressing data",
        "fewer nodes than there are inputs",
        "hidden=8",
        "1,096 parameters",
        "FLOP and",
        "digits",
    ):
        assert text in out, text
    bars = [line.count("█") for line in out.splitlines() if "█" in line]
    assert bars[0] == bars[2] > bars[1], "the bars narrow to the code and widen again"


def test_show_prints_the_same_as_json(windtunnel):
    facts = json.loads(windtunnel("show", "rnn", "n_rec=30", "--json")[1])
    assert facts["settings"]["n_rec"] == 30
    assert (
        sum(layer["parameters"] for layer in facts["layers"])
        == facts["parameters"]
        == 2 * 30 + 30 * 30 + 30 + 30 * 2 + 2
    )
    assert [layer["width"] for layer in facts["layers"]] == [2, 30, 2]
    assert facts["flop"] > 0 and facts["peak_bytes"] > 0 and facts["guide"]


def test_show_warns_of_a_code_that_compresses_nothing(windtunnel):
    assert "fewer hidden nodes than inputs" in " ".join(
        windtunnel("show", "autoencoder", "hidden=100")[1].split()
    )


def test_train_to_a_target_and_the_same_command_again_does_nothing(windtunnel, tmp_path):
    words = ("train", "ffn", "batch=64", "--until", "accuracy=0.9", "--epochs", "6")
    code, out, err = windtunnel(*words)
    assert code == 0 and "accuracy=0.9: reached in epoch" in out
    assert "epoch 1, accuracy" in err, "progress goes to standard error"
    (folder,) = (tmp_path / "windtunnel-runs").iterdir()
    assert folder.name.startswith("ffn-")
    assert {path.name for path in folder.iterdir()} == {
        checkpoint.NAME,
        checkpoint.PREVIOUS,
        "weights.safetensors",
        "curve.json",
        "curve.svg",
    }
    code, out, err = windtunnel(*words, "--json")
    again = json.loads(out)
    assert code == 0 and again["resumed"] == again["rows"][-1]["epoch"] > 0 and err == ""
    assert again["reached"] is True and again["settings"]["batch"] == 64


def test_train_on_the_users_own_table(windtunnel, tmp_path):
    (tmp_path / "mine.csv").write_text("\n".join(f"{i % 3},{i % 3 * 2},{'abc'[i % 3]}" for i in range(60)))
    code, out, _ = windtunnel(
        "train",
        "ffn",
        "rate=0.05",
        "batch=8",
        "--data",
        "mine.csv",
        "--folder",
        "here",
        "--epochs",
        "20",
        "--json",
    )
    course = json.loads(out)
    assert code == 0 and course["rows"][-1]["figures"]["accuracy"] == 1
    assert "here/weights.safetensors" in course["files"]


def test_train_draws_the_reconstructions_of_an_auto_encoder(windtunnel, tmp_path):
    code, out, _ = windtunnel("train", "autoencoder", "--epochs", "1", "--folder", "run")
    assert code == 0 and "reconstructions.png" in out
    assert (tmp_path / "run" / "reconstructions.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_of_another_network_is_refused_without_fresh(windtunnel, tmp_path):
    windtunnel("train", "autoencoder", "--epochs", "1", "--folder", "run")
    before = (tmp_path / "run" / checkpoint.NAME).read_bytes()
    code, _, err = windtunnel("train", "ffn", "--epochs", "1", "--folder", "run")
    assert code == 2 and "network 'autoencoder', not of 'ffn'" in err and "--fresh" in err
    assert (tmp_path / "run" / checkpoint.NAME).read_bytes() == before
    assert windtunnel("train", "ffn", "--epochs", "1", "--folder", "run", "--fresh")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "autoencodr"), "Did you mean 'autoencoder'"),
        (("show", "autoencodr"), "Did you mean 'autoencoder'"),
        (("train", "ffn", "hiden=3"), "Did you mean 'hidden'"),
        (("train", "ffn", "hidden=-3"), "hidden must be above 0, not -3"),
        (("train", "ffn", "hidden"), "is not a setting"),
        (("train", "ffn", "--until", "beauty=1"), "Known: accuracy, loss"),
        (("train", "ffn", "--until", "soon"), "is not a target"),
        (("train", "ffn", "--data", "nowhere.csv"), "nowhere.csv"),
        (("train", "ffn", "--data", "."), "0 class folders"),
        (("train", "ffn", "--on", "abacus"), "--on cpu or --on cuda"),
        (("train", "ffn", "--epochs", "0"), "--epochs"),
        (("train", "rnn", "n_steps=2"), "at least 4 timesteps"),
        (("train", "rnn", "--data", "digits"), "perceptual decisions"),
        (("train", "ffn", "rate=1e30", "--epochs", "2"), "Lower the rate"),
    ],
)
def test_a_mistake_gives_exit_code_2_a_reason_and_no_output(windtunnel, words, message):
    code, out, err = windtunnel(*words)
    assert code == 2 and message in err and out == "" and "Traceback" not in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_unavailable(windtunnel):
    code, _, err = windtunnel("train", "ffn", "--on", "cuda")
    assert code == 2 and err.startswith("Unavailable: ")
