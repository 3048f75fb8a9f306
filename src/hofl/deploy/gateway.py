"""The reverse proxy in front of a server: an nginx configuration, and nginx as a child process.

A transport's server may offer more than devices need (Flower's control interface, on the same port,
lets whoever reaches it run code on every device). So it stays on loopback, and nginx lets in who
holds a certificate of the fleet's authority, to the devices' paths and nothing else. Requests are
not logged; what goes wrong is in ``error.log``.
"""

import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hofl.core.errors import HoflError
from hofl.deploy.keys import ServerFiles
from hofl.deploy.processes import (
    Backoff,
    Child,
    answers,
    check_free,
    reached_at,
    split_address,
)

START_SECONDS = 20.0
CONNECTIONS = 16384
"""Of one nginx process, where the system allows so many open files. A connection that sends nothing
is closed after 5 s, so whoever wants to lock devices out has to open thousands in every second."""

_TEMPLATE = """\
# Lets devices of the fleet reach their paths of a server on loopback. Written by hofl.
worker_processes 2;
worker_rlimit_nofile {files};
worker_shutdown_timeout 10s;
pid nginx.pid;
error_log error.log warn;
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    # Nothing of a request or an answer touches the disk, whoever nginx runs as.
    client_body_temp_path temporary/body;
    proxy_temp_path temporary/proxy;
    fastcgi_temp_path temporary/fastcgi;
    uwsgi_temp_path temporary/uwsgi;
    scgi_temp_path temporary/scgi;
    proxy_request_buffering off;
    proxy_max_temp_file_size 0;
    server_tokens off;

    client_max_body_size {body};
    client_header_timeout 5s;  # from the first byte of a connection: a handshake, too
    reset_timedout_connection on;
    client_body_timeout 60s;
    send_timeout 60s;
    keepalive_timeout 75s;
    limit_conn_zone $ssl_client_fingerprint zone=devices:1m;
    limit_conn devices 16;

    upstream inner {{
        server 127.0.0.1:{inner};
        keepalive 16;
        keepalive_timeout 2s;  # Flower hangs up after 5 s: a request must not meet that
    }}
    server {{
        listen {listen} ssl;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_certificate "{tls}/server.crt";
        ssl_certificate_key "{tls}/server.key";
        ssl_client_certificate "{tls}/ca.crt";
{revoked}        ssl_verify_client on;
        ssl_verify_depth 1;

        location ~ ^({paths})\\z {{
            limit_except POST {{ deny all; }}
            # The normalised path that was matched above, never the one that was sent. It is
            # matched to its very end: before "$" there may be a line end.
            proxy_pass https://inner$uri;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_ssl_trusted_certificate "{tls}/ca.crt";
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
            proxy_connect_timeout 5s;
            proxy_read_timeout 120s;
        }}
        location / {{ return 403; }}
    }}
}}
"""


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """Where a gateway listens and what it guards.

    Args:
        listen: HOST:PORT for the devices.
        inner: port of the guarded server on loopback.
        tls: folder of ``hofl certs``.
        paths: what devices may call, by POST.
        body: most bytes of one request.
    """

    listen: str
    inner: int
    tls: Path
    paths: Sequence[str]
    body: int

    def config(self) -> str:
        """Return the text of ``nginx.conf``."""
        host, _, port = self.listen.rpartition(":")
        valid = re.fullmatch(r"[\w.:*\[\]-]+", host) and port.isdecimal()
        if not valid or not 0 < int(port) < 65536:
            raise HoflError(f"cannot listen on {self.listen!r}: write HOST:PORT.")
        ServerFiles(self.tls).check()
        tls = self.tls.resolve()
        if any(c in str(tls) for c in "\"'\\${};\n"):
            raise HoflError(f"the path {str(tls)!r} has characters nginx cannot quote: move it.")
        files = _open_files()
        return _TEMPLATE.format(
            files=files,
            connections=min(CONNECTIONS, files - 64),  # logs, listening sockets, libraries
            listen=self.listen,
            inner=self.inner,
            tls=tls,
            revoked=f'        ssl_crl "{tls}/crl.pem";\n' if (tls / "crl.pem").exists() else "",
            body=self.body,
            paths="|".join(map(re.escape, self.paths)),
        )

    def stamps(self) -> Sequence[tuple[int, int]]:
        """Return what changes when a certificate or the revocation list is replaced."""
        names = ("ca.crt", "server.crt", "server.key", "crl.pem")
        seen = []
        for name in names:
            with suppress(FileNotFoundError):
                status = (self.tls / name).stat()
                seen.append((status.st_ino, status.st_mtime_ns))
        return seen

    def write(self, folder: Path) -> Path:
        """Write ``nginx.conf`` and the folders it names; an existing one is replaced."""
        text = self.config()
        (folder / "temporary").mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / "nginx.conf"
        path.write_text(text, encoding="utf-8")
        return path


class GatewayProcess:
    """Keeps a gateway running.

    Args:
        gateway: its configuration.
        folder: for ``nginx.conf`` and logs.
    """

    def __init__(self, gateway: Gateway, folder: Path) -> None:
        nginx()
        self._gateway, self._folder = gateway, folder
        host, self._port = split_address(gateway.listen)
        self._local = reached_at(host)
        check_free(host, self._port)
        gateway.write(folder)
        self._loaded = gateway.stamps()
        self._backoff = Backoff(1.0, 30.0)
        self._nginx = Child(
            "gateway",
            lambda: command(folder),
            folder / "nginx.log",
            dict(os.environ),
            # Killed, it would leave its workers behind; asked to end, it ends them first.
            orphaned=signal.SIGTERM,
        )

    def keep_running(self) -> None:
        """Start it when it is not running, and let it read certificates that have changed.

        It holds nothing of a round, so nothing is lost.
        """
        changed = self._gateway.stamps() != self._loaded
        if changed:
            with suppress(HoflError):  # a file is missing: it may be copied in a moment
                self._gateway.write(self._folder)
                self._loaded = self._gateway.stamps()
                self._nginx.send_signal(signal.SIGHUP)
        if not self._nginx.alive() and self._backoff.ready():
            self._nginx.start()

    def open(self) -> None:
        """Start it, and wait until devices can connect."""
        self.keep_running()
        until = time.monotonic() + START_SECONDS
        while not answers(self._local, self._port):
            if not self._nginx.alive() or time.monotonic() > until:
                raise HoflError(f"the gateway does not start: {self._nginx.last_words()}")
            time.sleep(0.1)

    def close(self) -> None:
        """Stop it."""
        self._nginx.stop()


def _open_files() -> int:
    """Return how many files nginx may open: it raises its soft limit itself, up to the hard one."""
    import resource  # there is none on Windows, nor nginx

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def nginx() -> str:
    """Return the path of the program; Debian keeps it where only root looks."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise HoflError(
            "a server with --tls stands behind nginx, which is not installed: "
            "apt install nginx-light, or stay on 127.0.0.1 without --tls."
        )
    return program


def command(folder: Path) -> list[str]:
    """Return the words that run a folder's gateway in the foreground."""
    prefix = str(folder.resolve())
    return [nginx(), "-p", prefix, "-c", f"{prefix}/nginx.conf", "-g", "daemon off;"]
