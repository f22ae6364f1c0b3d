"""A program that forks after it has connected; prints which jobs it was told are stored.

Run as a process of its own: `python fork_driver.py DATABASE SCENE`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable

from trellis import Service

warnings.filterwarnings("ignore", category=DeprecationWarning)  # of forking beside threads

service = Service("shop", f"sqlite:///{sys.argv[1]}")
job = service.declare("greet", payload=str, result=str)
told: list[str] = []


def create(whose: str, many: int = 1) -> list[str]:
    """Create jobs; return what was promised."""
    return [job.create_sync(f"{whose} {number}").id for number in range(many)]


def fork(work: Callable[[], list[str]]) -> tuple[int, int]:
    """Do something in a child; return its process and where it tells what it was told."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    code = 1
    try:
        os.write(writing, json.dumps(work()).encode())
        code = 0
    except Exception:  # noqa: BLE001 - a child must never go on in its parent's place
        traceback.print_exc()
    finally:
        os._exit(code)


def collect(child: int, reading: int) -> None:
    """Take over what a child was told."""
    with os.fdopen(reading) as answer:
        said = answer.read()
    if os.waitpid(child, 0)[1]:
        sys.exit("A child failed.")
    told.extend(json.loads(said))


def parent_leaves_first() -> None:
    """The parent closes its connection, the last it seems, while the child goes on writing."""
    service.open_sync()
    told.extend(create("parent"))
    (ready, has_begun), (go_on, has_left) = os.pipe(), os.pipe()

    def work() -> list[str]:
        first = create("child")
        os.write(has_begun, b"x")
        os.read(go_on, 1)
        return first + create("child")

    child = fork(work)
    os.read(ready, 1)
    service.close_sync()
    os.write(has_left, b"x")
    collect(*child)


def amid_writing() -> None:
    """The parent forks again and again while one of its threads writes."""
    begun, done = threading.Event(), threading.Event()
    service.open_sync()

    def write() -> None:
        while not done.is_set():
            told.extend(ref.id for ref in job.create_many_sync(["parent"] * 300))
            begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    begun.wait()
    for _ in range(8):
        collect(*fork(lambda: create("child", 3)))
    done.set()
    writer.join()
    service.close_sync()


def grandchildren() -> None:
    """A child that has connected forks in its turn."""
    told.extend(create("parent"))

    def work() -> list[str]:
        told[:] = create("child")
        collect(*fork(lambda: create("grandchild")))
        return told + create("child again")

    collect(*fork(work))
    told.extend(create("parent again"))


if __name__ == "__main__":
    globals()[sys.argv[2]]()
    sys.stdout.write(json.dumps(told))
