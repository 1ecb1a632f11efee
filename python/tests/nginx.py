"""nginx of the system as a web server with TLS, an authority of its own, and a proxy that answers CONNECT."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from threading import Thread

import pytest
from real import PATIENCE, free_port
from s3 import wait_for

HOST = "data.example.test"  # no name server knows it


def find(program: str) -> str:
    """A program of the system; absent is a skip, or a failure with LARDER_REQUIRE_NGINX=1."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/bin")
    if path:
        return path
    message = f"there is no {program}: make setup-nightly installs nginx-light and openssl on Debian"
    if os.environ.get("LARDER_REQUIRE_NGINX") == "1":
        pytest.fail(message)
    pytest.skip(message)


def certificates(folder: Path) -> Path:
    """Makes an authority, and a certificate by it for HOST and 127.0.0.1; returns the authority's PEM file."""
    openssl = find("openssl")
    folder.mkdir(parents=True)
    (folder / "names").write_text(f"subjectAltName=DNS:{HOST},IP:127.0.0.1\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    sign = ["-req", "-in", "s.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30"]
    for arguments in (
        ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "30", "-subj", "/CN=a test"],
        ["req", *key, "-keyout", "s.key", "-out", "s.csr", "-subj", f"/CN={HOST}"],
        ["x509", *sign, "-out", "s.pem", "-extfile", "names"],
    ):
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True)
    return folder / "ca.pem"


CONFIGURATION = """
{user} daemon off; worker_processes 1; pid {dir}/pid;
events {{ worker_connections 256; }}
http {{
  log_format plain '$request_method $status $http_range $uri $body_bytes_sent';
  access_log {dir}/access.log plain;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {dir}/tls/s.pem; ssl_certificate_key {dir}/tls/s.key;
    root {root};
  }}
}}
"""


class Server:
    """Serves a folder."""

    def __init__(self, folder: Path, root: Path) -> None:
        program = find("nginx")
        self.folder, self.root, self.port = folder, root, free_port()
        self.authority = certificates(folder / "tls")
        self.host = f"127.0.0.1:{self.port}"
        user = "user root;" if os.geteuid() == 0 else ""
        conf = folder / "nginx.conf"
        conf.write_text(CONFIGURATION.format(user=user, dir=folder, port=self.port, root=root))
        self.process = subprocess.Popen(
            [program, "-p", str(folder), "-c", str(conf), "-e", str(folder / "error.log")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        log = folder / "error.log"
        wait_for(self.process, self.port, lambda: log.read_text() if log.exists() else "")

    def log(self) -> list[list[str]]:
        """Its requests so far: method, status, range, path, bytes of the body."""
        return [line.split() for line in (self.folder / "access.log").read_text().splitlines()]

    def gets(self) -> list[list[str]]:
        return [x for x in self.log() if x[0] == "GET"]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)


def over_web(uri: str, root: Path, host: str) -> str:
    """The uri of files below a folder, as they are called on a server of the folder. A web server has no lists: all
    files of a folder are named, but for MDS, whose index names them.
    """
    scheme, _, rest = uri.partition(":")
    name, mark, arguments = rest.partition("?")
    if arguments.startswith("split="):
        name, mark, arguments = f"{name}/{arguments.removeprefix('split=')}", "", ""
    path = root / name
    files = [path]
    if path.is_dir() and scheme != "mds":
        beside = (".fai", ".gzi", ".json")
        files = sorted(p for p in path.iterdir() if p.suffix not in beside and p.name != "lock.mdb")
    return f"{scheme}:{'::'.join(f'https://{host}/{p.relative_to(root)}' for p in files)}{mark}{arguments}"


class Tunnel:
    """A proxy that answers CONNECT HOST:PORT with a connection to that port of this machine, and nothing else."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.asked: list[str] = []
        Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        with client:
            head = b""
            while b"\r\n\r\n" not in head:
                more = client.recv(4096)
                if not more:
                    return
                head += more
            method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
            self.asked.append(f"{method} {target}")
            name, _, port = target.partition(":")
            if method != "CONNECT" or name != HOST:
                client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                return
            with socket.create_connection(("127.0.0.1", int(port))) as server:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = Thread(target=pump, args=(client, server), daemon=True)
                back.start()
                pump(server, client)
                back.join()

    def stop(self) -> None:
        self.listener.close()


def pump(source: socket.socket, target: socket.socket) -> None:
    """Passes bytes on until one side ends."""
    try:
        while b := source.recv(1 << 16):
            target.sendall(b)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other side has gone
