"""Parts of datasets that are not plain, and what of torch's DataLoader has no work to do here, on the real daemon."""

from __future__ import annotations

import pytest
from test_e2e_python import Items, loader_of, same

import larder

__all__ = ["loader_of"]
OWN_DAEMON = True

pytestmark = [pytest.mark.filterwarnings("ignore::larder.NotSharedWarning")]


def test_a_subset_with_code_of_its_own_is_not_taken_apart(loader_of, torch):
    """Whatever gives its samples: __getitem__, or __getitems__ alone, which torch asks first since 2.0."""
    data = torch.utils.data

    class Negative(data.Subset):
        def __getitem__(self, i):
            return -self.dataset[self.indices[i]]

        def __getitems__(self, indices):
            return [-self.dataset[self.indices[i]] for i in indices]

    class Several(data.Subset):
        def __getitems__(self, indices):
            return [self.dataset[self.indices[i]] for i in indices]

    class Named(data.Subset):
        """Adds nothing that gives samples."""

        title = "some"

    base = list(range(100, 140))
    for cls, apart in ((data.Subset, True), (Named, True), (Negative, False), (Several, False)):
        part = cls(base, list(range(5, 35)))
        found = larder._dataset.understand(part)
        assert (found.base is base) == apart and found.rows == 30, cls
        sign = -1 if cls is Negative else 1
        for workers in (0, 1):
            got = torch.cat(list(loader_of(part, batch_size=4, num_workers=workers)))
            assert got.tolist() == [sign * x for x in range(105, 135)]


def test_parts_with_repeats_say_so_where_their_name_is_taken(loader_of, torch):
    data = torch.utils.data
    base = list(range(30))
    loader_of(base, batch_size=5, name="repeated", job="whole")
    for indices, words in (
        ([4, 7, 4], "this part has sample 4 more than once"),
        ([*range(12), *range(9)], "this part has samples 0, 1, 2, 3, 4 and 4 more more than once"),
    ):
        part = data.Subset(base, indices)
        with pytest.raises(larder.InvalidError, match=f"{words}.*another name=.*sampler=") as e:
            loader_of(part, batch_size=3, name="repeated", job="part")
        assert e.value.reason == "ALREADY_EXISTS"
        alone = loader_of(part, batch_size=3, name=f"repeated-{len(indices)}")
        assert torch.cat(list(alone)).tolist() == indices
        picked = loader_of(base, batch_size=3, sampler=indices, name="repeated", job=f"picked-{len(indices)}")
        assert torch.cat(list(picked)).tolist() == indices


def test_pin_memory_without_a_gpu(loader_of, torch):
    """torch takes the argument too, and pins nothing."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    dataset = Items(10, lambda i: (torch.full((2,), i), str(i)))
    theirs = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    for workers in (0, 1):
        ours = loader_of(dataset, batch_size=4, num_workers=workers, pin_memory=True)
        assert ours.pin_memory
        for a, b in zip(ours, theirs, strict=True):
            same(torch, a, b)
            assert not a[0].is_pinned()


def test_a_loader_may_be_annotated_with_what_its_samples_are(loader_of, torch):
    from larder.torch import DataLoader

    def train(loader: DataLoader[int]) -> DataLoader[int]:
        return loader

    class Mine(DataLoader[torch.Tensor]):
        pass

    assert DataLoader[int] == DataLoader[int] != DataLoader[str] and issubclass(Mine, DataLoader)
    assert isinstance(train(loader_of([1, 2], batch_size=1)), DataLoader)
