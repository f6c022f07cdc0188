"""A step as a file to look at: what a forecast laid out, and what a profiler saw."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import run

import windtunnel as wt
from windtunnel import perfetto
from windtunnel.cli import words
from windtunnel.errors import BadInput
from windtunnel.forecast.schedule import COPY, DEVICE, HOST, LaneTask, StepBuilder
from windtunnel.forecast.timeline import Timeline, steady_timeline
from windtunnel.measurement import families, profiler
from windtunnel.measurement.processes import MeasureOptions
from windtunnel.measurement.store import Store

QUICK = wt.Protocol(processes=1, most_processes=1, seconds=0.05, warm_seconds=0.05, timeout_seconds=900)


def three_steps() -> Timeline:
    """A host that launches faster than its device works, with a batch copied first."""
    step = StepBuilder()
    step.add(LaneTask(HOST, 1e-6, "launch", "step"))
    batch = step.add(LaneTask(COPY, 2e-6, "copy", "batch"), after=(0,))
    launch = step.add(LaneTask(HOST, 3e-6, "launch", "aten.mm"))
    step.add(LaneTask(DEVICE, 9e-6, "compute", "aten.mm"), after=(batch, launch))
    step.add(LaneTask(HOST, 0.0, "launch", "nothing"))
    return steady_timeline(step.build())


def spans_by_lane(data: dict[str, Any], process: str) -> dict[str, list[dict[str, Any]]]:
    events = data["traceEvents"]
    (pid,) = {e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == process}
    names = {e["tid"]: e["args"]["name"] for e in events if e["pid"] == pid and e["name"] == "thread_name"}
    return {
        name: [e for e in events if e["ph"] == "X" and e["pid"] == pid and e["tid"] == tid]
        for tid, name in names.items()
    }


def test_a_forecast_is_a_lane_a_thread_with_its_steady_step_marked() -> None:
    timeline = three_steps()
    lanes = spans_by_lane(perfetto.from_timeline(timeline), "forecast")
    assert list(lanes) == ["steps", "host", "device", "copy engine"]
    assert [e["name"] for e in lanes["steps"]] == ["step 1", "steady step"]
    assert lanes["steps"][-1]["dur"] == pytest.approx(timeline.step_seconds * 1e6)
    assert {"part": "compute", "step": 2, "steady": True}.items() <= lanes["device"][-1]["args"].items()
    for spans in lanes.values():
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-9 for a, b in itertools.pairwise(spans)), (
            "a lane does one thing at a time"
        )
        assert all(e["dur"] > 0 and e["ts"] >= 0 for e in spans)


def test_two_timelines_lie_in_one_file_as_two_processes(tmp_path: Path) -> None:
    measured = perfetto.from_events(
        [{"lane": "device", "name": "gemm", "start": 0.5, "seconds": 0.25, "op": "aten::mm"}]
    )
    path = tmp_path / "both.json"
    perfetto.write(path, perfetto.together(perfetto.from_timeline(three_steps()), measured))
    data = json.loads(path.read_text())
    assert spans_by_lane(data, "forecast")["device"] and [p.name for p in tmp_path.iterdir()] == ["both.json"]
    (kernel,) = spans_by_lane(data, "measured")["device"]
    assert (kernel["ts"], kernel["dur"], kernel["args"]) == (0.5e6, 0.25e6, {"launched_by": "aten::mm"})


def test_what_was_cut_is_said() -> None:
    data = perfetto.from_events([], left_out=1234)
    assert "1,234 later events left out" in json.dumps(data)


@pytest.mark.parametrize("where", ["no/such/folder/t.json", ".", "file/t.json"])
def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="--timeline"):
        words.refuse_unwritable(tmp_path / where, "--timeline")


@pytest.mark.parametrize("verb", [("predict", "--on", "h200"), ("measure",)])
def test_a_bad_file_stops_a_command_before_it_works(tmp_path: Path, verb: tuple[str, ...]) -> None:
    done = run(*verb, "rnn", "--timeline", str(tmp_path / "missing" / "t.json"), store=tmp_path / "s.sqlite")
    assert done.returncode == 2 and "--timeline" in done.stderr and "Traceback" not in done.stderr
    assert not done.stdout and not (tmp_path / "s.sqlite").exists()


def test_the_command_writes_a_forecast_beside_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    words = (
        "measure",
        "rnn",
        "n_steps=3",
        "--threads",
        "1",
        "--processes",
        "1",
        "--seconds",
        "0.05",
        "--timeline",
        str(path),
    )
    done = run(*words, store=tmp_path / "s.sqlite")
    assert done.returncode == 0, done.stderr
    data = json.loads(path.read_text())
    assert spans_by_lane(data, "forecast")["steps"][-1]["name"] == "steady step"
    assert any(e["name"].startswith("aten::") for e in spans_by_lane(data, "measured")["host"])


def test_a_measured_step_is_told_once_and_not_stored(tmp_path: Path) -> None:
    store, seen = Store(tmp_path / "s.sqlite"), list[dict[str, Any]]()
    protocol = wt.Protocol(processes=2, most_processes=2, seconds=0.05, warm_seconds=0.05)
    here = wt.Machine.here().with_cpu_only()
    wt.measure(
        wt.Workload.named("rnn", n_steps=2),
        here,
        wt.Strategy(threads=1),
        protocol=protocol,
        store=store,
        options=MeasureOptions(timeline=seen.append),
    )
    assert len(seen) == 1 and seen[0]["left_out"] == 0
    events = seen[0]["events"]
    assert {e["lane"] for e in events} == {"host"} and min(e["start"] for e in events) >= 0
    assert [e["name"] for e in events].count("windtunnel step") == 1, "one step and no more"
    assert all("timeline" not in report.plain() for report in store.reports(1))


@dataclass(frozen=True, kw_only=True)
class Raw:
    """An event as the profiler's library gives it, in nanoseconds."""

    called: str
    at: int
    lasts: int
    on_device: bool = False
    own: int = 0
    link: int = 0
    row: int = 1
    annotation: bool = False

    def name(self) -> str:
        return self.called

    def start_ns(self) -> int:
        return 10**18 + self.at

    def duration_ns(self) -> int:
        return self.lasts

    def device_type(self) -> str:
        return "device" if self.on_device else "host"

    def correlation_id(self) -> int:
        return self.own

    def linked_correlation_id(self) -> int:
        return self.link

    def is_user_annotation(self) -> bool:
        return self.annotation

    def is_async(self) -> bool:
        return False

    def start_thread_id(self) -> int:
        return self.row

    def device_resource_id(self) -> int:
        return self.row


