"""A process and its descendants, in sessions of their own."""

import subprocess
import sys

from configs.process_tree import Process, kill_left, kill_tree, tree
from tests.configs.test_processes import alive, wait_until

#: Has a child in a session of its own, which the kernel tells of nothing; prints its id.
PARENT = (
    "import subprocess, sys, time\n"
    "below = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],\n"
    "                         start_new_session=True)\n"
    "print(below.pid, flush=True)\n"
    "time.sleep(60)\n"
)


def parent():
    made = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    return made, int(made.stdout.readline())


def finish(made):
    made.wait(30)
    made.stdout.close()


def test_a_tree_is_killed_with_what_has_a_session_of_its_own():
    made, below = parent()
    assert [each.pid for each in tree(made.pid)] == [made.pid, below]

    kill_tree(made.pid)

    wait_until(lambda: not alive(below))
    assert made.wait(30) == -9
    assert tree(made.pid) == []
    finish(made)


def test_a_later_process_with_the_same_id_is_left_alone():
    made, below = parent()
    (_, known) = tree(made.pid)

    kill_left([Process(below, "1")])
    assert alive(below)
    kill_left([known])

    wait_until(lambda: not alive(below))
    made.kill()
    finish(made)
