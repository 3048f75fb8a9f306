"""A thousand clients over one large file hold it no more often than one does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.datafiles import write_jsonl

CODE = """
import json, sys
from pathlib import Path
import pyarrow.ipc
from hofl.data.partition import iid
from hofl.data.tasks.custom import load_custom

def private():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1024

def load():
    path = Path(sys.argv[1])
    return load_custom(train=path, test=path.parent / "test.jsonl", template="{text}:", cut="text",
                       labels={"0": "no", "1": "yes"}).train

load()[0]
start = private()
examples = load()
grown = {}
for clients in (1, 1000):
    shards = iid(len(examples), clients, seed=0)
    total = sum(len(examples[int(k)].fields["text"]) for shard in shards for k in shard)
    grown[clients] = private() - start
copy = list(examples)
print(json.dumps({"total": total, "grown": grown, "copied": private() - start}))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_a_thousand_clients_share_one_mapped_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOFL_CACHE", str(tmp_path / "cache"))
    rows = [{"text": f"{k:06d} " + "word " * 500, "label": k % 2} for k in range(16_000)]
    path = write_jsonl(tmp_path / "train.jsonl", rows)
    write_jsonl(tmp_path / "test.jsonl", rows[:1])
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    size = sum(len(row["text"].strip()) for row in rows)
    assert found["total"] == size
    size_mib = size / 2**20
    assert found["copied"] > 0.9 * size_mib, "the measure sees a copy"
    assert found["grown"]["1"] < 0.1 * size_mib
    assert found["grown"]["1000"] < 0.1 * size_mib
