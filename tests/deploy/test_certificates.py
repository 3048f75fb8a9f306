"""Certificates and keys of a fleet, judged by OpenSSL's handshake and by the file system."""

import logging
import shutil
import socket
import ssl
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from typer.testing import CliRunner

from hofl.cli.commands import app
from hofl.core.errors import HoflError
from hofl.deploy.certificates import make_certificates
from hofl.deploy.gateway import Gateway
from hofl.deploy.keys import Identity
from hofl.deploy.relay import Relay
from hofl.deploy.server import server_launcher
from hofl.deploy.transport import Endpoint
from hofl.experiment.launch import run
from support.runs import quick, run_cli


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    make_certificates(folder, ["train.example.org", "10.0.0.1"], ["kitchen", "garage"])
    return folder


def server_context(folder: Path) -> ssl.SSLContext:
    """A server that asks for certificates of the fleet, as the gateway does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.load_verify_locations(folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def device_context(folder: Path, name: str) -> ssl.SSLContext:
    return Identity(folder / "devices" / name).client_context()


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> str:
    """Both ends in memory; the common name that the server sees."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = ends[1].getpeercert()
    assert shown is not None
    return dict(pair for part in shown["subject"] for pair in part)["commonName"]


@pytest.mark.parametrize("host", ["train.example.org", "10.0.0.1", "127.0.0.1", "localhost"])
@pytest.mark.parametrize("name", ["kitchen", "garage"])
def test_device_and_server_recognise_each_other(fleet: Path, host: str, name: str) -> None:
    assert shake_hands(device_context(fleet, name), server_context(fleet), host) == name


def test_another_name_another_authority_and_no_certificate_are_refused(
    fleet: Path, tmp_path: Path
) -> None:
    make_certificates(tmp_path, ["train.example.org"], ["kitchen"])
    server, device = server_context(fleet), device_context(fleet, "kitchen")
    with pytest.raises(ssl.SSLCertVerificationError, match="match"):
        shake_hands(device, server, "evil.example.org")
    with pytest.raises(ssl.SSLError):  # the device sees a stranger's server
        shake_hands(device, server_context(tmp_path), "train.example.org")
    stranger = device_context(tmp_path, "kitchen")
    stranger.load_verify_locations(fleet / "ca.crt")
    with pytest.raises(ssl.SSLError):  # the server sees a stranger's device
        shake_hands(stranger, server, "train.example.org")
    nobody = ssl.create_default_context(cafile=str(fleet / "ca.crt"))
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate"):
        shake_hands(nobody, server, "train.example.org")


def test_a_device_cannot_pass_for_the_server(fleet: Path) -> None:
    garage = Identity(fleet / "devices" / "garage")
    with pytest.raises(ssl.SSLCertVerificationError, match="match"):
        shake_hands(device_context(fleet, "kitchen"), garage.server_context(), "train.example.org")


def test_a_device_has_one_key_in_all_its_forms(fleet: Path) -> None:
    folder = fleet / "devices" / "kitchen"
    ssh = serialization.load_ssh_private_key((folder / "kitchen").read_bytes(), None)
    pem = serialization.load_pem_private_key((folder / "kitchen.key").read_bytes(), None)
    public = serialization.load_ssh_public_key((fleet / "keys" / "kitchen.pub").read_bytes())
    numbers = public.public_numbers()
    assert ssh.public_key().public_numbers() == pem.public_key().public_numbers() == numbers
    other = serialization.load_ssh_public_key((fleet / "keys" / "garage.pub").read_bytes())
    assert other.public_numbers() != numbers
    assert ssh.curve.name == "secp384r1"


def test_nobody_else_can_read_anything(fleet: Path) -> None:
    files = [path for path in fleet.rglob("*") if path.is_file()]
    assert len(files) == 4 + 2 * 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_nothing_is_overwritten_and_nothing_is_half_written(fleet: Path) -> None:
    before = {path: path.read_bytes() for path in fleet.rglob("*") if path.is_file()}
    for hosts, devices, message in (
        ([], ["attic", "kitchen"], "kitchen.* exists: nothing was written"),
        (["other.example.org"], [], "has a server already"),
        ([], ["../evil"], "device name"),
        ([], [""], "device name"),
        ([], ["-x"], "device name"),
    ):
        with pytest.raises(HoflError, match=message):
            make_certificates(fleet, hosts, devices)
    assert {path: path.read_bytes() for path in fleet.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "host",
    ["10.0.0.1:9443", "https://h.example", "my server", "h.example/", "", "-h", "h..example"],
)
def test_what_no_device_could_connect_to_is_not_certified(host: str, tmp_path: Path) -> None:
    with pytest.raises(HoflError, match="is not a name or an address"):
        make_certificates(tmp_path / "f", ["h.example", host], [])
    assert not (tmp_path / "f").exists()


