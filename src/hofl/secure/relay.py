"""A device's way through the gateway: Flower's node shows no certificate, so the relay does.

The node talks TLS to the relay on this device's loopback; the relay talks TLS to the gateway, with
the device's certificate, and passes bytes on. It reads nothing of what it passes.
"""

import asyncio
import contextlib
import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from hofl.errors import HoflError

PIECE = 2**16
CONNECT_SECONDS = 20.0
START_SECONDS = 20.0

log = logging.getLogger("hofl.device")


@dataclass(frozen=True)
class DeviceFiles:
    """A device's folder as ``hofl certs`` makes it: ``ca.crt``, ``NAME``, ``NAME.crt``, ..."""

    folder: Path
    name: str

    @property
    def ca(self) -> Path:
        """What the device trusts."""
        return self.folder / "ca.crt"

    def client_context(self) -> ssl.SSLContext:
        """Verifies the server's name and shows this device's certificate."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.ca)
        context.load_cert_chain(*self._pair)
        return context

    def server_context(self) -> ssl.SSLContext:
        """For the node on this device."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self._pair)
        return context

    @property
    def _pair(self) -> tuple[Path, Path]:
        return self.folder / f"{self.name}.crt", self.folder / f"{self.name}.key"


class Relay:
    """Passes connections on until it is closed; use as a context manager.

    Args:
        server: HOST:PORT of the gateway.
        files: this device's certificate and key.
        port: port on loopback; 0 is any.
    """

    def __init__(self, server: str, files: DeviceFiles, port: int = 0) -> None:
        host, _, number = server.rpartition(":")
        if not host or not number.isdecimal():
            raise HoflError(f"cannot connect to {server!r}: write HOST:PORT.")
        try:
            self._outward, self._inward = files.client_context(), files.server_context()
        except (OSError, ssl.SSLError) as error:
            raise HoflError(
                f"cannot use the certificate of {files.name!r} in {files.folder}: {error}. "
                "Make it with hofl certs."
            ) from None
        self._host, self._number, self._port = host.strip("[]"), int(number), port
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._failure: OSError | None = None
        self._told = ""

    @property
    def address(self) -> str:
        """Where the node finds the server: HOST:PORT on loopback."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._listening.wait(START_SECONDS) or self._failure is not None:
            raise HoflError(f"the relay cannot listen on {self.address}: {self._failure}.")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            serving = self._loop.run_until_complete(
                asyncio.start_server(self._pass_on, "127.0.0.1", self._port, ssl=self._inward)
            )
            self._port = serving.sockets[0].getsockname()[1]
        except OSError as error:
            self._failure = error
            self._listening.set()
            self._loop.close()
            return
        self._listening.set()
        self._loop.run_forever()
        serving.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; when either side ends it, both end."""
        with contextlib.closing(writer), contextlib.suppress(OSError):
            answers, requests = await self._connected()
            with contextlib.closing(requests):
                ways = {
                    asyncio.ensure_future(_pump(reader, requests)),
                    asyncio.ensure_future(_pump(answers, writer)),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the gateway; the node is only hung up on, so the log says why."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                found = await asyncio.open_connection(
                    self._host, self._number, ssl=self._outward, server_hostname=self._host
                )
        except OSError as error:
            reason = str(error) or f"no answer within {CONNECT_SECONDS:g} s"
            if reason != self._told:  # not once for every attempt
                log.warning("cannot connect to %s:%d: %s", self._host, self._number, reason)
            self._told = reason
            raise
        self._told = ""
        return found


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
