"""A study in a notebook: its rows as a report, as a dataframe, as charts and as one offline page.

Every `# %%` starts a cell in editors that support notebooks. As a script it prints study_notebook.txt. It
shows the published rows; after `windtunnel study run brandfonbrener-2017`, `results` adds the rows measured
here.
"""

# %% The study and the rows its author printed. With a store of your own: rows = results.results(paper)
import tempfile
from pathlib import Path

from windtunnel.reports import charts, text
from windtunnel.reports.study import StudyReport
from windtunnel.study import results, study

paper = study.find("brandfonbrener-2017")
report = StudyReport(study=paper, rows=tuple(results.published(paper)))
print(f"{paper.title}: {len(report.rows)} published rows")

# %% A report shows itself as the last line of a cell; print(report) gives it as text. One figure of it:
cluster = next(sheet for sheet in report.sheets() if sheet.name == "figure-09")
print("\n".join(text.figure_lines(cluster)))

# %% A dataframe: one record for every row, a column for each setting
frame = report.frame()
slowest = frame[frame.figure == "figure-09"].nlargest(3, "example_seconds")
print(slowest[["n_rec", "n_steps", "device_name", "example_seconds"]].to_string(index=False))

# %% A chart shows itself too; `.altair()` gives an object to change, `.save` writes .svg, .png or .html
chart = charts.against(cluster, "n_steps", cluster.lines, {"n_rec": 200}, "Grace CPU, n_rec 200")
points = chart.spec["layer"][0]["data"]["values"]
print([(point["x"], round(point["y"], 1)) for point in points])

# %% The whole report as one file that opens without a network
with tempfile.TemporaryDirectory() as folder:
    page = report.save(Path(folder) / "report.html")
    print(page.name, "has its figures" if "Figure 12" in page.read_text() else "is empty")
