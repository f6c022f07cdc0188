"""One contract for every installed framework: the same work from the same weights, correct timing, failures
by name.

WINDTUNNEL_ALL_FRAMEWORKS=1 first builds the environments of all frameworks, and then tests them all.
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
from windtunnel.measurement.frameworks import numpy as by_hand
from windtunnel.measurement.report import ProcessReport
from windtunnel.networks import definitions
from windtunnel.study import study as studies

ALL = os.environ.get("WINDTUNNEL_ALL_FRAMEWORKS") == "1"
QUICK = wt.Protocol(processes=1, most_processes=1, seconds=0.3, warm_seconds=0.1, timeout_seconds=900)
SMALL = {"n_in": 3, "n_rec": 12, "n_out": 2, "n_steps": 6}
ROOT = Path(__file__).parent.parent


def _users_own_place() -> str:
    """The folder of a user's environments, though tests keep their profiles elsewhere."""
    profiles = os.environ.pop("WINDTUNNEL_PROFILES", None)
    try:
        return str(machines.home() / "frameworks")
    finally:
        if profiles is not None:
            os.environ["WINDTUNNEL_PROFILES"] = profiles


if ALL:
    os.environ.setdefault(catalogue.PLACE_VARIABLE, _users_own_place())
TESTED = (
    catalogue.names()
    if ALL
    else [name for name in catalogue.names() if catalogue.python_for(name) == Path(sys.executable)]
)


def small(framework: str, variant: str, **changes: Any) -> Task:
    return dataclasses.replace(
        Task(framework=framework, variant=variant, job="rnn", settings=SMALL), **changes
    )


