"""Build the distributions and use the wheel as a newcomer would: install, run hello and the demo.

The wheel is built from the source distribution, so a file that is missing there is noticed. It is
installed into a new virtual environment outside the checkout; what was checked stays in `dist/`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PIP = ("-m", "pip", "--disable-pip-version-check", "-q")


def run(*command: str | Path, folder: Path) -> str:
    """Run a program away from the checkout's modules; return what it prints, or end with it."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith("TRELLIS_")
    }
    ran = subprocess.run(
        [str(part) for part in command],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        sys.exit(f"{ran.stdout}\nThis failed with {ran.returncode}: {command}")
    return ran.stdout


def expect(name: str, expected: str, found: str) -> None:
    """End with a message unless both are the same."""
    if found.strip() != expected:
        sys.exit(f"{name}: expected {expected!r}, found {found.strip()!r}")


def build(version: str) -> Path:
    """Build both distributions; return the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT, folder=ROOT)
    source = DIST / f"trellis_jobs-{version}.tar.gz"
    wheel = DIST / f"trellis_jobs-{version}-py3-none-any.whl"
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    missing = {"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md"} - in_source
    missing |= {f"trellis_jobs-{version}.dist-info/licenses/LICENSE"} - in_wheel
    missing |= {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "trellis").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    } - in_wheel
    if missing:
        sys.exit(f"The distributions lack: {', '.join(sorted(missing))}")
    return wheel


def use(wheel: Path, version: str, folder: Path) -> None:
    """Install the wheel into a new environment and run what a newcomer runs first."""
    run(sys.executable, "-m", "venv", folder / "venv", folder=folder)
    python, trellis = folder / "venv" / "bin" / "python", folder / "venv" / "bin" / "trellis"
    run(python, *PIP, "install", "-c", ROOT / "constraints.txt", wheel, folder=folder)
    where = run(python, "-c", "import trellis; print(trellis.__file__)", folder=folder)
    if not where.startswith(str(folder)):
        sys.exit(f"The installed package is not the one that was imported: {where}")
    expect(
        "trellis --version", f"trellis, version {version}", run(trellis, "--version", folder=folder)
    )
    shutil.copy(ROOT / "examples" / "hello.py", folder)
    expect("hello.py", "Hello, world!", run(python, "hello.py", folder=folder))
    run(trellis, "demo", folder=folder)


def main() -> None:
    """Build, install, run."""
    version = run(
        sys.executable, "-c", "import trellis; print(trellis.__version__)", folder=ROOT
    ).strip()
    print(f"Building Trellis {version}")
    wheel = build(version)
    with tempfile.TemporaryDirectory(prefix="trellis-release-") as scratch:
        print("Installing the wheel into a new environment; running hello and the demo")
        use(wheel, version, Path(scratch).resolve())
    print(f"Ready for release: {', '.join(sorted(path.name for path in DIST.iterdir()))}")


if __name__ == "__main__":
    main()
