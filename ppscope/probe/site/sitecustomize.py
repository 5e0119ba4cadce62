"""Put first on PYTHONPATH by `ppscope launch`: starts the probe, then runs the sitecustomize that would have run without it.

Every Python that the server starts comes by here, also one that is too old for the probe: this file is of syntax that all can read.
"""

import os
import sys


def _start():
    # type: () -> None
    here = os.path.dirname(os.path.abspath(__file__))
    if os.environ.get("PPSCOPE_PROBE") not in ("always", "wanted") or sys.version_info < (3, 10):
        return
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(here)
    # Under a name of its own: the server's environment has no ppscope, and shall not get one.
    spec = spec_from_file_location(
        "ppscope_probe", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        return
    package = module_from_spec(spec)
    sys.modules["ppscope_probe"] = package
    spec.loader.exec_module(package)
    from importlib import import_module

    import_module("ppscope_probe.start").start()


def _chain():
    # type: () -> None
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    other = module_from_spec(spec)
    sys.modules["sitecustomize"] = other
    spec.loader.exec_module(other)


try:
    _start()
except Exception as error:  # noqa: BLE001  the server starts without the probe
    sys.stderr.write("ppscope: the probe was not loaded: " + repr(error) + "\n")
_chain()
