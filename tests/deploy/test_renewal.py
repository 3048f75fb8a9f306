"""Renewed certificates work beside the old ones, revoked ones do not; ends are warned of.

Oracle: OpenSSL's own verification.
"""

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from hofl.cli.commands import app
from hofl.core.errors import HoflError
from hofl.deploy import certificates, renewal
from hofl.deploy.certificates import make_certificates
from hofl.deploy.device import Enrolment, WorkerSettings
from hofl.deploy.keys import Identity
from hofl.deploy.renewal import ExpiryWatch, renew, revoke, server_certificates


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    make_certificates(folder, ["train.example.org", "10.0.0.1"], ["kitchen", "attic"])
    return folder


def verified(ca: Path, certificate: Path, purpose: str, crl: Path | None = None) -> bool:
    """Whether OpenSSL takes a certificate, for a client or a server, by what a peer trusts."""
    openssl = shutil.which("openssl")
    assert openssl
    words = [openssl, "verify", "-purpose", purpose, "-CAfile", str(ca)]
    if crl is not None:
        words += ["-crl_check_all", "-CRLfile", str(crl)]
    done = subprocess.run([*words, str(certificate)], capture_output=True, check=False)
    return done.returncode == 0


def certificate_of(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(path: Path) -> list[str]:
    extensions = certificate_of(path).extensions
    found = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in found]


def test_old_and_new_certificates_work_side_by_side(fleet: Path, tmp_path: Path) -> None:
    """Whatever half of a renewal a server or a device has, both sides take each other."""
    old = tmp_path / "old"
    shutil.copytree(fleet, old)
    for name in ("kitchen", "attic"):
        shutil.rmtree(fleet / "devices" / name)  # copied to the device, deleted here
    before = {p: p.read_bytes() for p in fleet.rglob("*") if p.suffix in (".key", ".pub")}
    renew(fleet, [], [])
    for authority in (old, fleet):
        for signed in (old, fleet):
            assert verified(authority / "ca.crt", signed / "server.crt", "sslserver")
            kitchen = signed / "devices" / "kitchen"
            assert verified(authority / "ca.crt", kitchen / "kitchen.crt", "sslclient")
            assert verified(kitchen / "ca.crt", authority / "server.crt", "sslserver")
            crl = fleet / "crl.pem"
            assert verified(authority / "ca.crt", kitchen / "kitchen.crt", "sslclient", crl)
    for name in ("ca.crt", "server.crt", "devices/kitchen/kitchen.crt"):
        assert (
            certificate_of(fleet / name).serial_number != certificate_of(old / name).serial_number
        )
        assert certificate_of(fleet / name).public_key() == certificate_of(old / name).public_key()
    assert names(fleet / "server.crt") == names(old / "server.crt")
    assert {p: p.read_bytes() for p in before} == before, "no key changes"
    home = fleet / "devices" / "kitchen"
    assert sorted(path.name for path in home.iterdir()) == ["ca.crt", "kitchen.crt"]
    for path in home.iterdir():  # what the printed line says
        shutil.copy(path, old / "devices" / "kitchen")
    identity = Identity(old / "devices" / "kitchen")
    identity.check()
    identity.client_context()


def test_one_device_is_renewed_alone_and_a_server_gets_other_names(fleet: Path) -> None:
    before = {path: path.read_bytes() for path in fleet.rglob("*.crt")}
    renew(fleet, [], ["kitchen"])
    changed = {path.name for path in before if path.read_bytes() != before[path]}
    assert changed == {"kitchen.crt"}
    renew(fleet, ["new.example.org"], [])
    assert names(fleet / "server.crt") == ["new.example.org", "127.0.0.1", "localhost"]
    with pytest.raises(HoflError, match="--host belongs to the server"):
        renew(fleet, ["x"], ["kitchen"])
    with pytest.raises(HoflError, match="cannot renew the certificate of 'cellar'"):
        renew(fleet, [], ["cellar"])


def test_a_revoked_device_is_out_with_all_its_certificates_and_its_name_is_free_again(
    fleet: Path, tmp_path: Path
) -> None:
    ca, crl = fleet / "ca.crt", fleet / "crl.pem"
    old = tmp_path / "old"
    shutil.copytree(fleet, old)
    renew(fleet, [], [])
    given = [folder / "devices/attic/attic.crt" for folder in (old, fleet)]
    assert all(verified(ca, path, "sslclient", crl) for path in given)
    shutil.rmtree(fleet / "devices")
    revoke(fleet, ["attic"])
    assert not verified(ca, given[0], "sslclient", crl)
    assert verified(ca, old / "devices/kitchen/kitchen.crt", "sslclient", crl)
    assert not (fleet / "keys" / "attic.pub").exists()
    make_certificates(fleet, [], ["attic"])
    assert verified(ca, fleet / "devices/attic/attic.crt", "sslclient", crl)
    revoke(fleet, ["kitchen"])
    assert not verified(ca, given[0], "sslclient", crl), "earlier revocations stay"
    renew(fleet, [], [])
    assert not verified(ca, given[0], "sslclient", crl), "also after a renewal"
    assert verified(ca, fleet / "devices/attic/attic.crt", "sslclient", crl)


