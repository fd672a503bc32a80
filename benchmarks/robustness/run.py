"""Kill campaigns at random moments, and give hostile inputs to everything that reads outside data.

    python -m benchmarks.robustness.run kills --count 1000 --out results/kills.json
    python -m benchmarks.robustness.run inputs --count 100000 --out results/inputs.json

**Kills.** A process measures a simulated device into a store, acknowledges every observation once
the store has accepted it, and writes the profile to a file. It is killed (SIGKILL) after a random
time. Then

    lost      an acknowledged observation is not in the store
    doubled   an observation is in the store twice, or there are more than were measured
    damaged   the store, or a profile file, cannot be read

The next process continues the same campaign; a finished one is followed by one on another device.

**Inputs.** (``readers.py``)

    traceback   a reader raised something else than one of our errors with one short line, or a
                message showed the password of a URL
    code run    an input made Joulecast run code that it names

Both exit with 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import joulecast
from benchmarks.common import find_commit, write_json
from benchmarks.robustness.hostile_inputs import find_defect
from benchmarks.robustness.readers import HostileFolder, Reader
from joulecast.records import Observation
from joulecast.store import Store
from joulecast.store.files import read_profile, write_profile
from joulecast.system.errors import JoulecastError

# A slow reader gets half as many inputs as a fast one.
FAST_WEIGHT, SLOW_WEIGHT = 2, 1
_MOST_SHOWN = 5
# A campaign of so many points is finished after a few kills.
POINTS = 12
LONGEST_S = 0.8
EXPORT = "profile.json"


@dataclass
class KillCounts:
    """What happened over all kills.

    Attributes:
        acknowledged: Observations that a store had accepted before the kill.
        unacknowledged: Observations that were stored, but killed before they said so.
        tracebacks: Processes that ended with another error than one of ours.
    """

    kills: int = 0
    kills_while_measuring: int = 0
    campaigns_finished: int = 0
    acknowledged: int = 0
    stored: int = 0
    unacknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    damaged: int = 0
    tracebacks: int = 0
    errors: int = 0
    seconds: float = 0.0


def main() -> None:
    """Run one of the two parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", choices=("kills", "inputs"))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=lambda name: Path(name).resolve())
    args = parser.parse_args()
    sys.exit(run_kills(args) if args.work == "kills" else run_inputs(args))


def write_result(out: Path | None, result: dict[str, Any]) -> None:
    """Write a result with its date and commit."""
    if out:
        date, commit = datetime.now(UTC).date().isoformat(), find_commit(__file__)
        write_json(out, {"date": date, "commit": commit, "cores": os.cpu_count(), **result})


# ---------------------------------------------------------------------------------------------
# Kills


def run_kills(args: argparse.Namespace) -> bool:
    """Kill campaigns, print the counts and return whether anything went wrong."""
    rng, counts, started_s = random.Random(args.seed), KillCounts(), time.monotonic()
    # Everything is imported before the first fork, so that kills hit measuring and not imports.
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/warm-up.sqlite"
        name = joulecast.profile("lenet5", on="simulated:0", points=2, store=place).device.name
        write_profile(joulecast.load_profile(name, store=place), f"{folder}/{EXPORT}")
    device = 0
    while counts.kills < args.count:
        device += 1
        with tempfile.TemporaryDirectory() as folder:
            kill_campaign(Path(folder), f"simulated:{device}", counts, args.count, rng)
        counts.seconds = round(time.monotonic() - started_s, 1)
        print(json.dumps(asdict(counts)), flush=True)
    write_result(args.out, asdict(counts))
    return any((counts.lost, counts.doubled, counts.damaged, counts.tracebacks))


def kill_campaign(
    folder: Path, on: str, counts: KillCounts, most_kills: int, rng: random.Random
) -> None:
    """Kill one campaign until it has finished and its export was killed too."""
    store, acknowledged = folder / "store.sqlite", Counter[str]()
    known = 0
    for _ in range(40):
        with start_campaign(store, on) as (process, pipe):
            time.sleep(rng.uniform(0.0, LONGEST_S))
            os.kill(process, signal.SIGKILL)
            messages = read_messages(pipe)
        counts.kills += 1
        counts.tracebacks += messages["traceback"]
        counts.errors += messages["error"]
        finished = messages["finished"]
        for kind in ("traceback", "error", "finished"):
            del messages[kind]
        acknowledged += messages
        counts.kills_while_measuring += not finished
        known = check_store(store, acknowledged, known, counts)
        check_export(folder / EXPORT, counts)
        if finished or counts.kills >= most_kills:
            counts.campaigns_finished += finished
            break
    counts.acknowledged += acknowledged.total()
    counts.stored += known


