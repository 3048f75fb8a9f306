"""The resident worker: a device's model and data, loaded once, behind a Unix socket.

``python -m hofl.deploy.worker SETTINGS`` serves one request after another. It holds the data; what
leaves it are uploads and the few properties that a device declares.
"""

import hashlib
import logging
import math
import signal
import sys
import time
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from hofl.core.durable import write_whole
from hofl.core.errors import HoflError, reason_of
from hofl.core.process import tune_allocator, use_threads
from hofl.deploy.device import WorkerSettings
from hofl.deploy.keys import FIELD, signer
from hofl.deploy.ledger import Limits, OwnLedger
from hofl.deploy.link import Disclosable, Header, LinkLost, listen, receive, send
from hofl.engines.base import Failure, attempt
from hofl.experiment.config import ExperimentConfig, parse_config
from hofl.experiment.device import DeviceSide, build_device
from hofl.memory.device import Device
from hofl.messages import RoundPlan

UNSAID = "it failed; see its worker.log"
"""All that a private device says of a failure: the reason may reveal its data."""

log = logging.getLogger("hofl.device")


class Worker:
    """Answers ``join`` and ``plan`` requests."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._sign = signer(Path(settings.key)) if settings.key else None
        self._ledger = _ledger(settings)
        # A device that insists on noise reveals nothing more, whatever the server offers.
        self._insists = settings.min_noise > 0 or settings.max_epsilon is not None
        self._joined, self._private = "", self._insists
        self._side: DeviceSide | None = None

    def answer(self, header: Header, payload: bytes) -> tuple[Header, bytes]:
        """Answer one request, signed; whatever goes wrong is answered as a failure, not raised."""
        received = time.time()
        reply, upload = self._answer(header, payload)
        reply = {**reply, "received": received}
        if header.get("kind") == "join":  # beside an upload, it would tell the computing time
            reply["replied"] = time.time()
        if self._sign is not None:
            reply = {**reply, FIELD: self._sign(str(header.get("message")), reply, upload)}
        return reply, upload

    def _answer(self, header: Header, payload: bytes) -> tuple[Header, bytes]:
        try:
            if header.get("kind") == "join":
                return self._join(payload), b""
            _check_deadline(header)
            return self._plan(payload)
        except Exception as error:  # a worker that dies is restarted, and asked the same again
            reason = reason_of(error)
            log.warning("refused: %s", reason)
            shown = UNSAID if self._private and not isinstance(error, Disclosable) else reason
            return {"failure": shown}, b""

    def _join(self, run_config: bytes) -> Header:
        """Load what the run needs, unless it is loaded, and declare what this device is."""
        digest = hashlib.sha256(run_config).hexdigest()
        if digest != self._joined or self._side is None:
            values: dict[str, Any] = tomllib.loads(run_config.decode())
            if self._settings.model:
                values["model"]["name"] = self._settings.model
            self._side = None  # free the old model before the new one is loaded
            config = parse_config(values)
            self._private = config.privacy.noise > 0 or self._insists
            log.info("joining run %s with model %s", config.name, config.model.name)
            self._side = self._built(config)
            self._joined = digest
            write_whole(Path(self._settings.run_config), run_config.decode())
        return self._properties(self._side)

    def _built(self, config: ExperimentConfig) -> DeviceSide:
        """Load model and data; errors in own files may quote them, and stay in the log."""
        settings = self._settings
        try:
            return build_device(
                config,
                data=Path(settings.data) if settings.data else None,
                shard=settings.shard if settings.shard >= 0 else None,
                memory=settings.memory,
                limits=settings.limits,
                boundary=settings.boundary if settings.boundary >= 0 else None,
                device=settings.device,
            )
        except Exception as error:
            if not settings.data:
                raise
            log.warning("cannot load: %s", reason_of(error))
            raise Disclosable("it cannot load the model or its data; see its worker.log") from None

    def _plan(self, message: bytes) -> tuple[Header, bytes]:
        """Compute an upload; refuse a plan that the memory does not allow."""
        kept = Path(self._settings.run_config)
        if self._side is None and kept.is_file():
            self._join(kept.read_bytes())  # restarted in the middle of a run
        if self._side is None:
            raise Disclosable("this device has not joined the run yet")
        plan = RoundPlan.from_bytes(message)
        self._check_privacy(plan)
        properties = self._properties(self._side)
        if plan.rule.traits.needs_backward and not self._settings.limits.get("backward", True):
            raise Disclosable("the plan runs blocks backward, and this device cannot")
        if plan.boundary < properties["boundary"]:
            reason = f"boundary {plan.boundary} needs more memory than this device has: it can "
            reason += f"run {properties['boundary']} and above"
            return {**properties, "failure": reason}, b""
        if self._ledger is not None:
            self._ledger.enter(plan)
        log.info("round %d: boundary %d", plan.round + 1, plan.boundary)
        began = time.perf_counter()
        upload = attempt(partial(_computed, self._side, plan))
        if not self._private:
            properties["seconds"] = round(time.perf_counter() - began, 3)
        if isinstance(upload, Failure):
            log.warning("round %d failed: %s", plan.round + 1, upload.reason)
            shown = UNSAID if self._private else upload.reason
            return {**properties, "failure": shown}, b""
        return properties, upload

    def _check_privacy(self, plan: RoundPlan) -> None:
        """Refuse too little noise: it protects the device, which need not trust the server."""
        noise = 0.0 if plan.privacy is None else plan.privacy.noise
        if noise < self._settings.min_noise:
            raise Disclosable(
                f"the plan asks for noise {noise:g}, and this device answers with at least "
                f"{self._settings.min_noise:g} only"
            )

    def _properties(self, side: DeviceSide) -> Header:
        """Return what the server may know; free memory changes, so plan again."""
        device = self._device(side)
        return {
            "name": self._settings.name,
            "boundary": device.boundary,
            **device.rule,
            # In a private run, only that there are some.
            "examples": min(side.examples, 1) if self._private else side.examples,
            "layout": side.layout.digest,
            "memory": self._settings.memory,
        }

    def _device(self, side: DeviceSide) -> Device:
        """Return what fits; how much memory it lacks reveals its longest text."""
        try:
            return side.choose()
        except HoflError as error:
            if not self._private:
                raise
            log.warning("no boundary: %s", error)
            raise Disclosable("it has too little memory; see its worker.log") from None


def _ledger(settings: WorkerSettings) -> OwnLedger | None:
    if not settings.ledger:
        return None
    limits = Limits(settings.max_epsilon, settings.max_rounds, settings.delta)
    return OwnLedger(Path(settings.ledger), limits)


def _check_deadline(header: Header) -> None:
    """Refuse a plan that nobody waits for any more; the server sends it in this device's time."""
    late = time.time() - header.get("until", math.inf)
    if late > 0:
        raise Disclosable(f"its deadline passed {late:.0f} s before this device could begin")


def _computed(side: DeviceSide, plan: RoundPlan) -> bytes:
    return side.client.upload(plan).to_bytes()


def main() -> None:
    """Serve until SIGTERM."""
    settings = WorkerSettings.from_json(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    tune_allocator()
    use_threads(settings.threads, 1)
    try:
        worker = Worker(settings)
    except HoflError as error:
        sys.exit(f"error: {error}")
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