def test_a_folder_without_an_authority_is_one_line(tmp_path: Path) -> None:
    code, output = run_cli("certs", str(tmp_path / "f"), "--renew")
    expected = f"error: no file {tmp_path / 'f' / 'ca.key'}: give a folder of hofl certs"
    assert (code, output) == (2, f"{expected} with its authority.\n")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, output = run_cli("certs", str(tmp_path / "file" / "f"), "--host", "h.example")
    assert (code, output.count("\n")) == (2, 1)
    assert f"cannot use {tmp_path / 'file' / 'f'}: " in output


def test_a_device_is_added_later_by_the_same_authority(tmp_path: Path) -> None:
    invoke = CliRunner().invoke
    result = invoke(app, ["certs", str(tmp_path / "f"), "--host", "h.example", "--device", "a"])
    assert result.exit_code == 0, result.output
    assert invoke(app, ["certs", str(tmp_path / "f"), "--device", "b"]).exit_code == 0
    server = server_context(tmp_path / "f")
    assert shake_hands(device_context(tmp_path / "f", "b"), server, "h.example") == "b"
    with pytest.raises(HoflError, match="give --device NAME"):
        make_certificates(tmp_path / "f", [], [])
    with pytest.raises(HoflError, match="needs --host"):
        make_certificates(tmp_path / "g", [], ["a"])
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"listen": "9443"}, "write HOST:PORT"),
        ({"listen": "0.0.0.0:99999"}, "write HOST:PORT"),
        ({"listen": "0.0.0.0:1; }"}, "write HOST:PORT"),
        ({"listen": "x; }:9443"}, "write HOST:PORT"),
        ({"tls": Path("/nowhere")}, "make certificates with hofl certs"),
    ],
)
def test_a_gateway_that_cannot_work_is_refused_at_once(
    changes: dict, message: str, fleet: Path, tmp_path: Path
) -> None:
    values = {"listen": "0.0.0.0:9443", "inner": 9092, "tls": fleet, **changes}
    with pytest.raises(HoflError, match=message):
        Gateway(paths=["/v1"], body=1, **values).write(tmp_path / "gate")
    assert not (tmp_path / "gate").exists()


@pytest.mark.parametrize(
    ("tls", "nodes", "message"),
    [
        ("nowhere", "keys", "no file .*ca.crt: make certificates with hofl certs"),
        ("devices/kitchen", "keys", "no file .*server.crt: make certificates with hofl certs"),
        (".", "nowhere", "holds no device keys"),
    ],
)
def test_a_server_without_its_files_writes_nothing(
    tls: str, nodes: str, message: str, fleet: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    endpoint = Endpoint(address="127.0.0.1:9443", tls=fleet / tls, nodes=fleet / nodes)
    with pytest.raises(HoflError, match=message):
        run(quick(tiny_folder), tmp_path / "run", launcher=server_launcher(endpoint))
    assert not (tmp_path / "run").exists()


def test_a_server_whose_port_is_taken_writes_nothing(tiny_folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        launcher = server_launcher(Endpoint(address=address))
        with pytest.raises(HoflError, match=f"{address} is in use: choose another port"):
            run(quick(tiny_folder), tmp_path / "run", launcher=launcher)
    assert not (tmp_path / "run").exists()


def test_a_device_that_meets_another_authority_logs_it_once(
    fleet: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its node is hung up on and knows no reason; a second relay is the server."""
    make_certificates(tmp_path / "other", ["127.0.0.1"], ["spy"])
    spy = Identity(tmp_path / "other" / "devices" / "spy")
    kitchen = Identity(fleet / "devices" / "kitchen")
    with (
        caplog.at_level(logging.WARNING),
        Relay("127.0.0.1:9", spy) as server,
        Relay(server.address, kitchen) as relay,
    ):
        host, port = relay.address.split(":")
        trusting = ssl.create_default_context(cafile=kitchen.ca)
        for _ in range(2):
            link = trusting.wrap_socket(
                socket.create_connection((host, int(port))), server_hostname=host
            )
            with link:
                link.settimeout(20)
                assert link.recv(1) == b""
    logged = [text for text in caplog.messages if server.address in text]
    assert len(logged) == 1
    assert "certificate verify failed" in logged[0]


@pytest.mark.parametrize("name", ["ca.crt", "kitchen", "kitchen.crt", "kitchen.key"])
def test_a_device_without_one_of_its_files_is_refused_and_the_file_named(
    name: str, fleet: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "kitchen"
    shutil.copytree(fleet / "devices" / "kitchen", folder)
    Identity(folder).check()
    (folder / name).unlink()
    with pytest.raises(HoflError, match=f"no file {folder / name}: make device keys"):
        Identity(folder).check()


def test_a_device_that_cannot_keep_logs_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    words = ["device", "--server", "127.0.0.1:9092", "--shard", "0", "--home"]
    result = CliRunner().invoke(app, [*words, str(tmp_path / "home")])
    assert isinstance(result.exception, HoflError)
    assert "cannot keep logs in --home" in str(result.exception)
