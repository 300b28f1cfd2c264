"""`make certs`."""

import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from services.cluster.certificates import NAMES, SERVER_NAME, main, make_certificates
from services.contract.errors import StartError
from services.runtime.serving import TlsFiles


def certificate(file):
    return x509.load_pem_x509_certificate(file.read_bytes())


def test_every_certificate_is_of_the_ca_and_fits_its_key(tmp_path):
    make_certificates(tmp_path / "certs")
    folder = tmp_path / "certs"
    ca = certificate(folder / "ca.pem")
    for name in NAMES:
        TlsFiles(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem").check()
        certificate(folder / f"{name}.pem").verify_directly_issued_by(ca)


def test_the_servers_certificate_is_for_this_machine_and_the_name_of_links(tmp_path):
    make_certificates(tmp_path)
    names = certificate(tmp_path / "server.pem").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert set(names.value.get_values_for_type(x509.DNSName)) == {"localhost", SERVER_NAME}
    addresses = names.value.get_values_for_type(x509.IPAddress)
    assert {str(address) for address in addresses} == {"127.0.0.1", "::1"}


def test_keys_are_for_their_owner_alone(tmp_path):
    make_certificates(tmp_path / "certs")
    keys = list((tmp_path / "certs").glob("*.key"))
    assert len(keys) == 1 + len(NAMES)
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_again_keeps_the_ca_unless_told_otherwise(tmp_path):
    make_certificates(tmp_path)
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    make_certificates(tmp_path)
    again = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert {name for name in first if first[name] == again[name]} == {"ca.pem", "ca.key"}
    certificate(tmp_path / "client.pem").verify_directly_issued_by(certificate(tmp_path / "ca.pem"))
    make_certificates(tmp_path, new_ca=True)
    assert first["ca.pem"] != (tmp_path / "ca.pem").read_bytes()


def test_half_a_ca_is_not_replaced_in_silence(tmp_path, capsys):
    make_certificates(tmp_path)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(StartError, match="--new-ca"):
        make_certificates(tmp_path)
    assert main(["--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("certificates: ")
    assert main(["--folder", str(tmp_path), "--new-ca", "--days", "2"]) == 0
    ends = certificate(tmp_path / "client.pem").not_valid_after_utc
    assert timedelta(days=1) < ends - datetime.now(UTC) <= timedelta(days=2)