GPU_STEP = (
    Raw(called="windtunnel step", at=0, lasts=9_000, own=1, annotation=True),
    Raw(called="aten::linear", at=100, lasts=1_000, own=2),
    Raw(called="aten::addmm", at=200, lasts=800, own=3),
    Raw(called="cudaLaunchKernel", at=300, lasts=100, own=900, link=3),
    Raw(called="ampere_sgemm_128x64_tn", at=2_000, lasts=4_000, on_device=True, own=900, link=3, row=7),
    Raw(called="autograd::engine::evaluate_function: AddmmBackward0", at=1_200, lasts=900, own=4, row=2),
    Raw(called="aten::mm", at=1_300, lasts=700, own=5, row=2),
    Raw(called="splitKreduce_kernel", at=6_000, lasts=1_000, on_device=True, link=5, row=7),
    Raw(called="Optimizer.step#AdamW.step", at=3_000, lasts=2_000, own=6, annotation=True),
    Raw(called="aten::_fused_adamw_", at=3_100, lasts=500, own=7),
    Raw(
        called="multi_tensor_apply_kernel<FusedAdamMathFunctor>",
        at=7_000,
        lasts=2_000,
        on_device=True,
        link=7,
        row=7,
    ),
    Raw(called="Optimizer.step#AdamW.step", at=7_000, lasts=2_000, on_device=True, annotation=True, row=7),
    Raw(called="Memcpy HtoD (Pinned -> Device)", at=5_000, lasts=3_000, on_device=True, link=8, row=13),
    Raw(called="aten::copy_", at=5_500, lasts=100, own=8),
    Raw(
        called="cudaDeviceSynchronize", at=9_000, lasts=500, own=5
    ),  # numbered by the driver: no kin of the aten::mm above
    Raw(
        called="void at::native::vectorized_elementwise_kernel<4, relu>",
        at=9_000,
        lasts=500,
        on_device=True,
        row=7,
    ),
)


def test_each_kernel_counts_once_for_the_op_that_launched_it() -> None:
    watched = profiler.ProfiledSteps(tuple(profiler.read(GPU_STEP, "device")), 1, 1e-5)
    parts = profiler.sum_up(watched, "cuda")
    assert parts.ops == pytest.approx(
        {
            "addmm": 4e-6,
            "mm": 1e-6,
            "_fused_adamw_": 2e-6,
            "void at::native::vectorized_elementwise_kernel<4, relu>": 0.5e-6,
        }
    )
    assert parts.families == pytest.approx({"matmul": 5e-6, "optimiser": 2e-6, "streaming": 0.5e-6})
    assert parts.busy == pytest.approx(7.5e-6), "a range mirrored on the device is no work"
    assert parts.update == pytest.approx(2e-6) and parts.kernels == 4
    assert parts.copy == pytest.approx(3e-6) and parts.exposed_copy == pytest.approx(0.0)


