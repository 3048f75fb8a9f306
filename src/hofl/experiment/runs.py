"""The run directory: the contract between run, resume, report and tests. Reading needs no torch.

RUN/config.toml        the complete resolved configuration; paths are relative to RUN
RUN/asked.toml         the configuration as it was given, before defaults were filled in
RUN/environment.json   versions, machine, git commit, digests of the data
RUN/data/              rows that were handed over from Python (hofl.experiment.handover)
RUN/plan.json          where boundaries were chosen for memory budgets: the costs they come from
RUN/secret.key         the run's secret (hofl.core.secret), a second copy in checkpoint/
RUN/metrics.jsonl      one object per round; round 0 is the start (hofl.experiment.metrics)
RUN/audit.jsonl        what happened and when (hofl.experiment.journal)
RUN/checkpoint/        the last few server states (hofl.experiment.checkpoint)
RUN/adapter/           the result, an ordinary PEFT adapter
RUN/samples.json       answers to fixed prompts, before and after (hofl.experiment.samples)
RUN/summary.json       final metrics and totals; written last
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hofl.core.durable import (
    PARTIAL,
    check_text,
    file_digest,
    intact,
    sealed,
    with_checksum,
    write_whole,
)
from hofl.core.errors import HoflError
from hofl.core.locks import locked
from hofl.core.secret import RunSecret
from hofl.experiment.environment import environment
from hofl.experiment.metrics import MetricsFile
from hofl.experiment.records import RoundRecord, RunSummary

if TYPE_CHECKING:  # records are read more often than configurations, and need no validation
    from hofl.experiment.config import ExperimentConfig

SECRET = "secret.key"
ASKED = "asked.toml"


@dataclass(frozen=True)
class RunDirectory:
    """Reads and writes one run's files."""

    path: Path

    @classmethod
    def create(
        cls,
        path: Path,
        config: "ExperimentConfig",
        secret: RunSecret,
        plan: Mapping[str, Any] | None = None,
        data: Mapping[str, str] | None = None,
        asked: "ExperimentConfig | None" = None,
    ) -> "RunDirectory":
        """Start a new run; an existing one is never overwritten.

        Args:
            path: its folder.
            config: complete and resolved.
            secret: from which its keys are derived.
            plan: how the boundaries were chosen, where they were.
            data: digests of the examples, by set.
            asked: the configuration as it was given.
        """
        from hofl.experiment.reuse import check_new

        check_new(path, f"hofl run --resume {path}")
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path)
        facts = {**environment(), "data": dict(data or {}), "rows": digests(path / "data")}
        write_whole(path / "environment.json", json.dumps(facts, indent=2) + "\n")
        if asked is not None:
            run.write_asked(asked)
        if plan:
            write_whole(path / "plan.json", json.dumps(plan, indent=2) + "\n")
        run.keep_secret(secret)
        run.write_config(config)  # last: with it the folder is a run
        return run

    def write_asked(self, config: "ExperimentConfig") -> None:
        """Write the configuration as it was given."""
        write_whole(self.path / ASKED, with_checksum(_portable_text(config, self.path)))

    def write_config(self, config: "ExperimentConfig") -> None:
        """Write the configuration, with paths relative to the run's folder."""
        text = _portable_text(config, self.path)
        write_whole(self.path / "config.toml", with_checksum(text))

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Open an existing run."""
        if not (path / "config.toml").is_file():
            raise HoflError(f"{path} is not a run: it has no config.toml. Start one with hofl run.")
        return cls(path)

    def config(self) -> "ExperimentConfig":
        """Return the run's resolved configuration."""
        return self._read("config.toml")

    def asked(self) -> "ExperimentConfig | None":
        """Return the configuration as it was given; None where an earlier version started it."""
        return self._read(ASKED) if (self.path / ASKED).is_file() else None

    def _read(self, name: str) -> "ExperimentConfig":
        from hofl.experiment.changes import load_values
        from hofl.experiment.config import parse_config
        from hofl.methods import nested

        path = self.path / name
        check_text(path)
        values = load_values(str(path))
        try:
            # Flat options of an earlier version: the user did not write this file, so no notes.
            return parse_config({**values, "method": nested(values.get("method", {}))})
        except HoflError as error:
            raise HoflError(f"{path}: {error} Correct it or restore it from a backup.") from None

    def check_rows(self) -> None:
        """Refuse rows, handed over when the run was started, that are not as they were written."""
        try:
            facts = json.loads((self.path / "environment.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return  # nothing says what they were
        for name, digest in facts.get("rows", {}).items():
            path = self.path / "data" / name
            if not path.is_file() or file_digest(path) != digest:
                raise HoflError(
                    f"{path} is damaged or missing: restore it, or hand the same rows over again "
                    'by hofl.run(..., exist="resume").'
                )

    def keep_secret(self, secret: RunSecret) -> None:
        """Write the run's secret in two places, readable for the owner alone."""
        self.checkpoint.mkdir(exist_ok=True)
        for copy in self._secrets():
            write_whole(copy, secret.to_text(), mode=0o600)

    def secret(self) -> RunSecret:
        """Return the run's secret, from whichever copy is sound."""
        copies = self._secrets()
        if not any(copy.exists() for copy in copies):
            raise HoflError(
                f"{self.path} has no {SECRET}: an earlier version started it, whose directions "
                "came from the seed itself. Finish it with that version, or start it again."
            )
        for copy in copies:
            if copy not in self.damaged_secrets():
                return RunSecret.from_text(copy.read_text(encoding="utf-8"))
        raise HoflError(
            f"{copies[0]} and {copies[1]} are damaged, and without the secret no round can follow "
            "the last. Restore one of them from a backup, or start again with another --out."
        )

    def damaged_secrets(self) -> list[Path]:
        """Return the copies of the secret that are missing or damaged."""
        damaged = []
        for copy in self._secrets():
            try:
                RunSecret.from_text(copy.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                damaged.append(copy)
        return damaged

    def _secrets(self) -> list[Path]:
        return [folder / SECRET for folder in (self.path, self.checkpoint)]

    @property
    def adapter(self) -> Path:
        """Folder of the trained adapter."""
        return self.path / "adapter"

    @property
    def checkpoint(self) -> Path:
        """Folder of the latest server state."""
        return self.path / "checkpoint"

    def record(self, record: RoundRecord) -> None:
        """Append one round to the metrics."""
        self.rounds.append(record)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process can work on this run."""
        with ExitStack() as stack:
            file = stack.enter_context((self.path / "config.toml").open("rb"))
            try:
                stack.enter_context(locked(file, wait=False))
            except BlockingIOError:
                raise HoflError(
                    f"another process is working on {self.path}. Wait for it."
                ) from None
            yield

    @property
    def rounds(self) -> MetricsFile:
        """The file of recorded rounds."""
        return MetricsFile(self.path / "metrics.jsonl")

    def metrics(self) -> list[RoundRecord]:
        """Return all rounds recorded so far; a line cut off by a kill is left out."""
        return self.rounds.records()

    def check_accounted(self, reached: int) -> None:
        """Refuse to train a private run that has reached this round and lost the record of one.

        Raises:
            HoflError: nobody can say what its devices have revealed.
        """
        rows = [row for row, _ in self.rounds.lines()]
        rows += [None] * (reached + 1 - len(rows))
        lost = [n for n, row in enumerate(rows) if row is None or row.repaired]
        if lost and self.config().privacy.noise > 0:
            raise HoflError(
                f"{self.path} has lost the record of round {lost[0]}, and with it what devices "
                "have revealed: the privacy spent is unknown. Restore metrics.jsonl from a "
                "backup, or start a new run."
            )

    def unfinish(self) -> None:
        """Forget the result of a run: resuming writes it again."""
        (self.path / "summary.json").unlink(missing_ok=True)

    def reopen(self) -> None:
        """Make a finished run one that trains on, also if a callback had ended it."""
        self.unfinish()
        self.rounds.forget_stop()

    def sweep(self) -> None:
        """Remove what killed writers left behind; call it under the lock."""
        for folder in (self.path, self.checkpoint):
            for path in folder.glob("*" + PARTIAL):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def write_summary(self, summary: RunSummary) -> None:
        """Write the last file of a run: when it is there, the run is finished."""
        text = json.dumps(summary.to_json(), indent=2)
        write_whole(self.path / "summary.json", sealed(text))

    def summary(self) -> RunSummary | None:
        """Return the summary of a finished run, or None."""
        path = self.path / "summary.json"
        if not path.exists():
            return None
        try:
            text = path.read_bytes().decode()
            if intact(text):
                return RunSummary.from_json(json.loads(text))
        except ValueError:
            pass
        raise HoflError(f"{path} is damaged. Write it again with: hofl repair {self.path}")

    def finished(self) -> RunSummary | None:
        """As :meth:`summary`; the files of the adapter must be those that it lists."""
        summary = self.summary()
        for name, digest in {} if summary is None else summary.adapter_sha256.items():
            path = self.adapter / name
            if not path.is_file() or file_digest(path) != digest:
                raise HoflError(
                    f"{path} is damaged or missing. Write it again with: hofl repair {self.path}"
                )
        return summary


def digests(folder: Path) -> dict[str, str]:
    """Return SHA-256 of the files in a folder, by name; empty without it."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return {file.name: file_digest(file) for file in files}


def _portable_text(config: "ExperimentConfig", folder: Path) -> str:
    import tomli_w

    from hofl.experiment.changes import portable

    return tomli_w.dumps(portable(plain_values(config), folder))


def config_text(config: "ExperimentConfig") -> str:
    """Return the configuration as TOML that ``read_config`` takes."""
    import tomli_w

    return tomli_w.dumps(plain_values(config))


def plain_values(config: "ExperimentConfig") -> dict[str, Any]:
    """Return the configuration as TOML's own types."""
    return config.model_dump(mode="python", exclude_none=True)
