"""One contract, asked of every framework that is there: the same work from the same weights, honestly timed, its failures named.

WINDTUNNEL_ALL_FRAMEWORKS=1 builds the environments of all frameworks first and asks them all.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import windtunnel as wt
from windtunnel.errors import BadInput, BadRecord, MeasurementFailed, Unavailable, UnknownName
from windtunnel.machine import machine as machines
from windtunnel.measurement import frameworks
from windtunnel.measurement.frameworks import Task, agreement, base, catalogue, installation
from windtunnel.measurement.frameworks import numpy as reference
from windtunnel.measurement.report import ProcessReport

ALL = os.environ.get("WINDTUNNEL_ALL_FRAMEWORKS") == "1"
QUICK = wt.Protocol(processes=1, most_processes=1, seconds=0.3, warm_seconds=0.1, timeout_seconds=900)
SMALL = {"n_in": 3, "n_rec": 12, "n_out": 2, "n_steps": 6}
ROOT = Path(__file__).parent.parent


def _users_own_place() -> str:
    """Where a user's environments lie, though tests keep their profiles elsewhere."""
    kept = os.environ.pop("WINDTUNNEL_PROFILES", None)
    try:
        return str(machines.home() / "frameworks")
    finally:
        if kept is not None:
            os.environ["WINDTUNNEL_PROFILES"] = kept


if ALL:
    os.environ.setdefault(catalogue.PLACE_VARIABLE, _users_own_place())
ASKED = (
    catalogue.names()
    if ALL
    else [name for name in catalogue.names() if catalogue.python_for(name) == Path(sys.executable)]
)


def small(framework: str, variant: str, **changes: Any) -> Task:
    return dataclasses.replace(
        Task(framework=framework, variant=variant, job="rnn", settings=SMALL), **changes
    )


