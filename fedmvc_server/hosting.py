"""One child process that serves the workers of every site of a simulation on this machine.

Ray gives each message to any free actor, so a site's worker cannot live in an actor. It lives here,
in one process for all sites, started before the run and stopped after it. This module imports
nothing of the site's half: the caller passes what serves and what builds the workers.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any

from configs.console import set_up_logging
from configs.errors import FedMVCError, InternalError, TransportError, error_for_code

__all__ = ["host_workers"]

_STOP_TIMEOUT = 10.0

MakeWorkers = Callable[[], Mapping[int, Any]]
Serve = Callable[[MakeWorkers, int, Callable[[], None], threading.Event], None]


@contextmanager
def host_workers(
    serve: Serve, make_workers: MakeWorkers, run_id: int, *, start_timeout: float = 120.0
) -> Iterator[int]:
    """Serve every site's worker from a child process for the length of a ``with`` block.

    Parameters
    ----------
    serve : callable
        ``serve(make_workers, run_id, ready, stop)``: serves until ``stop`` is set. It must be a
        function of an importable module.
    make_workers : callable
        Builds the workers by partition id, in the child. It must be picklable: a module's
        function, or a ``functools.partial`` of one with picklable arguments.
    run_id : int
        Flower's run id.
    start_timeout : float
        Seconds until every worker must be served.

    Yields
    ------
    int
        The child's process id.

    Raises
    ------
    FedMVCError
        What building or serving the workers raised in the child, with its own code.
    InternalError
        If the child failed otherwise.
    TransportError
        If the workers are not served in time.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmvc_server.hosting"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the parent, who then ends this process
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        _send_task(process.stdin, (serve, make_workers, run_id))
        _await_ready(process, process.stdout, start_timeout)
        yield process.pid
    finally:
        _end(process)


def _send_task(pipe: IO[bytes], task: tuple[Serve, MakeWorkers, int]) -> None:
    try:
        pickle.dump(task, pipe, protocol=pickle.HIGHEST_PROTOCOL)
        pipe.flush()
    except BrokenPipeError:
        pass  # the child has ended; its answer, or the lack of it, says why
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InternalError(
            "the sites of the simulation cannot be handed to the process that serves them: "
            "use backend='inprocess'",
            local_detail=str(error),
        ) from error


def _await_ready(process: subprocess.Popen[bytes], pipe: IO[bytes], start_timeout: float) -> None:
    answers: list[bytes] = []
    reader = threading.Thread(target=lambda: answers.append(pipe.readline()), daemon=True)
    reader.start()
    reader.join(start_timeout)
    if reader.is_alive():
        process.kill()  # ends the reader too
        reader.join()
        raise TransportError(
            f"the workers of the simulation were not served within {start_timeout:g} s: "
            "use fewer sites or less data, or backend='inprocess'"
        )
    answer = json.loads(answers[0]) if answers and answers[0] else {}
    if answer.get("ready"):
        return
    if "code" in answer:
        raise error_for_code(answer["code"])(answer["message"], local_detail=answer["local_detail"])
    raise InternalError(
        "the process that serves the simulation's workers ended at once: look at the log above"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()  # the child stops at the end of its input
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _main() -> int:
    # What a worker prints must not be taken for an answer to the parent.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    stop = threading.Event()

    def answer(**fields: object) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    def stop_at_end_of_input() -> None:
        sys.stdin.buffer.read()  # returns when the parent closes its end, or dies
        stop.set()

    set_up_logging(both_halves=True)
    try:
        serve, make_workers, run_id = pickle.load(sys.stdin.buffer)
        threading.Thread(target=stop_at_end_of_input, daemon=True).start()
        serve(make_workers, run_id, lambda: answer(ready=True), stop)
    except FedMVCError as error:
        answer(code=error.code, message=error.public_message, local_detail=error.local_detail)
        return error.code
    return 0


if __name__ == "__main__":
    # As a module of that name, not as __main__: what is unpickled may refer to it.
    from fedmvc_server import hosting

    sys.exit(hosting._main())
