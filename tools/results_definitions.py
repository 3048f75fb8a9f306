"""What docs/results/ is to show: each result as a comparison, with its command and seeds."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """A comparison.

    Args:
        name: of its folder below ``runs/results``, and of its data file.
        title: what it shows.
        page: of docs/results that shows it.
        config: file in ``docs/results``.
        methods: as for ``hofl compare``.
        seeds: that it is to have.
        grid: as for ``hofl compare``.
        changes: to the configuration, on the command line.
    """

    name: str
    title: str
    page: str
    config: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    grid: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    def command(self) -> str:
        """Return the command that makes its runs, or continues them."""
        words = ["hofl compare", f"docs/results/{self.config}", *self.changes]
        words.append(f"--methods {','.join(self.methods)}")
        words += [f"--grid {item}" for item in self.grid]
        # One number counts seeds from the configuration's own, 42; several are the seeds.
        words.append(f"--seeds {','.join(map(str, self.seeds)) if self.seeds[1:] else 1}")
        return " ".join([*words, f"--out runs/results/{self.name}"])


FROZEN, HYBRID, UNIFORM = "frozen-bottom", "hofl:policy.beta=0.75", "hofl:policy.beta=0.0"
SST2 = (
    "fedavg",
    "fedprox",
    FROZEN,
    HYBRID,
    UNIFORM,
    "recompute:uplink_bits=4",
    "decomfl:optimizer.lr=1e-5",
    "decomfl:optimizer.lr=1e-4",
    "decomfl:optimizer.lr=1e-3",
    "decomfl:optimizer.lr=1e-2",
)
"""DeComFL with the paper's learning rate, and with others; held-out loss chooses the tuned one."""
SST2_LARGER = (
    "fedavg",
    FROZEN,
    HYBRID,
    "recompute:uplink_bits=4",
    UNIFORM,
    "decomfl:optimizer.lr=1e-3",
    "decomfl:optimizer.lr=1e-5",
    "fedprox",
)
"""The same on a model nine times as large, with two learning rates of DeComFL."""
FIVE, THREE, TWO, ONE = (42, 43, 44, 45, 46), (42, 43, 44), (42, 43), (42,)
FREE_TEXT = ("fedavg", FROZEN, HYBRID, "recompute:uplink_bits=4")
"""The exact plan (recompute, 4 bits up) beside what it is to be measured against."""

DEFINITIONS = (
    Definition(
        "sst2-stories15m",
        "Methods on SST-2, stories15M",
        "sst2",
        "sst2-stories15m.toml",
        SST2,
        FIVE,
    ),
    Definition(
        "sst2-smollm2",
        "Methods on SST-2, SmolLM2-135M",
        "sst2",
        "sst2-smollm2.toml",
        SST2_LARGER,
        THREE,
    ),
    Definition(
        "sst2-stories15m-lean",
        "FedAvg and FedProx in less memory (blocks run again), stories15M",
        "sst2",
        "sst2-stories15m.toml",
        ("fedavg", "fedprox"),
        THREE,
        changes=("engine.checkpoint=1",),
    ),
    Definition(
        "devices",
        "Three kinds of devices by hofl's own plan, SST-2, SmolLM2-135M",
        "devices",
        "sst2-devices.toml",
        (HYBRID,),
        THREE,
    ),
    Definition(
        "beta-alpha-iid",
        "beta on AG News, IID, stories15M",
        "beta-alpha",
        "ag-news-stories15m.toml",
        (UNIFORM, HYBRID),
        FIVE,
        changes=("data.partition=iid",),
    ),
    Definition(
        "beta-alpha-0.1",
        "beta on AG News, Dirichlet alpha = 0.1, stories15M",
        "beta-alpha",
        "ag-news-stories15m.toml",
        (UNIFORM, HYBRID),
        FIVE,
        changes=("data.alpha=0.1",),
    ),
    Definition(
        "directions",
        "q, the number of directions, on SST-2, stories15M",
        "directions",
        "sst2-stories15m.toml",
        ("hofl",),
        FIVE,
        grid=("method.q=1,2,4,8",),
    ),
    Definition(
        "roleplay-smollm2",
        "Instruction tuning on role play, SmolLM2-135M",
        "free-text",
        "roleplay-smollm2.toml",
        FREE_TEXT,
        ONE,
    ),
    Definition(
        "shakespeare-smollm2",
        "Language modelling of Shakespeare's speakers, SmolLM2-135M",
        "free-text",
        "shakespeare-smollm2.toml",
        FREE_TEXT,
        ONE,
    ),
    Definition(
        "shakespeare-stories15m",
        "Language modelling of Shakespeare's speakers, stories15M",
        "free-text",
        "shakespeare-stories15m.toml",
        FREE_TEXT,
        TWO,
    ),
)
