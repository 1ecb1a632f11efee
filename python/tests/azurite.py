"""Azurite, Microsoft's emulator of Azure Blob Storage, in memory."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import shutil
import subprocess
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

import pytest
from real import PATIENCE, ROOT, free_port
from s3 import wait_for

ACCOUNT = "devstoreaccount1"
KEY = base64.b64encode(b"a key of 32 bytes, for tests ...").decode()


def find_server() -> str:
    """LARDER_AZURITE or bin/tools/azurite; absent is a skip, or a failure with LARDER_REQUIRE_AZURITE=1."""
    path = os.environ.get("LARDER_AZURITE") or str(ROOT / "bin/tools/azurite/node_modules/.bin/azurite-blob")
    if shutil.which(path) and shutil.which("node"):
        return path
    message = "there is no azurite-blob: make setup-nightly installs it into bin/tools where npm is"
    if os.environ.get("LARDER_REQUIRE_AZURITE") == "1":
        pytest.fail(message)
    pytest.skip(message)


class Server:
    """The emulator; `put` makes blobs."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        log = folder / "azurite.log"
        command = [find_server(), "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--inMemoryPersistence"]
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [*command, "--skipApiVersionCheck", "--disableTelemetry", "--silent"],
                cwd=folder,
                stdout=out,
                stderr=out,
                env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
            )
        wait_for(self.process, self.port, log.read_text)

    def container(self, name: str) -> None:
        """Makes a container."""
        self.send(f"/{name}", b"", {}, restype="container")

    def put(self, path: str, body: bytes) -> None:
        """Makes the blob CONTAINER/NAME."""
        self.send("/" + path, body, {"x-ms-blob-type": "BlockBlob"})

    def fill(self, container: str, folder: Path) -> None:
        """Makes a blob of every file in a folder."""
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            self.put(f"{container}/{path.relative_to(folder)}", path.read_bytes())

    def send(self, path: str, body: bytes, headers: dict[str, str], **query: str) -> None:
        """One request that writes, signed with the key of the account."""
        path = quote(f"/{ACCOUNT}{path}")
        signed = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02", **headers}
        fields = ["PUT", "", "", str(len(body) or ""), "", "application/octet-stream", "", "", "", "", "", ""]
        fields += [f"{k}:{signed[k]}" for k in sorted(signed)] + [f"/{ACCOUNT}{path}"]
        fields += [f"{k}:{query[k]}" for k in sorted(query)]
        mac = hmac.new(base64.b64decode(KEY), "\n".join(fields).encode(), hashlib.sha256).digest()
        signed["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(mac).decode()}"
        signed |= {"Content-Type": "application/octet-stream", "Content-Length": str(len(body))}
        there = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            there.request("PUT", path + "".join(f"?{k}={v}" for k, v in query.items()), body, signed)
            answer = there.getresponse()
            said = answer.read()
            assert answer.status == 201, f"{path}: {answer.status} {said.decode()}"
        finally:
            there.close()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
