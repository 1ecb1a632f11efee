"""Images that torchvision reads and the daemon does not: a native loader gives them as torch does."""

from __future__ import annotations

import io

import pytest
from real import draw, pillow
from test_e2e_python import loader_of, same

import larder
from larder import _rescue

__all__ = ["loader_of"]
OWN_DAEMON = True


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a CMYK TIFF, a float TIFF, a JPEG 2000 that is called .jpg, and a JPEG that is cut."""
    from torchvision import transforms as T
    from torchvision.datasets import ImageFolder

    image = pillow()
    root = draw(tmp_path / "images", 2, 6, size=(20, 24))
    first = root / "class000"
    image.new("CMYK", (20, 24), (9, 99, 20, 30)).save(first / "0005.tif")
    image.new("F", (20, 24), 77.0).save(first / "zz.tiff")
    for name in ("000b.jpg", "000c.jpg"):
        image.new("RGB", (20, 24), (200, 10, 99)).save(root / "class001" / name, "JPEG2000")
    data = io.BytesIO()
    image.effect_mandelbrot((64, 64), (-2, -1, 1, 1), 50).convert("RGB").save(data, "JPEG")
    (root / "class001" / "zcut.jpg").write_bytes(data.getvalue()[: len(data.getvalue()) * 6 // 10])
    monkeypatch.setattr(pytest.importorskip("PIL.ImageFile"), "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr(_rescue, "_said", set())
    return ImageFolder(str(root), T.Compose([T.Resize((8, 8)), T.ToTensor()]))


def test_they_come_at_their_places(loader_of, torch, folder, capfd):
    data = torch.utils.data
    n = len(folder)
    assert n == 17
    reordered = type(folder)(folder.root, folder.transform)
    reordered.samples.reverse()
    for dataset, kw in (
        (folder, {"batch_size": 4}),
        (folder, {"batch_size": 1}),
        (folder, {"batch_size": 5, "drop_last": True}),
        (folder, {"batch_size": 3, "sampler": [16, 0, 3, 16, 16, 2]}),
        (folder, {"batch_size": 3, "on_error": "skip"}),
        (reordered, {"batch_size": 4}),
        (data.Subset(folder, [16, 2, 9, 7]), {"batch_size": 3}),
        (data.Subset(folder, range(2, 17, 3)), {"batch_size": 2}),
    ):
        theirs = list(data.DataLoader(dataset, **{k: v for k, v in kw.items() if k != "on_error"}))
        ours = loader_of(dataset, **kw)
        assert ours.served_by == "native"
        for _ in range(2):
            got = list(ours)
            assert len(got) == len(theirs)
            for a, b in zip(got, theirs, strict=True):
                same(torch, a, b)
        assert ours.loader.quarantined == []
        ours.close()
    said = [x for x in capfd.readouterr().err.splitlines() if "this process reads" in x]
    assert 0 < len(said) <= 4 and len(set(said)) == len(said)


def test_shuffled_epochs_have_each_once(loader_of, torch, folder):
    want = sorted((y, x.sum().item()) for x, y in folder)
    ours = loader_of(folder, batch_size=4, shuffle=True, num_workers=1)
    before = torch.get_rng_state()
    for _ in range(2):
        assert sorted((int(y), x.sum().item()) for xs, ys in ours for x, y in zip(xs, ys, strict=True)) == want
    assert torch.equal(before, torch.get_rng_state()), "the script's random state is its own"


def test_what_torch_cannot_read_either_is_its_error(loader_of, torch, folder, monkeypatch):
    from PIL import ImageFile

    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    with pytest.raises(OSError, match="truncated"):
        list(torch.utils.data.DataLoader(folder, batch_size=4))
    it, got = iter(loader_of(folder, batch_size=4)), 0
    with pytest.raises(larder.SampleError) as e:
        while True:
            got += len(next(it)[0])
    assert isinstance(e.value, OSError) and e.value.file.endswith("zcut.jpg")
    assert got + sum(len(x) for x, _ in it) == 16, "the others of its batch come with the next call"
    skipping = loader_of(folder, batch_size=4, on_error="skip")
    assert sum(len(x) for x, _ in skipping) == 16


def test_limits_of_the_script_keep_a_folder_from_the_daemon(loader_of, folder, monkeypatch):
    from PIL import Image

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4096)
    assert loader_of(folder, batch_size=4).served_by == "workers"
