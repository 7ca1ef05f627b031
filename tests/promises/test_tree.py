"""The model of a tree of directories leaves what a power failure could leave, and nothing else."""

import os

import pytest

from tests.promises.calls import Done
from tests.promises.tree import Tree

pytestmark = pytest.mark.durability

NEW = os.O_RDWR | os.O_CREAT


def after(*calls: Done) -> Tree:
    tree = Tree()
    for call in calls:
        tree.apply(call)
    return tree


MADE = (Done("make", "s"), Done("sync_directory", "."))
WRITTEN = (*MADE, Done("open", "s/f", 1, NEW), Done("write", "s/f", 1, 0, b"a"))
SYNCED = (*WRITTEN, Done("sync", "s/f", 1))


def test_a_synced_file_is_lost_with_its_name_until_its_own_directory_is_synced() -> None:
    assert after(*SYNCED).drop().files == {"s/": b""}
    assert after(*SYNCED, Done("sync_directory", ".")).drop().files == {"s/": b""}
    assert after(*SYNCED, Done("sync_directory", "s")).drop().files == {"s/": b"", "s/f": b"a"}


def test_a_name_can_be_there_without_the_bytes() -> None:
    assert after(*WRITTEN).names_only().files == {"s/": b"", "s/f": b""}
    assert after(*WRITTEN).keep().files == {"s/": b"", "s/f": b"a"}


def test_what_lies_in_a_lost_folder_is_lost_too() -> None:
    calls = (Done("make", "s"), *SYNCED[2:], Done("sync_directory", "s"))
    assert after(*calls).drop().files == {}
    assert after(*calls, Done("sync_directory", ".")).drop().files == {"s/": b"", "s/f": b"a"}


def test_a_rename_takes_the_old_name_away_and_gives_the_new_one_together() -> None:
    old = (*SYNCED, Done("sync_directory", "s"))
    new = (Done("open", "s/t", 2, NEW), Done("write", "s/t", 2, 0, b"b"), Done("sync", "s/t", 2))
    renamed = after(*old, *new, Done("rename", "s/t", to="s/f"))
    assert renamed.drop().files == {"s/": b"", "s/f": b"a"}
    assert renamed.keep().files == {"s/": b"", "s/f": b"b"}
    renamed.apply(Done("sync_directory", "s"))
    assert renamed.drop().files == {"s/": b"", "s/f": b"b"}


def test_whoever_has_a_file_open_writes_to_it_under_its_new_name() -> None:
    tree = after(*SYNCED, Done("rename", "s/f", to="s/g"), Done("write", "s/f", 1, 1, b"b"))
    assert tree.keep().files == {"s/": b"", "s/g": b"ab"}


def test_what_was_taken_away_may_come_back() -> None:
    tree = after(*SYNCED, Done("sync_directory", "s"), Done("delete", "s/f"))
    assert tree.keep().files == {"s/": b""}
    assert tree.drop().files == {"s/": b"", "s/f": b"a"}
    tree = after(*MADE, Done("remove", "s"))
    assert (tree.drop().files, tree.keep().files) == ({"s/": b""}, {})


def test_after_a_failed_sync_of_a_directory_its_names_are_not_waited_for_any_more() -> None:
    tree = after(*SYNCED, Done("failed_sync_directory", "s"), Done("sync_directory", "s"))
    assert tree.drop().files == tree.keep().files == {"s/": b""}
