"""A real daemon that is killed and started again on the same socket and state.dir, as the restart tests need it."""

from __future__ import annotations

from real import Daemon, digest

CROP = {"name": "RandomResizedCrop", "args": {"size": 24}}


class Lives:
    """A daemon on one socket and state.dir that is killed and started again; with a clock it decides by that."""

    def __init__(self, folder, state=None, more="", clock=None):
        self.folder = folder
        self.config = (
            f"state: {{dir: {state or folder / 'state'}}}\ntiers: {{total: 64MiB}}\nmemory: {{limit: 1GiB}}\n{more}"
        )
        self.arguments = [] if clock is None else ["--clock", clock.address]
        self.daemon = None
        self.start()

    @property
    def socket(self):
        return self.daemon.socket

    def start(self):
        self.daemon = Daemon(self.folder, *self.arguments, config=self.config)

    def kill(self):
        self.daemon.kill()

    def restart(self, politely=False):
        if politely:
            self.daemon.stop()  # SIGTERM: jobs go on with the next daemon
        else:
            self.kill()
        self.start()


def record(batch):
    images, labels, index = batch
    return [(i, y, digest(x)) for x, y, i in zip(images, labels.tolist(), index.tolist(), strict=True)]
