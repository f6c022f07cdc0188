"""A study of one figure with 100 x 100 measured cells, for tests of the page."""

from __future__ import annotations

from pathlib import Path

from windtunnel.study import export
from windtunnel.study.rows import StudyRow


def write_wide_study(tmp_path: Path) -> tuple[Path, Path]:
    """Write the study and its rows; returns its folder and the file of rows."""
    folder = tmp_path / "wide"
    folder.mkdir()
    (folder / "study.toml").write_text('title = "Wide <b>"\nauthors = "A"\nyear = 2026\nsource = "S"\n')
    sizes = list(range(1, 101))
    (folder / "figure-1.toml").write_text(
        'title = "One"\nsource = "S"\njob = "ffn"\n[grid]\n'
        f"hidden = {sizes}\nbatch = {sizes}\n"
        '[[cases]]\nname = "all"\nlabels = ["torch:eager"]\n'
    )
    rows = [
        StudyRow(
            study="wide",
            figure="figure-1",
            case="all",
            label="torch:eager",
            job="ffn",
            settings={"hidden": hidden},
            device="cpu",
            threads=1,
            batch=batch,
            data="resident",
            optimizer="sgd",
            origin="measured",
            state="done",
            step_seconds=1e-6 * hidden * batch,
            low_seconds=0.9e-6 * hidden * batch,
            high_seconds=1.1e-6 * hidden * batch,
        )
        for hidden in sizes
        for batch in sizes
    ]
    export.write(rows, tmp_path / "rows.json")
    return folder, tmp_path / "rows.json"
