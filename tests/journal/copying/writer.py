"""A process that writes to a store until its input ends, and says of each write that it returned.

Run as `python -m tests.moving.writer ADDRESS NUMBER`. A line is a session and a text that it holds.
"""

import random
import sys
import threading

import perdure
from tests.support import said

DELETED = "deleted"


def main(address: str, number: int) -> None:
    over = threading.Event()
    threading.Thread(target=wait, args=(over,), daemon=True).start()
    draw = random.Random(number)
    made = 0
    with perdure.open(address) as store:
        while not over.is_set():
            name, text = f"w{number}-{draw.randrange(12)}", f"{number}.{made}"
            made += 1
            session = store.session(name)
            session.append(said(text), said(f"{text} too"))
            print(name, text, flush=True)
            if draw.random() < 0.1:
                session.branch(f"{name}>{made}").append(said(f"{text} in a branch"))
                print(f"{name}>{made}", f"{text} in a branch", flush=True)
            elif draw.random() < 0.1 and not name.endswith("0"):
                delete(store, name)


def wait(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def delete(store: perdure.Store, name: str) -> None:
    try:
        store.delete(name)
    except perdure.InUseError:
        return
    print(name, DELETED, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