@contextmanager
def start_campaign(store: Path, on: str) -> Iterator[tuple[int, int]]:
    """Fork a process that runs a campaign; yield its id and what it writes to."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        try:
            run_campaign(store, on, writing)
        except JoulecastError as error:
            os.write(writing, b"error\n")
            print(f"{on}: {error}", file=sys.stderr, flush=True)
        except BaseException:
            os.write(writing, b"traceback\n")
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    try:
        yield process, reading
    finally:
        os.waitpid(process, 0)
        os.close(reading)


def run_campaign(store: Path, on: str, pipe: int) -> None:
    """Measure until the campaign is finished, then write its profile again and again."""
    add = Store.add_observation

    def add_and_acknowledge(self: Store, observation: Observation) -> None:
        add(self, observation)
        os.write(pipe, f"{identify(observation.to_dict())}\n".encode())

    Store.add_observation = add_and_acknowledge  # type: ignore[method-assign]
    profile = joulecast.profile("lenet5", on=on, points=POINTS, store=str(store))
    os.write(pipe, b"finished\n")
    known = joulecast.load_profile(profile.device.name, store=str(store))
    while True:
        write_profile(known, store.parent / EXPORT)


def identify(observation: dict[str, Any]) -> str:
    """Return what identifies an observation among all of a run."""
    return json.dumps(observation, sort_keys=True)


def read_messages(pipe: int) -> Counter[str]:
    """Return the lines that a dead process wrote; an incomplete last one does not count."""
    chunks = []
    while chunk := os.read(pipe, 1 << 20):
        chunks.append(chunk)
    return Counter(b"".join(chunks).decode().split("\n")[:-1])


def check_store(store: Path, acknowledged: Counter[str], known: int, counts: KillCounts) -> int:
    """Compare a store with what was acknowledged; return how many observations it has."""
    if not store.exists():
        counts.lost += acknowledged.total()
        return 0
    try:
        with closing(sqlite3.connect(store)) as connection:
            (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            query = "SELECT payload FROM observations"
            rows = connection.execute(query).fetchall() if "observations" in tables else []
    except sqlite3.Error:
        verdict, rows = "unreadable", []
    counts.damaged += verdict != "ok"
    stored = Counter(identify(json.loads(payload)) for (payload,) in rows)
    counts.lost += (acknowledged - stored).total()
    extra = (stored - acknowledged).total()
    counts.doubled += sum(count - 1 for count in stored.values())
    # One observation may have been stored in the moment before the kill, and no more.
    counts.unacknowledged += extra
    counts.doubled += max(0, extra - 1)
    acknowledged += stored - acknowledged
    return max(known, stored.total())


def check_export(path: Path, counts: KillCounts) -> None:
    """Count a profile file that cannot be read."""
    if path.exists():
        try:
            tuple(read_profile(path).observations)
        except JoulecastError:
            counts.damaged += 1


# ---------------------------------------------------------------------------------------------
# Hostile inputs


def run_inputs(args: argparse.Namespace) -> bool:
    """Give inputs to all readers, print what they did and return whether anything went wrong."""
    warnings.simplefilter("ignore", RuntimeWarning)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        # Settings are those of the present folder, and of no user.
        os.chdir(name)
        os.environ["XDG_CONFIG_HOME"] = str(Path(name) / "config")
        folder = HostileFolder(Path(name))
        shares = share_inputs(folder.list_readers(), args.count)
        rows = [run_reader(reader, count, args.seed) for reader, count in shares]
        has_run_code = folder.has_run_code()
        os.chdir("/")
    result = {
        "inputs": sum(row["inputs"] for row in rows),
        "tracebacks": sum(row["tracebacks"] for row in rows),
        "code_run": int(has_run_code),
        "seconds": round(time.monotonic() - started_s, 1),
    }
    print(json.dumps(result))
    write_result(args.out, {**result, "readers": rows})
    return bool(result["tracebacks"] or has_run_code)


def share_inputs(readers: list[Reader], inputs: int) -> list[tuple[Reader, int]]:
    """Return how many inputs each reader gets."""
    weights = [SLOW_WEIGHT if one.is_slow else FAST_WEIGHT for one in readers]
    shares = [inputs * weight / sum(weights) for weight in weights]
    return [(reader, round(share + 0.5)) for reader, share in zip(readers, shares, strict=True)]


def run_reader(reader: Reader, count: int, seed: int) -> dict[str, Any]:
    """Return what a reader did with ``count`` hostile inputs."""
    rng, defects = random.Random(f"{seed} {reader.name}"), Counter[str]()
    started_s = time.monotonic()
    for _ in range(count):
        defect = find_defect(reader.draw(rng))
        if defect is not None:
            defects[f"{type(defect).__name__}: {str(defect)[:200]}"] += 1
    row = {
        "reader": reader.name,
        "inputs": count,
        "tracebacks": defects.total(),
        "seconds": round(time.monotonic() - started_s, 1),
        "examples": [text for text, _ in defects.most_common(_MOST_SHOWN)],
    }
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