@pytest.fixture(scope="module", params=TESTED)
def name(request: pytest.FixtureRequest) -> str:
    if ALL:
        installation.install(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def traced(name: str) -> list[tuple[Task, dict[str, Any]]]:
    """Ten steps of every job in one child. Variants that compile for minutes run only with all frameworks."""
    tasks = [task for task in agreement.tasks(name) if ALL or task.variant != "compiled"]
    return list(zip(tasks, frameworks.traces(tasks, agreement.STEPS), strict=True))


def most_threads(name: str) -> int:
    """Two, where the framework can use more than one thread."""
    return 1 if frameworks.refusal(small(name, catalogue.named(name).variants["rnn"][0], threads=2)) else 2


@pytest.fixture(scope="module")
def timed(name: str) -> ProcessReport:
    variant = catalogue.named(name).variants["rnn"][0]
    return frameworks.run_task(small(name, variant, threads=most_threads(name)), QUICK)


class TestContract:
    def test_ten_steps_of_every_job_have_the_losses_of_the_reference(
        self, name: str, traced: list[tuple[Task, dict[str, Any]]]
    ) -> None:
        """The reference is NumPy by hand, and PyTorch for the jobs that NumPy does not build."""
        assert {task.job for task, _ in traced} == set(catalogue.named(name).variants)
        for task, trace in traced:
            comparison = agreement.compare(task, trace)
            assert comparison.agrees, (task.label, task.job, comparison.difference)

    def test_as_many_numbers_learn_and_all_are_float32(
        self, traced: list[tuple[Task, dict[str, Any]]]
    ) -> None:
        for task, trace in traced:
            assert trace["ready"]["parameters"] == base.problem_of(task).parameters, task.label
            assert trace["ready"]["dtype"] == "float32"

    def test_twice_the_steps_take_twice_the_time(self, name: str, timed: ProcessReport) -> None:
        """A clock that does not wait for the work reads about 1.

        Other processes may disturb some runs, but not six of them.
        """
        ratios = [timed.linear]
        task = small(name, catalogue.named(name).variants["rnn"][0])
        while not 1.5 < ratios[-1] < 2.7 and len(ratios) < 6:
            ratios.append(frameworks.run_task(task, QUICK).linear)
        assert 1.5 < ratios[-1] < 2.7, ratios

    def test_the_framework_reports_the_threads_of_the_task(
        self, name: str, timed: ProcessReport, traced: list[tuple[Task, dict[str, Any]]]
    ) -> None:
        assert timed.ready.threads in (most_threads(name), None)
        assert all(trace["ready"]["threads"] in (1, None) for _, trace in traced)
        assert len(traced[0][1]["ready"]["cpus"]) == 1 or sys.platform == "darwin"

    def test_the_report_has_the_shape_that_measurements_have(self, name: str, timed: ProcessReport) -> None:
        assert set(timed.samples) == {"first", "warm", "steady"} and timed.number == 0
        assert all(seconds > 0 for phase in timed.samples.values() for seconds in phase.seconds)
        assert timed.memory.peak_bytes > 0 and timed.stopped in ("time", "precision")
        task = small(name, catalogue.named(name).variants["rnn"][0])
        assert timed.losses.first == pytest.approx(agreement.expected(task)[0], rel=agreement.TOLERANCE)
        assert set(timed.ready.versions) > {"python"}


def test_at_least_numpy_and_torch_are_tested() -> None:
    assert {"numpy", "torch"} <= set(TESTED)


def with_mistakes(task: Task) -> list[Task]:
    """The task with another optimiser, another rate, and without clipping."""
    optimizers = [name for name in ("sgd", "momentum", "adam") if name != task.optimizer]
    others = [dataclasses.replace(task, optimizer=name) for name in optimizers]
    problem = base.problem_of(task)
    changes = [{"rate": 1.2 * problem.rate}]
    if problem.clip_norm and task.optimizer != "adam":  # a factor on the gradient cancels in Adam
        changes.append({"clip_norm": 1e9})
    return others + [dataclasses.replace(task, settings={**task.settings, **change}) for change in changes]


def apart(losses: list[float], right: Any) -> float:
    return float(numpy.max(numpy.abs(numpy.array(losses) / right - 1)))


class TestReference:
    def test_its_gradients_are_those_of_autograd(self) -> None:
        """Every loss after the first depends on earlier gradients; this test names the gradient that is
        wrong.
        """
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
            value, gradients = by_hand._learn_recurrent(
                problem, dict(problem.weights), problem.inputs[0], problem.targets[0]
            )
            assert value == pytest.approx(loss.item(), rel=1e-5)
            for name, gradient in gradients.items():
                assert gradient == pytest.approx(w[name].grad.numpy(), rel=1e-3, abs=1e-5), name  # type: ignore[union-attr]

    def test_the_losses_would_show_a_missing_clip_a_wrong_rate_or_another_optimiser(self) -> None:
        for task in agreement.tasks("numpy"):
            right = numpy.array(agreement.expected(task))
            for other in with_mistakes(task):
                assert apart(agreement.expected(other), right) > 2 * agreement.TOLERANCE, other

    def test_so_would_those_of_the_jobs_that_numpy_does_not_build(self) -> None:
        tasks = [
            task for task in agreement.tasks("torch", variants=["module"]) if task.job not in by_hand.JOBS
        ]
        assert {task.job for task in tasks} == {"lstm", "resnet18"}
        for task in tasks:
            right, *wrong = frameworks.traces([task, *with_mistakes(task)], agreement.STEPS)
            for other, trace in zip(with_mistakes(task), wrong, strict=True):
                assert apart(trace["losses"], numpy.array(right["losses"])) > 2 * agreement.TOLERANCE, other

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

    @pytest.mark.parametrize("job", definitions.names())
    def test_every_job_has_as_many_parameters_as_the_network_that_is_predicted(self, job: str) -> None:
        definition = definitions.named(job)
        for trial in definition.trials:
            model = wt.Workload.named(job, **trial.settings).model()
            task = Task(framework="torch", variant="module", job=job, settings=trial.settings)
            assert sum(p.numel() for p in model.parameters()) == base.problem_of(task).parameters

    def test_weights_and_data_depend_on_the_seed_alone(self) -> None:
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

    def test_fewer_batches_are_kept_of_large_examples(self) -> None:
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
    ("time.sleep(1000)", "timeout", "3 s"),
]


