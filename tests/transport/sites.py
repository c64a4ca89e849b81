"""Workers that a child process can build: functions of an importable module."""

import os
import sys
import time

from configs.errors import DataRefused


class NamedEcho:
    """Answers with its site, the serving process and how often it was asked."""

    def __init__(self, site):
        self.site = site
        self.asked = 0

    def handle(self, body):
        self.asked += 1
        return f"{self.site}:{os.getpid()}:{self.asked}:".encode() + body


def make_echoes(n_sites):
    print("a worker may print")
    return {index: NamedEcho(f"site-{index}") for index in range(n_sites)}


class Loaded(NamedEcho):
    """Answers whether a module is loaded whole in the serving process."""

    def handle(self, body):
        return str(hasattr(sys.modules.get("pyarrow"), "Table")).encode()


def make_loaded(n_sites):
    return {index: Loaded(f"site-{index}") for index in range(n_sites)}


def make_refused(n_sites):
    raise DataRefused("site 'site-0' has 0 rows: add data", local_detail="/data/site-0")


def make_broken(n_sites):
    raise KeyError("broken")


def make_slowly(n_sites):
    time.sleep(60)
