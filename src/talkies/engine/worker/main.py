"""The entry of a worker process: a thread that listens, and the loop. No torch until the loop is made.

The listening thread takes commands even while a forward runs, so the pipe never fills, and it notices the end of the
parent: a worker never outlives the process that started it.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import threading
from multiprocessing.connection import Connection

from talkies.engine.port.failure import as_talkies
from talkies.engine.port.messages import Command, Fatal, Message, Stop, WorkerOptions
from talkies.errors import OutOfMemory, TalkiesError


def main(connection: Connection, options: WorkerOptions, errors: Connection | None = None) -> None:
    """Returns when told to stop; raises when it cannot go on. ``errors`` takes what is printed, by libraries and by the
    last words of a crash, too: the parent's log is the only one."""
    if errors is not None:
        for output in (1, 2):
            os.dup2(errors.fileno(), output)
        errors.close()
    # Ctrl-C goes to the whole group; the parent decides what it means for us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox), name="listen", daemon=True).start()

    def send(message: Message) -> None:
        try:
            connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)  # the parent is gone

    from talkies.engine.worker.loop import Worker

    worker = Worker(options, inbox, send)
    try:
        worker.load()
    except TalkiesError as error:
        send(Fatal(error))
        return
    except Exception as error:
        known = as_talkies(error)
        if not isinstance(known, OutOfMemory):
            raise  # another start may go better
        hint = "serve one partition (--task-type), a smaller dtype, or use a larger device"
        send(Fatal(OutOfMemory(f"the model does not fit: {known.message}", hint=hint)))
        return
    worker.run()


def _listen(connection: Connection, inbox: queue.SimpleQueue[Command | None]) -> None:
    while True:
        try:
            command = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        inbox.put(None if isinstance(command, Stop) else command)
