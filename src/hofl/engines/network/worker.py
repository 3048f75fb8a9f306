"""The resident worker: a device's model and data, loaded once, behind a Unix socket.

``python -m hofl.engines.network.worker SETTINGS`` serves one request after another. It holds the
data; what leaves it are uploads and the few properties that a device declares.
"""

import hashlib
import logging
import signal
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from hofl.engines.network.link import Header, LinkLost, listen, receive, send
from hofl.engines.network.settings import WorkerSettings
from hofl.engines.rounds import Failure, attempt
from hofl.errors import HoflError
from hofl.experiment.config import ExperimentConfig, parse_config
from hofl.experiment.remote import DeviceSide, build_device
from hofl.experiment.runs import write_whole
from hofl.messages import RoundPlan
from hofl.process import tune_allocator, use_threads
from hofl.secure.signatures import FIELD, signer

log = logging.getLogger("hofl.device")


class Worker:
    """Answers ``join`` and ``plan`` requests."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._sign = signer(Path(settings.key)) if settings.key else None
        self._offer, self._private = "", False
        self._side: DeviceSide | None = None

    def answer(self, header: Header, payload: bytes) -> tuple[Header, bytes]:
        """One request, and its signed answer; whatever goes wrong is said, not raised."""
        said, upload = self._answer(header, payload)
        if self._sign is not None:
            said = {**said, FIELD: self._sign(str(header.get("message")), said, upload)}
        return said, upload

    def _answer(self, header: Header, payload: bytes) -> tuple[Header, bytes]:
        try:
            if header.get("kind") == "join":
                return self._join(payload), b""
            return self._plan(payload)
        except (ValueError, LookupError, TypeError, RuntimeError, MemoryError, OSError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            log.warning("refused: %s", reason)
            return {"failure": reason}, b""

    def _join(self, offer: bytes) -> Header:
        """Load what the run needs, unless it is loaded, and say what this device is."""
        digest = hashlib.sha256(offer).hexdigest()
        if digest != self._offer or self._side is None:
            values: dict[str, Any] = tomllib.loads(offer.decode())
            if self._settings.model:
                values["model"]["name"] = self._settings.model
            self._side = None  # free the old model before the new one comes
            config = parse_config(values)
            log.info("joining run %s with model %s", config.name, config.model.name)
            self._side = self._built(config)
            # A device that insists on noise tells nothing more, whatever the server offers.
            self._private = config.privacy.noise > 0 or self._settings.min_noise > 0
            self._offer = digest
            write_whole(Path(self._settings.offer), offer.decode())
        return self._properties()

    def _built(self, config: ExperimentConfig) -> DeviceSide:
        """Model and data; what is wrong with own files may quote them, and stays in the log."""
        settings = self._settings
        try:
            return build_device(
                config,
                data=Path(settings.data) if settings.data else None,
                shard=settings.shard if settings.shard >= 0 else None,
                memory=settings.memory,
                boundary=settings.boundary if settings.boundary >= 0 else None,
                device=settings.device,
            )
        except (ValueError, LookupError, TypeError, RuntimeError, OSError) as error:
            if not settings.data:
                raise
            log.warning("cannot load: %s", error)
            raise HoflError("it cannot load the model or its data: its worker.log says") from None

    def _plan(self, plan_bytes: bytes) -> tuple[Header, bytes]:
        """Compute an upload; a plan that the memory does not allow is refused."""
        kept = Path(self._settings.offer)
        if self._side is None and kept.is_file():
            self._join(kept.read_bytes())  # restarted in the middle of a run
        if self._side is None:
            raise HoflError("this device has not joined the run yet")
        plan = RoundPlan.from_bytes(plan_bytes)
        self._check_privacy(plan)
        properties = self._properties()
        if plan.boundary < properties["boundary"]:
            reason = f"boundary {plan.boundary} needs more memory than this device has: it can "
            reason += f"run {properties['boundary']} and above"
            return {**properties, "failure": reason}, b""
        log.info("round %d: boundary %d", plan.round + 1, plan.boundary)
        began = time.perf_counter()
        found = attempt(self._side.client, plan_bytes)
        if not self._private:
            properties["seconds"] = round(time.perf_counter() - began, 3)
        if isinstance(found, Failure):
            log.warning("round %d failed: %s", plan.round + 1, found.reason)
            told = "it failed, and its worker.log says why" if self._private else found.reason
            return {**properties, "failure": told}, b""
        return properties, found

    def _check_privacy(self, plan: RoundPlan) -> None:
        """The noise is the device's own protection: it need not take the server's word for it."""
        noise = 0.0 if plan.privacy is None else plan.privacy.noise
        if noise < self._settings.min_noise:
            raise HoflError(
                f"the plan asks for noise {noise:g}, and this device answers with at least "
                f"{self._settings.min_noise:g} only"
            )

    def _properties(self) -> Header:
        """What the server may know; the boundary is found anew, as free memory changes."""
        assert self._side is not None
        return {
            "name": self._settings.name,
            "boundary": self._boundary(self._side),
            # In a private run, only that there are some.
            "examples": min(self._side.examples, 1) if self._private else self._side.examples,
            "layout": self._side.layout.digest,
            "memory": self._settings.memory,
        }

    def _boundary(self, side: DeviceSide) -> int:
        """The smallest that fits; how much memory it lacks tells of its longest text."""
        try:
            return side.own().boundary
        except HoflError as error:
            if not self._private:
                raise
            log.warning("no boundary: %s", error)
            raise HoflError("it has too little memory, and its worker.log says more") from None


def main() -> None:
    """Serve until ended."""
    settings = WorkerSettings.from_json(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    tune_allocator()
    use_threads(settings.threads, 1)
    worker = Worker(settings)
    with listen(Path(settings.socket)) as server:
        log.info("ready")
        while True:
            link, _ = server.accept()
            with link:
                try:
                    send(link, *worker.answer(*receive(link)))
                except LinkLost as loss:
                    log.warning("a request was given up: %s", loss)


if __name__ == "__main__":
    main()
