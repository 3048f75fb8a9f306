"""Memory of a task's data with 1 and 1,000 clients, and with several processes over one file.

Run: HOFL_DATA=FOLDER python tools/measure_data_memory.py [TASK]. Linux only.

Each process loads the task, divides it, and reads every example through its client's shard. Private
is what the process wrote and alone holds, beyond what it held before the data; mapped is what it
touched of the file, which all processes share with the system's page cache.
"""

import multiprocessing
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

from hofl.data.partition import iid
from hofl.data.tasks import load_task


def memory() -> dict[str, int]:
    """The process's own page counts, in KiB."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


def read_all(name: str, clients: int, together: Barrier, results: multiprocessing.Queue) -> None:
    """One process's work."""
    load_task(name).train[0]  # libraries are loaded and lazily made things are there
    before = memory()
    task = load_task(name)
    shards = iid(len(task.train), clients, seed=0)
    characters = sum(len(task.train[int(k)].fields["question"]) for own in shards for k in own)
    together.wait()
    after = memory()
    grown = {key: (after[key] - before[key]) / 1024 for key in ("Private_Dirty", "Rss", "Pss")}
    together.wait()
    results.put((characters, grown))


def copied(name: str, results: multiprocessing.Queue) -> None:
    """What one copy as Python objects takes, for comparison."""
    task = load_task(name)
    before = memory()["Private_Dirty"]
    examples = list(task.train)
    results.put((memory()["Private_Dirty"] - before) / 1024 if examples else 0)


def main() -> None:
    """Print one line per setting."""
    name = sys.argv[1] if len(sys.argv) > 1 else "squad"
    spawn = multiprocessing.get_context("spawn")
    size = load_task(name).train.path.stat().st_size / 2**20  # type: ignore[attr-defined]
    print(f"{name}: the mapped file has {size:.1f} MiB")
    for processes, clients in ((1, 1), (1, 1000), (4, 1), (4, 1000)):
        results, together = spawn.Queue(), spawn.Barrier(processes)
        started = [
            spawn.Process(target=read_all, args=(name, clients, together, results))
            for _ in range(processes)
        ]
        for one in started:
            one.start()
        found = [results.get() for _ in started]
        for one in started:
            one.join()
        sums = {key: sum(grown[key] for _, grown in found) for key in found[0][1]}
        print(
            f"{processes} processes, {clients:4} clients: private {sums['Private_Dirty']:.1f} MiB, "
            f"proportional {sums['Pss']:.1f} MiB in all"
        )
    results = spawn.Queue()
    alone = spawn.Process(target=copied, args=(name, results))
    alone.start()
    print(f"a copy as Python objects would take {results.get():.1f} MiB in every process")
    alone.join()


if __name__ == "__main__":
    main()