@pytest.fixture(scope="module", params=ASKED)
def name(request: pytest.FixtureRequest) -> str:
    if ALL:
        installation.install(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def traced(name: str) -> list[tuple[Task, dict[str, Any]]]:
    """Ten steps of every job in one child; compiling for minutes is left to the run that asks all."""
    variants = (
        None
        if ALL
        else [
            variant
            for variants in catalogue.named(name).variants.values()
            for variant in variants
            if variant != "compiled"
        ]
    )
    asked = agreement.tasks(name, variants=variants)
    return list(zip(asked, frameworks.traces(asked, agreement.STEPS), strict=True))


def most_threads(name: str) -> int:
    """Two, where the framework spreads a network over threads at all."""
    return 1 if frameworks.refusal(small(name, catalogue.named(name).variants["rnn"][0], threads=2)) else 2


@pytest.fixture(scope="module")
def timed(name: str) -> ProcessReport:
    variant = catalogue.named(name).variants["rnn"][0]
    return frameworks.run_task(small(name, variant, threads=most_threads(name)), QUICK)


class TestContract:
    def test_ten_steps_of_every_job_show_the_losses_of_numpy_by_hand(
        self, name: str, traced: list[tuple[Task, dict[str, Any]]]
    ) -> None:
        assert {task.job for task, _ in traced} == set(catalogue.named(name).variants)
        for task, seen in traced:
            assert seen["losses"] == pytest.approx(agreement.expected(task), rel=agreement.TOLERANCE), (
                task.label
            )

    def test_as_many_numbers_learn_and_all_are_float32(
        self, traced: list[tuple[Task, dict[str, Any]]]
    ) -> None:
        for task, seen in traced:
            assert seen["ready"]["parameters"] == base.problem_of(task).parameters, task.label
            assert seen["ready"]["dtype"] == "float32"

    def test_twice_the_steps_take_twice_the_time(self, name: str, timed: ProcessReport) -> None:
        """A clock that did not wait would say about 1. A neighbour on the machine may spoil one try, not three."""
        seen = [timed.linear]
        while not 1.5 < seen[-1] < 2.7 and len(seen) < 3:
            seen.append(
                frameworks.run_task(small(name, catalogue.named(name).variants["rnn"][0]), QUICK).linear
            )
        assert 1.5 < seen[-1] < 2.7, seen

    def test_threads_are_read_back_as_asked(
        self, name: str, timed: ProcessReport, traced: list[tuple[Task, dict[str, Any]]]
    ) -> None:
        assert timed.ready.threads in (most_threads(name), None)
        assert all(seen["ready"]["threads"] in (1, None) for _, seen in traced)
        assert len(traced[0][1]["ready"]["cpus"]) == 1 or sys.platform == "darwin"

    def test_the_report_has_the_shape_that_measurements_have(self, name: str, timed: ProcessReport) -> None:
        assert set(timed.samples) == {"first", "warm", "steady"} and timed.number == 0
        assert all(seconds > 0 for phase in timed.samples.values() for seconds in phase.seconds)
        assert timed.memory.peak_bytes > 0 and timed.stopped in ("time", "precision")
        task = small(name, catalogue.named(name).variants["rnn"][0])
        assert timed.losses.first == pytest.approx(agreement.expected(task)[0], rel=agreement.TOLERANCE)
        assert set(timed.ready.versions) > {"python"}


def test_at_least_numpy_and_torch_are_asked() -> None:
    assert {"numpy", "torch"} <= set(ASKED)


class TestReference:
    def test_its_gradients_are_those_of_autograd(self) -> None:
        """Every loss after the first depends on the gradients before, but this names the one that is wrong."""
        for case in ({"settings": SMALL}, {"settings": {**SMALL, "activation": "sigmoid"}, "batch": 4}):
            problem = base.problem_of(Task(framework="numpy", variant="hand", job="rnn", **case))
            w = {name: torch.tensor(value, requires_grad=True) for name, value in problem.weights.items()}
            inputs, targets = torch.tensor(problem.inputs[0]), torch.tensor(problem.targets[0])
            state, outputs = torch.zeros(inputs.shape[1], SMALL["n_rec"]), []
            for step_input in inputs:
                state = getattr(torch, problem.activation)(
                    step_input @ w["w_in"] + state @ w["w_rec"] + w["b_rec"]
                )
                outputs.append(state @ w["w_out"] + w["b_out"])
            loss = torch.nn.functional.mse_loss(torch.stack(outputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            seen, gradients = reference._learn_recurrent(
                problem, dict(problem.weights), problem.inputs[0], problem.targets[0]
            )
            assert seen == pytest.approx(loss.item(), rel=1e-5)
            for name, gradient in gradients.items():
                assert gradient == pytest.approx(w[name].grad.numpy(), rel=1e-3, abs=1e-5), name  # type: ignore[union-attr]

    def test_the_losses_would_show_a_missing_clip_a_wrong_rate_or_another_optimiser(self) -> None:
        for task in agreement.tasks("numpy"):
            right = numpy.array(agreement.expected(task))
            others = [
                dataclasses.replace(task, optimizer=o)
                for o in ("sgd", "momentum", "adam")
                if o != task.optimizer
            ]
            others.append(
                dataclasses.replace(
                    task, settings={**task.settings, "rate": 1.2 * base.problem_of(task).rate}
                )
            )
            if task.job == "rnn" and task.optimizer != "adam":  # Adam does not feel a factor on the gradient
                others.append(dataclasses.replace(task, settings={**task.settings, "clip_norm": 1e9}))
            for other in others:
                assert (
                    numpy.max(numpy.abs(numpy.array(agreement.expected(other)) / right - 1))
                    > 2 * agreement.TOLERANCE
                ), other

    def test_the_recurrent_job_is_the_one_that_is_predicted_and_measured(self) -> None:
        """Hand over the weights to the network of `windtunnel measure rnn`: the same loss, the same count."""
        job = wt.Workload.named("rnn", **SMALL)
        task = small("numpy", "hand")
        problem = base.problem_of(task)
        model = job.model()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.tensor(problem.weights[name]))
        assert job.loss is not None
        loss = job.loss(model, (torch.tensor(problem.inputs[0]), torch.tensor(problem.targets[0]))).item()
        assert loss == pytest.approx(agreement.expected(task)[0], rel=1e-5)
        assert sum(p.numel() for p in model.parameters()) == problem.parameters

    def test_other_jobs_have_as_many_parameters_as_those_that_are_predicted(self) -> None:
        for job, settings in (("fcn5", {"layers": (20, 16, 9)}), ("ffn", {})):
            model = wt.Workload.named(job, **settings).model()
            assert (
                sum(p.numel() for p in model.parameters())
                == base.problem_of(
                    Task(framework="numpy", variant="hand", job=job, settings=settings)
                ).parameters
            )

    def test_weights_and_data_follow_from_the_seed_alone(self) -> None:
        one, same, other = (
            base.problem_of(small("numpy", "hand", seed=s, data=d))
            for s, d in ((0, "resident"), (0, "streamed"), (1, "resident"))
        )
        assert (
            all((one.weights[n] == same.weights[n]).all() for n in one.weights)
            and (one.inputs == same.inputs).all()
        )
        assert not (one.inputs == other.inputs).all()
        assert one.inputs.min() >= -5 and one.inputs.max() <= 5 and one.batches == 100

    def test_large_examples_are_kept_in_smaller_number(self) -> None:
        problem = base.problem_of(
            Task(
                framework="numpy",
                variant="hand",
                job="rnn",
                settings={"n_in": 500, "n_out": 500, "n_steps": 2000},
            )
        )
        assert 1 <= problem.batches < 100


FAILURES = [
    ("raise ValueError('nothing to learn')", "raised", "nothing to learn"),
    ("hand.numpy.ones(10**15)", "out of memory", "smaller batch"),
    ("raise RuntimeError('RESOURCE_EXHAUSTED: failed to allocate 9 GB')", "out of memory", "9 GB"),
    ("import ctypes; ctypes.string_at(0)", "crashed", "SIGSEGV"),
    ("os.kill(os.getpid(), signal.SIGKILL)", "killed", "SIGKILL"),
    ('print(\'{"kind": "done"}\'); os._exit(0)', "no result", "code 0"),
    (
        "[os.write(fd, b'\\xff\\x00garbage') for fd in range(3, 20) if writable(fd)]; os._exit(0)",
        "no result",
        "code 0",
    ),
    ("import no_such_library", "not installed", "no_such_library"),
    ("time.sleep(60)", "timeout", "3 s"),
]


def own_framework(tmp_path: Path, body: str) -> str:
    """A framework's file of somebody's own, whose step does as told."""
    path = tmp_path / "mine.py"
    path.write_text(
        textwrap.dedent(
            """
            import fcntl, os, signal, time
            from windtunnel.measurement.frameworks import numpy as hand
            def writable(fd):
                try:
                    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
                except OSError:
                    return False
            def build(problem, task):
                import dataclasses
                built = hand.build(problem, task)
                def step():
                    BODY
                    return built.step()
                return dataclasses.replace(built, step=step)
            """
        ).replace("BODY", body)
    )
    return str(path)


class TestFailures:
    @pytest.mark.parametrize(("body", "state", "word"), FAILURES)
    def test_a_framework_that_fails_is_a_named_result(
        self, tmp_path: Path, body: str, state: str, word: str
    ) -> None:
        protocol = dataclasses.replace(QUICK, timeout_seconds=3.0 if state == "timeout" else 60.0)
        with pytest.raises(MeasurementFailed) as caught:
            frameworks.run_task(small(own_framework(tmp_path, body), "mine"), protocol)
        assert caught.value.state == state and word in str(caught.value)

    def test_anybodys_own_framework_is_measured_too_and_what_it_prints_disturbs_nothing(
        self, tmp_path: Path
    ) -> None:
        report = frameworks.run_task(
            small(own_framework(tmp_path, 'print(\'{"kind": "failed"}\')'), "mine"), QUICK
        )
        assert report.linear > 1 and len(report.steady) >= 3

    def test_what_a_framework_cannot_do_is_refused_with_the_reason(self) -> None:
        cases = [
            (small("torch", "module", settings={**SMALL, "activation": "sigmoid"}), "sigmoid"),
            (small("torch", "graph"), "GPU"),
            (small("torch", "scan"), "loop, module"),
            (small("numpy", "hand", device="cuda"), "cpu"),
            (small("theano", "scan"), "PyTensor".lower()),
        ]
        for task, word in cases:
            assert word in str(frameworks.refusal(task)), task
            with pytest.raises(MeasurementFailed) as caught:
                frameworks.run_task(task, QUICK)
            assert caught.value.state == "unsupported"
        assert frameworks.refusal(small("torch", "module")) is None

    def test_a_framework_that_is_not_there_says_how_to_install_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(catalogue.PLACE_VARIABLE, str(tmp_path))
        with pytest.raises(MeasurementFailed, match="windtunnel frameworks install mxnet") as caught:
            frameworks.run_task(small("mxnet", "loop"), QUICK)
        assert caught.value.state == "not installed"

    def test_wrong_words_are_refused_with_the_right_ones(self) -> None:
        with pytest.raises(UnknownName, match="torch"):
            frameworks.named("troch")
        with pytest.raises(BadRecord, match="n_rec"):
            base.settings_of(small("torch", "loop", settings={"n_rek": 5}))
        with pytest.raises(BadRecord, match="above 0"):
            base.settings_of(small("torch", "loop", settings={"n_rec": 0}))
        with pytest.raises(BadInput, match="framework"):
            frameworks.traces([small("torch", "loop"), small("numpy", "hand")], 1)


class TestCatalogue:
    def test_every_package_has_one_version(self) -> None:
        for name in catalogue.names():
            framework = catalogue.named(name)
            assert all("==" in package for package in (*framework.packages, *framework.constraints)), name
            assert bool(framework.environment) == bool(framework.packages)
            assert not any(package.startswith("torch==") for package in framework.packages), (
                "torch is borrowed: another build of it takes gigabytes"
            )

    def test_what_is_gone_says_why_and_what_took_its_place(self) -> None:
        gone = catalogue.names(gone=True)
        assert set(gone) == {"theano", "caffe", "cntk", "deeplearning4j", "torch7"}
        for name in gone:
            framework = catalogue.named(name)
            assert framework.reason and any(each in framework.successor for each in catalogue.names())
            with pytest.raises(Unavailable, match="no longer"):
                installation.install(name)

    def test_every_framework_builds_every_job_and_has_its_file(self) -> None:
        for name in catalogue.names():
            framework = catalogue.named(name)
            assert (
                set(framework.variants) == ({"rnn"} if name == "fused" else {"rnn", "fcn5", "ffn"})
                and framework.devices
            )
            file = catalogue.file_of(framework)
            assert callable(file.build) and isinstance(
                file.environment(small(name, framework.variants["rnn"][0])), dict
            )

    def test_a_folder_of_a_frameworks_name_is_not_the_framework(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "mxnet").mkdir()
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv(catalogue.PLACE_VARIABLE, str(tmp_path / "none"))
        assert frameworks.python_for("mxnet") is None

    def test_looking_at_frameworks_imports_none(self) -> None:
        code = (
            "from windtunnel.measurement import frameworks as f; [(f.named(n), f.python_for(n)) for n in f.names()]; import sys; "
            "print([m for m in ('torch', 'jax', 'keras', 'tensorflow', 'mxnet') if m in sys.modules])"
        )
        assert (
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            ).stdout.strip()
            == "[]"
        )


@pytest.fixture
def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment is a folder with an interpreter; what pip would do is written to `calls`, and fails where `fail` names it."""
    monkeypatch.setenv(catalogue.PLACE_VARIABLE, str(tmp_path / "place"))

    def call(command: list[str], framework: Any, what: str, around: Any = None) -> None:
        with (tmp_path / "calls").open("a") as file:
            file.write(json.dumps(command) + "\n")
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)
            (Path(command[-1]) / "bin" / "python").touch()
            (Path(command[-1]) / "lib" / "python3" / "site-packages").mkdir(parents=True)
        elif (tmp_path / "fail").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(installation, "_call", call)
    return tmp_path


class TestInstallation:
    def test_an_environment_is_built_once_with_the_versions_of_the_catalogue(self, fake_pip: Path) -> None:
        python = installation.install("mxnet")
        assert python == frameworks.python_for("mxnet") == fake_pip / "place" / "mxnet" / "bin" / "python"
        calls = (fake_pip / "calls").read_text()
        assert "mxnet==1.9.1" in calls and "numpy==1.23.5" in calls
        installation.install("mxnet")
        assert (fake_pip / "calls").read_text() == calls
        assert [path.name for path in (fake_pip / "place").iterdir()] == ["mxnet"]

    def test_an_interrupted_installation_leaves_nothing_and_the_old_one_whole(self, fake_pip: Path) -> None:
        (fake_pip / "fail").touch()
        with pytest.raises(KeyboardInterrupt):
            installation.install("mxnet")
        assert frameworks.python_for("mxnet") is None and not list((fake_pip / "place").iterdir())
        (fake_pip / "fail").unlink()
        installation.install("mxnet")
        (fake_pip / "fail").touch()
        with pytest.raises(KeyboardInterrupt):
            installation.install("mxnet", fresh=True)
        assert frameworks.python_for("mxnet") is not None and [
            p.name for p in (fake_pip / "place").iterdir()
        ] == ["mxnet"]

    def test_what_a_killed_installation_left_is_swept_away(self, fake_pip: Path) -> None:
        left = fake_pip / "place" / ".mxnet.999999999"
        left.mkdir(parents=True)
        installation.install("mxnet")
        assert not left.exists()

    def test_an_environment_of_other_versions_is_built_anew(self, fake_pip: Path) -> None:
        installation.install("mxnet")
        stamp = fake_pip / "place" / "mxnet" / catalogue.STAMP
        stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "packages": ["mxnet==1.8.0"]}))
        assert installation.is_outdated(catalogue.named("mxnet"))
        installation.install("mxnet")
        assert not installation.is_outdated(catalogue.named("mxnet"))

    def test_keras_on_pytorch_uses_the_pytorch_that_is_here(self, fake_pip: Path) -> None:
        if catalogue.python_for("keras-torch") is not None:
            pytest.skip("this interpreter has Keras itself")
        installation.install("keras-torch")
        borrowed = fake_pip / "place" / "keras-torch" / "lib" / "python3" / "site-packages" / "borrowed.pth"
        assert Path(borrowed.read_text().strip()) == Path(torch.__file__).parents[1]
        assert installation.versions("keras-torch")["torch"] == torch.__version__

    def test_a_failing_pip_is_told_with_its_last_words(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(Unavailable, match="no such version"):
            installation._call(
                [sys.executable, "-c", "raise SystemExit('no such version')"],
                catalogue.named("mxnet"),
                "pip could not install it",
            )


class TestCommandLine:
    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "windtunnel", "frameworks", *words],
            capture_output=True,
            text=True,
            check=False,
        )

    def test_list_tells_of_every_framework_and_of_those_that_are_gone(self) -> None:
        seen = self.command("list")
        assert seen.returncode == 0
        for name in (*catalogue.names(), *catalogue.names(gone=True)):
            assert name in seen.stdout
        rows = {row["name"]: row for row in json.loads(self.command("list", "--json").stdout)}
        assert (
            rows["torch"]["versions"]["torch"] == torch.__version__ and rows["caffe"]["successor"] == "torch"
        )

    def test_check_prints_a_table_that_says_the_same(self) -> None:
        seen = self.command("check", "numpy")
        assert seen.returncode == 0 and seen.stdout.count("the same") == len(agreement.tasks("numpy"))

    def test_what_cannot_be_installed_says_why(self) -> None:
        seen = self.command("install", "cntk")
        assert seen.returncode == 2 and "successor is torch" in seen.stderr


def test_a_framework_that_does_other_work_is_found_out() -> None:
    task = agreement.tasks("numpy")[0]
    right = agreement.expected(task)
    ready = {"parameters": base.problem_of(task).parameters, "dtype": "float32"}
    assert agreement.judge(task, {"losses": right, "ready": ready}).agrees
    wrong = [*right[:4], *(loss * 1.001 for loss in right[4:])]
    assert "step 5" in agreement.judge(task, {"losses": wrong, "ready": ready}).difference
    assert (
        "part at step 1" in agreement.judge(task, {"losses": [float("nan")] * 10, "ready": ready}).difference
    )
    assert (
        "parameters"
        in agreement.judge(task, {"losses": right, "ready": {**ready, "parameters": 7}}).difference
    )
    assert (
        "float64"
        in agreement.judge(task, {"losses": right, "ready": {**ready, "dtype": "float64"}}).difference
    )


def test_the_catalogue_file_is_read_strictly() -> None:
    data = tomllib.loads((ROOT / "src" / "windtunnel" / "catalog" / "frameworks.toml").read_text())
    assert set(data["framework"]) == {*catalogue.names(), *catalogue.names(gone=True)}
    assert {entry["environment"] for entry in data["framework"].values() if "environment" in entry} == set(
        data["environment"]
    )
