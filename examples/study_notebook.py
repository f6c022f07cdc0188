"""A study in a notebook: its rows as a report, as a dataframe, as charts and as one offline page.

Every `# %%` starts a cell in editors that know notebooks; as a script it prints what is in study_notebook.txt. It shows what the
paper printed; after `windtunnel study run brandfonbrener-2017`, `results` gives what was measured here beside it.
"""

# %% The study and what its author printed. With a store of your own: rows = results.results(paper)
import tempfile
from pathlib import Path

from windtunnel.reports import charts, text
from windtunnel.reports.study import Report
from windtunnel.study import results, study

paper = study.find("brandfonbrener-2017")
report = Report(study=paper, rows=tuple(results.published(paper)))
print(f"{paper.title}: {len(report.rows)} published rows")

# %% A report shows itself as the last line of a cell, and print(report) is all of it as text. One figure of it:
cluster = next(sheet for sheet in report.sheets() if sheet.name == "figure-09")
print("\n".join(text.figure_lines(cluster)))

# %% A dataframe: one line for every row, the settings as columns
frame = report.frame()
slowest = frame[frame.figure == "figure-09"].nlargest(3, "example_seconds")
print(slowest[["n_rec", "n_steps", "device_name", "example_seconds"]].to_string(index=False))

# %% A chart shows itself too; `.altair()` gives it to change, `.save` writes .svg, .png or .html
chart = charts.against(cluster, "n_steps", cluster.lines, {"n_rec": 200}, "Grace CPU, n_rec 200")
points = chart.spec["layer"][0]["data"]["values"]
print([(point["x"], round(point["y"], 1)) for point in points])

# %% The whole report as one file that opens without a network
with tempfile.TemporaryDirectory() as folder:
    page = report.save(Path(folder) / "report.html")
    print(page.name, "has its figures" if "Figure 12" in page.read_text() else "is empty")
