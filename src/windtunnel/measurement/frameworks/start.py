"""The first lines of a framework's child, in any Python of 3.11 or later: bring this package in by its place, and nothing beside it.

Run as `python -P start.py FD`. A search path would bring in whatever lies next to the package too, such as a newer NumPy than the
framework can bear.
"""

import importlib.util
import sys
from pathlib import Path


def _bring_in(package: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "windtunnel", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["windtunnel"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    _bring_in(Path(__file__).resolve().parents[2])
    from windtunnel.measurement.frameworks import child

    child.main()
