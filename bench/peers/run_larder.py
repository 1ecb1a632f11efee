"""larder as a job of peers.py and stores.py; the daemon is started by them."""

from __future__ import annotations

import child


def open_loader(spec: child.Spec) -> child.Epoch:
    import larder

    ops = larder.ops
    order = {"order": spec["order"]} if spec.get("order") else {}
    loader = larder.Loader(
        spec.get("uri") or f"imagefolder:{spec['data']}", batch_size=spec["batch"], shuffle=True, seed=spec["job"],
        job=f"peers-{spec['job']}", share=spec["variant"] or "none", **order,
        transform=[ops.RandomResizedCrop(spec["crop"]), ops.HFlip(), ops.ToImage()])
    return lambda: iter(loader)


if __name__ == "__main__":
    child.run(open_loader)
