"""Random text: unique among threads and processes."""

import os
import threading

import pytest

from perdure.journal.cipher import PlainCipher
from perdure.journal.ids import RANDOM_BATCH, random_text


def test_random_text_is_22_letters_of_the_url_alphabet() -> None:
    text = random_text()
    assert len(text) == 22
    assert text.replace("-", "").replace("_", "").isalnum()


def test_no_two_threads_draw_the_same() -> None:
    drawn: list[str] = []

    def draw() -> None:
        drawn.extend([random_text() for _ in range(3 * RANDOM_BATCH)])

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drawn)) == len(drawn) == 24 * RANDOM_BATCH


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_draws_other_text_than_its_parent() -> None:
    random_text()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, "".join(random_text() for _ in range(RANDOM_BATCH)).encode())
        os._exit(0)
    own = {random_text().encode() for _ in range(RANDOM_BATCH)}
    os.waitpid(child, 0)
    data = os.read(reader, 22 * RANDOM_BATCH)
    theirs = {data[at : at + 22] for at in range(0, len(data), 22)}
    assert len(theirs) == len(own) == RANDOM_BATCH
    assert not own & theirs
    os.close(reader)
    os.close(writer)


def test_a_body_opens_to_its_payload() -> None:
    plain = PlainCipher()
    assert plain.open(plain.seal(b'{"a":1}', b""), b"") == b'{"a":1}'
