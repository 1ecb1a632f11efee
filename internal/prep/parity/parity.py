"""Runs recipes through Pillow and torchvision and compares with what larder made of the same files.

Reads requests from stdin and answers each with a line of JSON. A request is a line of JSON; after {"case": ...} come
the file and the arrays of its stages, as many bytes as it says. Started by the package parity; it writes nothing else
to stdout."""
import io
import json
import random
import sys
import warnings

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import functional as F
from torchvision.transforms.functional import InterpolationMode as M

warnings.simplefilter("ignore")
torch.set_num_threads(1)


def jitter(img, p):
    for k in p["order"]:
        name = ("brightness", "contrast", "saturation", "hue")[k]
        if name in p:
            img = getattr(F, "adjust_" + name)(img, p[name])
    return img


def apply(img, name, a, p):
    if name == "Resize":
        size = a["size"]
        size = [int(v) for v in size] if isinstance(size, list) else int(size)
        return T.Resize(size, M(a["interpolation"]), max_size=a["max_size"] and int(a["max_size"]))(img)
    if name == "CenterCrop":
        return T.CenterCrop([int(v) for v in a["size"]])(img)
    if name == "RandomResizedCrop":
        return F.resized_crop(img, p["top"], p["left"], p["height"], p["width"], [int(v) for v in a["size"]],
                              M(a["interpolation"]))
    if name == "RandomHorizontalFlip":
        return F.hflip(img) if p["flip"] else img
    if name == "RandomVerticalFlip":
        return F.vflip(img) if p["flip"] else img
    if name == "ColorJitter":
        return jitter(img, p)
    if name == "Grayscale":
        return T.Grayscale(int(a["num_output_channels"]))(img)
    if name == "ToDtype":
        if a["dtype"] == "uint8":
            return F.pil_to_tensor(img)
        return F.to_tensor(img) if a["scale"] else F.pil_to_tensor(img).float()
    if name == "Normalize":
        return T.Normalize(a["mean"], a["std"])(img)
    raise ValueError("no op " + name)


def array(img, stage):
    """What torchvision's result is as an array of the stage's layout."""
    a = np.asarray(img)
    if isinstance(img, Image.Image):
        return a if a.ndim == 3 else a[:, :, None]
    return a.transpose(1, 2, 0) if stage["layout"] == "HWC" else a


def difference(op, got, img, stage):
    want = array(img, stage)
    if got.shape != want.shape:
        return {"op": op, "error": f"shape {list(got.shape)}, torchvision's is {list(want.shape)}"}
    d = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return {"op": op, "values": int(d.size), "differ": int((d != 0).sum()), "max": float(d.max()),
            "sum": float(d.sum())}


def case(c, read):
    file = read(c["bytes"])
    got = [np.frombuffer(read(s["bytes"]), s["dtype"]).reshape(s["shape"]) for s in c["stages"]]
    try:
        first = Image.open(io.BytesIO(file)).convert("RGB")
    except Exception as e:
        return {"refused": f"{type(e).__name__}: {e}"}
    if not got:
        return {}
    rows = [difference("decode", got[0], first, c["stages"][0])]
    whole, img = first, first
    for i, s in enumerate(c["stages"][1:], 1):
        if s["image"]:  # the op alone: from what larder had before it
            img = apply(Image.fromarray(got[i - 1]), s["name"], s["args"], s["params"])
            rows.append(difference(s["name"], got[i], img.convert("RGB"), s))
            img = Image.fromarray(got[i])
            if c["grey"] and s["name"] == "Grayscale":
                img = img.convert("L")
            elif c["grey"] and not c["stages"][min(i + 1, len(got) - 1)]["image"]:
                img = Image.fromarray(np.ascontiguousarray(got[i][:, :, 0]))
        else:
            if i == 1 or c["stages"][i - 1]["image"]:
                img = Image.fromarray(np.ascontiguousarray(got[i - 1][:, :, 0])) if c["grey"] else Image.fromarray(
                    got[i - 1])
            img = apply(img, s["name"], s["args"], s["params"])
            rows.append(difference(s["name"], got[i], img, s))
        args = dict(s["args"], num_output_channels=1) if c["grey"] and s["name"] == "Grayscale" else s["args"]
        whole = apply(whole, s["name"], args, s["params"])
    last = c["stages"][-1]
    if last["image"] and isinstance(whole, Image.Image):
        whole = whole.convert("RGB")
    rows.append(difference("whole recipe", got[-1], whole, last))
    return {"rows": rows}


def draws(d):
    """Columns of parameters that torchvision draws for one op."""
    random.seed(d["seed"])
    torch.manual_seed(d["seed"])
    a, n, w, h = d["args"], d["n"], d["width"], d["height"]
    if d["name"] == "RandomResizedCrop":
        img = Image.new("RGB", (w, h))
        box = np.array([T.RandomResizedCrop.get_params(img, a["scale"], a["ratio"]) for _ in range(n)])
        return {"top": box[:, 0].tolist(), "left": box[:, 1].tolist(), "height": box[:, 2].tolist(),
                "width": box[:, 3].tolist()}
    if d["name"] in ("RandomHorizontalFlip", "RandomVerticalFlip"):
        return {"flip": [float(torch.rand(1) < a["p"]) for _ in range(n)]}
    if d["name"] == "ColorJitter":
        t = T.ColorJitter(*[tuple(a[k]) for k in ("brightness", "contrast", "saturation", "hue")])
        cols = {k: [] for k in ("order", "brightness", "contrast", "saturation", "hue")}
        for _ in range(n):
            order, *f = T.ColorJitter.get_params(t.brightness, t.contrast, t.saturation, t.hue)
            cols["order"].append(float(sum(int(v) * 4 ** i for i, v in enumerate(order))))
            for k, v in zip(("brightness", "contrast", "saturation", "hue"), f, strict=False):
                if v is not None:
                    cols[k].append(float(v))
        return {k: v for k, v in cols.items() if v}
    return {}


def main():
    stdin, out = sys.stdin.buffer, sys.stdout

    def read(n):
        b = stdin.read(n)
        if len(b) != n:
            raise EOFError("the request ends early")
        return b

    print(json.dumps({"torchvision": torchvision.__version__, "pillow": PIL.__version__, "torch": torch.__version__}),
          flush=True)
    for line in stdin:
        q = json.loads(line)
        if "case" in q:
            answer = case(q["case"], read)
        else:
            answer = {"draws": draws(q["draws"])}
        out.write(json.dumps(answer) + "\n")
        out.flush()


main()
