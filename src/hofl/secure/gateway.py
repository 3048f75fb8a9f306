"""The reverse proxy in front of a server: an nginx configuration.

Flower's SuperLink serves three interfaces on one port. Devices need the fleet's; whoever reaches
the control interface can run code on every device, and it asks for no login. So the SuperLink stays
on loopback, and nginx lets in who holds a certificate of the fleet's authority, to the fleet's
paths and nothing else. These are plain HTTP/1.1 requests that end at once: no gRPC, no long polls.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from hofl.errors import HoflError

FLEET_CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
"""What a registered device calls under /v1/fleet; registering is the server's own business."""
CHUNK = 5 * 2**20
"""Flower cuts arrays into objects of this many bytes."""

_TEMPLATE = """\
# Lets devices of the fleet reach the fleet's paths of a SuperLink on loopback. Written by hofl.
worker_processes 2;
pid nginx.pid;
error_log error.log warn;
events {{ worker_connections 4096; }}
http {{
    log_format fleet '$time_iso8601 $remote_addr "$ssl_client_s_dn" $status '
                     '$request_length $bytes_sent $request_time "$uri"';
    access_log access.log fleet;
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
    client_header_timeout 10s;
    client_body_timeout 60s;
    send_timeout 60s;
    keepalive_timeout 75s;
    limit_conn_zone $ssl_client_fingerprint zone=devices:1m;
    limit_conn devices 16;

    upstream superlink {{
        server 127.0.0.1:{superlink};
        keepalive 16;
        keepalive_timeout 2s;  # the SuperLink hangs up after 5 s: a request must not meet that
    }}
    server {{
        listen {listen} ssl;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_certificate "{tls}/server.crt";
        ssl_certificate_key "{tls}/server.key";
        ssl_client_certificate "{tls}/ca.crt";
        ssl_verify_client on;
        ssl_verify_depth 1;

        location ~ ^/v1/fleet/({calls})\\z {{
            limit_except POST {{ deny all; }}
            # The normalised path that was matched above, never the one that was sent. It is
            # matched to its very end: before "$" there may be a line end.
            proxy_pass https://superlink$uri;
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
        superlink: the SuperLink's port on loopback.
        tls: folder of ``hofl certs``.
        body: most bytes of one request.
    """

    listen: str
    superlink: int
    tls: Path
    body: int = 2 * CHUNK

    def config(self) -> str:
        """The text of ``nginx.conf``."""
        host, _, port = self.listen.rpartition(":")
        valid = re.fullmatch(r"[\w.:*\[\]-]+", host) and port.isdecimal()
        if not valid or not 0 < int(port) < 65536:
            raise HoflError(f"cannot listen on {self.listen!r}: write HOST:PORT.")
        tls = self.tls.resolve()
        for name in ("server.crt", "server.key", "ca.crt"):
            if not (tls / name).is_file():
                raise HoflError(f"no file {tls / name}: make certificates with hofl certs.")
        if any(c in str(tls) for c in "\"'\\${};\n"):
            raise HoflError(f"nginx cannot be told of the folder {str(tls)!r}: move it.")
        return _TEMPLATE.format(
            listen=self.listen,
            superlink=self.superlink,
            tls=tls,
            body=self.body,
            calls="|".join(FLEET_CALLS),
        )

    def write(self, folder: Path) -> Path:
        """Write ``nginx.conf`` and the folders it names; an existing one is replaced."""
        text = self.config()
        (folder / "temporary").mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / "nginx.conf"
        path.write_text(text, encoding="utf-8")
        return path


def nginx() -> str:
    """The program; Debian keeps it where only root looks."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise HoflError(
            "a server with --tls stands behind nginx, which is not installed: "
            "apt install nginx-light, or stay on 127.0.0.1 without --tls."
        )
    return found


def command(folder: Path) -> list[str]:
    """Runs the gateway of a folder in the foreground, as any user who can read the keys."""
    prefix = str(folder.resolve())
    return [nginx(), "-p", prefix, "-c", f"{prefix}/nginx.conf", "-g", "daemon off;"]
