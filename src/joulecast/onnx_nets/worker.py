"""Read ONNX files for another process, which sends their content (``net_file``)."""

from __future__ import annotations

import json
import os
import resource
import sys

from joulecast.onnx_nets.net_file import read_message, write_message
from joulecast.onnx_nets.network import read_network
from joulecast.system.errors import FileError, NetError

# A file of 1 GiB is in memory three times: as it was read, as it was sent, and parsed.
MOST_MEMORY_BYTES = 6 * 2**30


def main() -> None:
    """Answer requests until the other process closes the stream."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    requests = sys.stdin.buffer
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while request := read_message(requests):
        write_message(answers, json.dumps(_answer(request, read_message(requests))).encode())


def _answer(request: bytes, content: bytes) -> dict[str, object]:
    options = json.loads(request)
    sample = options["sample"]
    options["sample"] = None if sample is None else tuple(sample)
    try:
        found = read_network(content, **options)
    except (FileError, NetError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    except MemoryError:
        limit = f"{MOST_MEMORY_BYTES / 2**30:.0f} GiB"
        message = f"{options['place']} needs more than {limit} to be read: export the net again"
        return {"error": "FileError", "message": message}
    return {
        "network": found.network.to_dict(),
        "batch": found.batch,
        "precision": found.precision,
        "fixed_batch": found.fixed_batch,
    }


if __name__ == "__main__":
    main()
