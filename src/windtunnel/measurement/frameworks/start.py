"""The first lines of a child in a framework's own interpreter, any Python of 3.11 or later: load this package
alone.

Run as `python -P start.py PARENT FD`. A search path would also bring in whatever lies next to the package,
such as a newer NumPy than the framework can work with.
"""

import importlib.util
import sys
from pathlib import Path


def _load_package(package: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "windtunnel", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["windtunnel"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    _load_package(Path(__file__).resolve().parents[2])
    from windtunnel import child_lifetime

    child_lifetime.keep(int(sys.argv[1]))
    from windtunnel.measurement import child

    child.main()