def own_framework(tmp_path: Path, body: str) -> str:
    """A user's own framework file, whose step first runs `body`."""
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
                built = hand.build(problem, dataclasses.replace(task, variant="hand"))
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
        protocol = dataclasses.replace(QUICK, timeout_seconds=3.0) if state == "timeout" else QUICK
        with pytest.raises(MeasurementFailed) as caught:
            frameworks.run_task(small(own_framework(tmp_path, body), "mine"), protocol)
        assert caught.value.state == state and word in str(caught.value)

    def test_a_users_own_framework_is_measured_too_and_may_print(self, tmp_path: Path) -> None:
        report = frameworks.run_task(
            small(own_framework(tmp_path, 'print(\'{"kind": "failed"}\')'), "mine"), QUICK
        )
        assert report.linear > 1 and len(report.steady) >= 3

    def test_a_task_that_a_framework_cannot_run_is_refused_with_the_reason(self) -> None:
        cases = [
            (small("torch", "module", settings={**SMALL, "activation": "sigmoid"}), "sigmoid"),
            (
                small("torch", "module-graph", settings={**SMALL, "activation": "sigmoid"}, device="gpu"),
                "sigmoid",
            ),
            (small("torch", "graph"), "GPU"),
            (small("torch", "module-graph"), "GPU"),
            (small("torch", "graph", device="gpu", data="streamed"), "fixed address"),
            (small("torch", "module-graph", device="gpu", data="streamed"), "fixed address"),
            (small("jax", "epoch", data="streamed"), "on the device"),
            (small("torch", "scan"), "loop, module"),
            (small("numpy", "hand", device="gpu"), "cpu"),
            (small("theano", "scan"), "PyTensor".lower()),
        ]
        for task, word in cases:
            assert word in str(frameworks.refusal(task)), task
            with pytest.raises(MeasurementFailed) as caught:
                frameworks.run_task(task, QUICK)
            assert caught.value.state == "unsupported"
        assert frameworks.refusal(small("torch", "module")) is None

    def test_a_missing_framework_says_how_to_install_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(catalogue.PLACE_VARIABLE, str(tmp_path))
        with pytest.raises(MeasurementFailed, match="windtunnel frameworks install mxnet") as caught:
            frameworks.run_task(small("mxnet", "loop"), QUICK)
        assert caught.value.state == "not installed"

    def test_a_mistake_is_refused_with_the_nearest_right_word(self) -> None:
        with pytest.raises(UnknownName, match="torch"):
            frameworks.named("troch")
        with pytest.raises(BadRecord, match="n_rec"):
            base.settings_of(small("torch", "loop", settings={"n_rek": 5}))
        with pytest.raises(BadRecord, match="above 0"):
            base.settings_of(small("torch", "loop", settings={"n_rec": 0}))
        with pytest.raises(BadRecord, match="no setting 'epochs'"):
            base.settings_of(small("torch", "loop", settings={"epochs": 5}))
        with pytest.raises(UnknownName, match="'gpt2'"):
            base.settings_of(small("torch", "loop", job="gpt2"))
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

    def test_a_framework_that_is_gone_has_a_reason_and_a_successor(self) -> None:
        gone = catalogue.names(gone=True)
        assert set(gone) == {"theano", "caffe", "cntk", "deeplearning4j", "torch7"}
        for name in gone:
            framework = catalogue.named(name)
            assert framework.reason and any(each in framework.successor for each in catalogue.names())
            with pytest.raises(Unavailable, match="no longer"):
                installation.install(name)

    def test_every_framework_has_its_file_and_builds_jobs_that_are_defined(self) -> None:
        for name in catalogue.names():
            framework = catalogue.named(name)
            assert {"rnn"} <= set(framework.variants) <= set(definitions.names()) and framework.devices
            file = catalogue.file_of(framework)
            task = small(name, framework.variants["rnn"][0])
            assert callable(file.build) and isinstance(file.environment(task), dict)
        assert set(catalogue.jobs()) == set(definitions.names())

    def test_a_job_in_a_frameworks_file_is_known_everywhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Adding a job to a framework touches the file of the framework alone."""
        task = small("mxnet", "loop", job="lstm", settings={"width": 8})
        assert "no variant 'loop' for lstm" in str(frameworks.refusal(task))
        monkeypatch.setitem(catalogue.file_of(catalogue.named("mxnet")).JOBS, "lstm", {"loop": None})
        assert catalogue.named("mxnet").variants["lstm"] == ("loop",) and frameworks.refusal(task) is None
        assert {each.batch for each in agreement.tasks("mxnet") if each.job == "lstm"} == {3, 4}
        assert "width" in studies.step_settings("lstm")

    def test_jobs_and_framework_files_need_no_pytorch(self) -> None:
        """A framework's own environment may lack PyTorch."""
        code = (
            "import sys; sys.modules['torch'] = None\n"
            "from windtunnel.measurement.frameworks import agreement, base, catalogue\n"
            "for name in catalogue.names():\n"
            "    for task in agreement.tasks(name):\n"
            "        assert base.problem_of(task).parameters > 0\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_a_folder_of_a_frameworks_name_is_not_the_framework(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "mxnet").mkdir()
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv(catalogue.PLACE_VARIABLE, str(tmp_path / "none"))
        assert frameworks.python_for("mxnet") is None

    def test_looking_at_frameworks_imports_none(self) -> None:
        code = (
            "import sys; from windtunnel.measurement import frameworks as f; "
            "[(f.named(n).variants, f.python_for(n)) for n in f.names()]; "
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
    """An environment is a folder with an interpreter.

    Calls of pip are written to `calls`, and fail where `fail` exists.
    """
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

    def test_the_rest_of_a_killed_installation_is_removed(self, fake_pip: Path) -> None:
        left = fake_pip / "place" / ".mxnet.00000000-999999999-1"
        left.mkdir(parents=True)
        installation.install("mxnet")
        assert not left.exists()

    def test_an_environment_of_other_versions_is_built_again(self, fake_pip: Path) -> None:
        installation.install("mxnet")
        stamp = fake_pip / "place" / "mxnet" / catalogue.STAMP
        stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "packages": ["mxnet==1.8.0"]}))
        assert installation.is_outdated(catalogue.named("mxnet"))
        installation.install("mxnet")
        assert not installation.is_outdated(catalogue.named("mxnet"))

    def test_keras_on_pytorch_uses_the_pytorch_of_this_interpreter(self, fake_pip: Path) -> None:
        if catalogue.python_for("keras-torch") is not None:
            pytest.skip("this interpreter has Keras itself")
        installation.install("keras-torch")
        borrowed = fake_pip / "place" / "keras-torch" / "lib" / "python3" / "site-packages" / "borrowed.pth"
        assert Path(borrowed.read_text().strip()) == Path(torch.__file__).parents[1]
        assert installation.versions("keras-torch")["torch"] == torch.__version__

    def test_the_error_of_a_failing_pip_has_its_last_lines(
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

    def test_list_shows_every_framework_and_those_that_are_gone(self) -> None:
        done = self.command("list")
        assert done.returncode == 0
        for name in (*catalogue.names(), *catalogue.names(gone=True)):
            assert name in done.stdout
        rows = {row["name"]: row for row in json.loads(self.command("list", "--json").stdout)}
        assert (
            rows["torch"]["versions"]["torch"] == torch.__version__ and rows["caffe"]["successor"] == "torch"
        )

    def test_check_prints_a_line_for_every_task(self) -> None:
        done = self.command("check", "numpy")
        assert done.returncode == 0 and done.stdout.count("the same") == len(agreement.tasks("numpy"))

    def test_a_framework_that_cannot_be_installed_says_why(self) -> None:
        done = self.command("install", "cntk")
        assert done.returncode == 2 and "successor is torch" in done.stderr


def test_a_framework_that_does_other_work_does_not_agree() -> None:
    task = agreement.tasks("numpy")[0]
    right = agreement.expected(task)
    ready = {"parameters": base.problem_of(task).parameters, "dtype": "float32"}
    assert agreement.compare(task, {"losses": right, "ready": ready}).agrees
    wrong = [*right[:4], *(loss * 1.001 for loss in right[4:])]
    assert "step 5" in agreement.compare(task, {"losses": wrong, "ready": ready}).difference
    assert (
        "differ from step 1"
        in agreement.compare(task, {"losses": [float("nan")] * 10, "ready": ready}).difference
    )
    assert (
        "parameters"
        in agreement.compare(task, {"losses": right, "ready": {**ready, "parameters": 7}}).difference
    )
    assert (
        "float64"
        in agreement.compare(task, {"losses": right, "ready": {**ready, "dtype": "float64"}}).difference
    )


def test_the_catalogue_file_is_read_strictly() -> None:
    data = tomllib.loads((ROOT / "src" / "windtunnel" / "catalog" / "frameworks.toml").read_text())
    assert set(data["framework"]) == {*catalogue.names(), *catalogue.names(gone=True)}
    assert {entry["environment"] for entry in data["framework"].values() if "environment" in entry} == set(
        data["environment"]
    )
