"""A study in a notebook: its rows as a report, as a dataframe, as charts and as one offline page.

Every `# %%` starts a cell in editors that support notebooks. As a script it prints study_notebook.txt. It
shows the published rows; after `windtunnel study run brandfonbrener-2017`, `windtunnel study report` adds
the rows measured here.
"""

# %% The study and the rows that its author printed
import tempfile
from pathlib import Path

import windtunnel as wt

paper = wt.Study.named("brandfonbrener-2017")
report = wt.StudyReport(study=paper, rows=tuple(paper.published()))
print(f"{paper.title}: {len(report.rows)} published rows")

# %% A report shows itself as the last line of a cell; print(report) gives it as text. One figure of it:
print(report.figure_text("figure-09"))

# %% A dataframe: one record for every row, a column for each setting
frame = report.frame()
slowest = frame[frame.figure == "figure-09"].nlargest(3, "example_seconds")
print(slowest[["n_rec", "n_steps", "device_name", "example_seconds"]].to_string(index=False))

# %% A chart shows itself too; `.altair()` gives an object to change, `.save` writes .svg, .png or .html
chart = report.chart("figure-09", "n_steps", title="Grace CPU, n_rec 200", n_rec=200)
points = chart.spec["layer"][0]["data"]["values"]
print([(point["x"], round(point["y"], 1)) for point in points])

# %% The whole report as one file that opens without a network
with tempfile.TemporaryDirectory() as folder:
    page = report.save(Path(folder) / "report.html")
    print(page.name, "has its figures" if "Figure 12" in page.read_text() else "is empty")