def test_a_device_that_nobody_knows_cannot_be_revoked_and_nothing_is_written(fleet: Path) -> None:
    with pytest.raises(HoflError, match="no certificate of 'cellar' is known"):
        revoke(fleet, ["kitchen", "cellar"])
    assert (fleet / "keys" / "kitchen.pub").exists()
    assert not (fleet / "crl.pem").exists()


def test_a_revoked_name_is_free_after_a_renewal_in_the_same_folder(fleet: Path) -> None:
    renew(fleet, [], [])
    revoke(fleet, ["attic"])
    make_certificates(fleet, [], ["attic"])
    Identity(fleet / "devices" / "attic").check()


def test_what_is_no_name_of_a_device_cannot_be_revoked(fleet: Path) -> None:
    with pytest.raises(HoflError, match=r"device name '\.\./x': use up to 40 letters"):
        revoke(fleet, ["../x"])


def test_a_damaged_revocation_list_is_one_line_without_a_link(fleet: Path) -> None:
    (fleet / "crl.pem").write_text("damaged")
    with pytest.raises(HoflError, match="is damaged: it lists what is revoked") as told:
        revoke(fleet, ["attic"])
    assert "http" not in str(told.value)


def test_a_fleet_of_an_earlier_version_is_revoked_by_the_certificate_in_the_devices_folder(
    fleet: Path,
) -> None:
    shutil.rmtree(fleet / "issued")
    certificate = fleet.parent / "kitchen.crt"
    shutil.copy(fleet / "devices/kitchen/kitchen.crt", certificate)
    revoke(fleet, ["kitchen"])
    assert not verified(fleet / "ca.crt", certificate, "sslclient", fleet / "crl.pem")


def test_the_command_renews_and_revokes_and_says_what_to_do(fleet: Path) -> None:
    result = CliRunner().invoke(app, ["certs", str(fleet), "--renew", "--device", "kitchen"])
    assert result.exit_code == 0
    assert f"copy {fleet}/devices/kitchen/*.crt into the folder of kitchen" in result.output
    result = CliRunner().invoke(app, ["certs", str(fleet), "--revoke", "kitchen"])
    assert result.exit_code == 0
    assert str(fleet / "crl.pem") in result.output
    result = CliRunner().invoke(app, ["certs", str(fleet), "--revoke", "attic", "--renew"])
    assert isinstance(result.exception, HoflError)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in fleet.rglob("*") if path.is_file())


@pytest.mark.parametrize(("days", "warned"), [(29, True), (31, False), (-1, True)])
def test_ends_are_warned_of_thirty_days_ahead_once_a_day(
    days: int, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, lines = tmp_path / "fleet", []
    monkeypatch.setattr(certificates, "DAYS", days if days > 0 else 1)
    make_certificates(fleet, ["127.0.0.1"], ["kitchen"])
    if days < 0:  # the library makes no certificate that has ended: look from the future
        monkeypatch.setattr(renewal, "datetime", InTwoDays)
    watch = ExpiryWatch(lambda: server_certificates(fleet), "renew", lines.append)
    watch.look()
    watch.look()
    ends = "has ended" if days < 0 else "ends in 28 days"
    expected = [f"{fleet / name} {ends}: renew" for name in ("server.crt", "issued/kitchen.crt")]
    assert lines == (expected if warned else [])
    monkeypatch.setattr(certificates, "DAYS", 825)
    renew(fleet, [], [])
    lines.clear()
    ExpiryWatch(lambda: server_certificates(fleet), "renew", lines.append).look()
    assert lines == []


class InTwoDays(datetime):
    """The clock, two days on."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:
        return datetime.now(UTC) + timedelta(days=2)


def test_a_device_watches_its_own_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(certificates, "DAYS", 10)
    make_certificates(tmp_path / "fleet", ["127.0.0.1"], ["kitchen"])
    identity = Identity(tmp_path / "fleet" / "devices" / "kitchen")
    settings = WorkerSettings(name="kitchen", shard=0)
    Enrolment(settings, "127.0.0.1:9443", tmp_path / "home", identity)._watch().look()
    assert [line.partition(": ")[0] for line in caplog.messages] == [
        f"{identity.folder / 'kitchen.crt'} ends in 9 days"
    ]
    assert "hofl certs FLEET --renew --device kitchen" in caplog.messages[0]