def test_a_gpu_step_shows_threads_streams_and_the_copy_engine_apart() -> None:
    shown = profiler.last_step(profiler.ProfiledSteps(tuple(profiler.read(GPU_STEP, "device")), 1, 1e-5))
    lanes = {e["lane"] for e in shown["events"]}
    assert lanes == {"host", "host 2", "device", "copy engine"}
    assert {e["op"] for e in shown["events"] if e["lane"] == "copy engine"} == {"aten::copy_"}
    assert not any(e["name"] == "cudaLaunchKernel" for e in shown["events"])


def test_only_the_last_step_is_told_and_no_more_than_can_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = tuple(
        profiler.Event(name, "host", 1, start, start + 1.0, name, start, name == "windtunnel step")
        for name, start in (
            ("windtunnel step", 0.0),
            ("aten::a", 0.5),
            ("windtunnel step", 2.0),
            ("aten::b", 2.5),
            ("aten::c", 2.7),
        )
    )
    monkeypatch.setattr(profiler, "MOST_EVENTS", 2)
    shown = profiler.last_step(profiler.ProfiledSteps(events, 2, 4.0))
    assert [(e["name"], e["start"]) for e in shown["events"]] == [
        ("windtunnel step", 0.0),
        ("aten::b", 0.5),
    ] and shown["left_out"] == 1


def test_time_inside_an_op_is_its_own_and_not_that_of_the_ops_below() -> None:
    spans = (
        ("windtunnel step", 0.0, 10.0),
        ("aten::linear", 1.0, 6.0),
        ("aten::t", 1.5, 2.0),
        ("aten::addmm", 2.0, 5.0),
        ("aten::relu", 7.0, 9.0),
    )
    events = tuple(
        profiler.Event(name, "host", 1, start, end, name, start, name == "windtunnel step")
        for name, start, end in spans
    )
    parts = profiler.sum_up(profiler.ProfiledSteps(events, 1, 10.0), "cpu")
    assert parts.ops == {"linear": 1.5, "addmm": 3.0, "relu": 2.0}
    assert parts.families == {"matmul": 4.5, "streaming": 2.0}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("aten::cudnn_convolution", "convolution"),
        ("aten::cudnn_convolution_transpose", "convolution"),
        ("aten::mkldnn_convolution", "convolution"),
        ("aten::convolution_backward", "convolution"),
        ("aten::cudnn_batch_norm_backward", "normalisation"),
        ("aten::_cudnn_rnn", "recurrent"),
        ("aten::_cudnn_rnn_backward", "recurrent"),
        ("aten::_flash_attention_forward", "attention"),
        ("aten::_efficient_attention_backward", "attention"),
        ("aten::_fused_adamw_", "optimiser"),
        ("aten::_foreach_addcdiv_", "foreach"),
        ("aten::clamp_min_", "streaming"),
        ("aten::sqrt_", "streaming"),
        ("aten::view", "host"),
        ("aten::empty_strided", "host"),
        ("aten::conv2d", "host"),
        ("aten::cross_entropy_loss", "host"),
        ("aten::item", "host"),
        ("mylib::unheard_of", "other"),
        ("## Call CompiledFxGraph fabc ##", "streaming"),
    ],
)
def test_names_of_libraries_belong_to_the_families_of_forecasts(name: str, family: str) -> None:
    assert families.family_of_op(name) == family


@pytest.mark.parametrize(
    ("kernel", "op", "family"),
    [
        ("nvjet_tst_128x64_TNT", "", "matmul"),
        ("sm90_xmma_fprop_implicit_gemm_f32", "", "convolution"),
        ("cudnn::bn_fw_tr_1C11_kernel_NCHW", "", "normalisation"),
        ("pytorch_flash::flash_fwd_kernel", "", "attention"),
        ("triton_poi_fused_relu_0", "triton_poi_fused_relu_0", "streaming"),
        ("triton_per_fused_sum_1", "## Call CompiledFxGraph fabc ##", "streaming"),
        ("triton_tem_fused_mm_2", "## Call CompiledFxGraph fabc ##", "matmul"),
        ("ampere_sgemm", "MyFunctionBackward", "matmul"),
        ("whatever", "aten::_softmax", "softmax"),
    ],
)
def test_a_kernel_belongs_to_its_op_or_to_what_its_name_tells(kernel: str, op: str, family: str) -> None:
    assert families.family_of_kernel(kernel, op) == family
