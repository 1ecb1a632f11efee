"""Windows of audio: sample i is a second cut out of a recording, as a spectrogram.

    python examples/python_datasets/audio_windows.py

The recordings are WAV files that are made first. Job 0 needs all windows, job 1 those of the even seconds. What both
need is read and transformed once. """

from __future__ import annotations

import importlib.util
import sys
import wave
from pathlib import Path

import larder
import numpy as np
import two_jobs

RATE, SECONDS, FILES = 8000, 12, 10


def record(folder: Path) -> None:
    """A tone that rises, in each file from another pitch."""
    t = np.arange(RATE * SECONDS) / RATE
    for i in range(FILES):
        tone = 0.5 * np.sin(2 * np.pi * (200 + 40 * i) * t * (1 + t / SECONDS))
        with wave.open(str(folder / f"{i}.wav"), "wb") as f:
            f.setparams((1, 2, RATE, 0, "NONE", ""))
            f.writeframes((tone * 32767).astype("<i2").tobytes())


class Windows:
    """One second of a recording, as the logarithm of its spectrum over time, with the number of the recording."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.wav"))

    def __len__(self) -> int:
        return len(self.files) * SECONDS

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        file, second = divmod(index, SECONDS)
        with wave.open(str(self.files[file])) as f:
            f.setpos(second * RATE)
            sound = np.frombuffer(f.readframes(RATE), "<i2") / 32768
        frames = np.lib.stride_tricks.sliding_window_view(sound, 400)[::160] * np.hanning(400)
        return np.log1p(np.abs(np.fft.rfft(frames))).astype(np.float32), file


def train(job: int, epochs: int, folder: Path) -> None:
    from torch.utils.data import Subset

    windows = Windows(folder)
    part = Subset(windows, range(0, len(windows), 2)) if job == 1 else windows
    loader = larder.Loader(
        part, name="tones", cache="items", batch_size=16, shuffle=True, num_workers=1, job=f"audio-{job}"
    )
    with loader:
        for epoch in range(epochs):
            count, peak = 0, 0.0
            for spectra, files in loader:
                assert spectra.shape[1:] == (48, 201) and spectra.dtype == np.float32
                count, peak = count + len(files), max(peak, float(spectra.max()))
            print(f"job {job}, epoch {epoch}: {count} windows, peak {peak:.2f}", flush=True)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        sys.exit("this example needs PyTorch")
    sys.exit(two_jobs.main(train, record))
