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
from torchvision.transforms import autoaugment as A
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


AUTO = ("RandAugment", "TrivialAugmentWide", "AutoAugment")
AUTO_OPS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
    "Invert",
)
CHANCE = {
    "RandomAutocontrast": lambda img, a: F.autocontrast(img),
    "RandomEqualize": lambda img, a: F.equalize(img),
    "RandomInvert": lambda img, a: F.invert(img),
    "RandomSolarize": lambda img, a: F.solarize(img, a["threshold"]),
    "RandomPosterize": lambda img, a: F.posterize(img, int(a["bits"])),
    "RandomAdjustSharpness": lambda img, a: F.adjust_sharpness(img, a["sharpness_factor"]),
}


def erased(img, a, p, got):
    """RandomErasing of a tensor or, as torchvision v2 has it, of a PIL image."""
    if not p["apply"]:
        return img
    pil = isinstance(img, Image.Image)
    t = F.pil_to_tensor(img) if pil else img
    top, left, h, w = p["top"], p["left"], p["height"], p["width"]
    if a["value"] == "random":  # the noise is drawn: it is larder's
        v = torch.from_numpy(got[:, top : top + h, left : left + w].copy())
    else:
        v = torch.tensor(a["value"])[:, None, None]
    t = F.erase(t, top, left, h, w, v)
    if not pil:
        return t
    return Image.fromarray(t[0].numpy() if len(t) == 1 else t.permute(1, 2, 0).numpy())


def more(img, name, a, p):
    fill = [int(v) for v in a["fill"]] if "fill" in a else None
    if fill and isinstance(img, Image.Image) and img.mode == "L":
        fill = fill[:1]
    if name == "GaussianBlur":
        return F.gaussian_blur(img, [int(v) for v in a["kernel_size"]], [p["sigma"], p["sigma"]])
    if name == "RandomRotation":
        return F.rotate(img, p["angle"], M(a["interpolation"]), a["expand"], a["center"], fill)
    if name == "RandomAffine":
        return F.affine(
            img,
            p["angle"],
            (p["translate_x"], p["translate_y"]),
            p["scale"],
            (p["shear_x"], p["shear_y"]),
            M(a["interpolation"]),
            fill,
            center=a["center"],
        )
    if name in CHANCE:
        return CHANCE[name](img, a) if p["apply"] else img
    if name in AUTO:
        for op, magnitude in zip(p["ops"], p["magnitudes"], strict=True):
            img = A._apply_op(img, op, magnitude, M(a["interpolation"]), fill)
        return img
    raise ValueError("no op " + name)


def apply(img, name, a, p, got=None):
    if name == "Resize":
        size = a["size"]
        size = [int(v) for v in size] if isinstance(size, list) else int(size)
        return T.Resize(size, M(a["interpolation"]), max_size=a["max_size"] and int(a["max_size"]))(img)
    if name == "CenterCrop":
        return T.CenterCrop([int(v) for v in a["size"]])(img)
    if name == "RandomResizedCrop":
        return F.resized_crop(
            img, p["top"], p["left"], p["height"], p["width"], [int(v) for v in a["size"]], M(a["interpolation"])
        )
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
        if a.get("by") == "mul":  # as torchvision.transforms.v2 does, which not every torchvision has
            return F.pil_to_tensor(img).float().mul_(1.0 / 255)
        return F.to_tensor(img) if a["scale"] else F.pil_to_tensor(img).float()
    if name == "Normalize":
        return T.Normalize(a["mean"], a["std"])(img)
    if name == "RandomErasing":
        return erased(img, a, p, got)
    return more(img, name, a, p)


def array(img, stage):
    """What torchvision's result is as an array of the stage's layout."""
    a = np.asarray(img)
    if isinstance(img, Image.Image):
        return a if a.ndim == 3 else a[:, :, None]
    return a.transpose(1, 2, 0) if stage["layout"] == "HWC" else a


def planes(a, stage):
    """An array in the order of a tensor."""
    return a.transpose(2, 0, 1) if stage["layout"] == "HWC" else a


def difference(op, got, img, stage):
    want = array(img, stage)
    if got.shape != want.shape:
        return {"op": op, "error": f"shape {list(got.shape)}, torchvision's is {list(want.shape)}"}
    d = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return {
        "op": op,
        "values": int(d.size),
        "differ": int((d != 0).sum()),
        "max": float(d.max()),
        "sum": float(d.sum()),
    }


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
            try:
                img = apply(Image.fromarray(got[i - 1]), s["name"], s["args"], s["params"], planes(got[i], s))
            except Exception as e:
                return {"rows": [*rows, {"op": s["name"], "error": f"torchvision fails: {e}"}]}
            rows.append(difference(s["name"], got[i], img.convert("RGB"), s))
            img = Image.fromarray(got[i])
            if c["grey"] and s["name"] == "Grayscale":
                img = img.convert("L")
            elif c["grey"] and not c["stages"][min(i + 1, len(got) - 1)]["image"]:
                img = Image.fromarray(np.ascontiguousarray(got[i][:, :, 0]))
        else:
            if i == 1 or c["stages"][i - 1]["image"]:
                img = (
                    Image.fromarray(np.ascontiguousarray(got[i - 1][:, :, 0]))
                    if c["grey"]
                    else Image.fromarray(got[i - 1])
                )
            img = apply(img, s["name"], s["args"], s["params"], planes(got[i], s))
            rows.append(difference(s["name"], got[i], img, s))
        args = dict(s["args"], num_output_channels=1) if c["grey"] and s["name"] == "Grayscale" else s["args"]
        whole = apply(whole, s["name"], args, s["params"], planes(got[i], s))
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
        return {
            "top": box[:, 0].tolist(),
            "left": box[:, 1].tolist(),
            "height": box[:, 2].tolist(),
            "width": box[:, 3].tolist(),
        }
    if d["name"] in ("RandomHorizontalFlip", "RandomVerticalFlip"):
        return {"flip": [float(torch.rand(1) < a["p"]) for _ in range(n)]}
    if d["name"] == "ColorJitter":
        t = T.ColorJitter(*[tuple(a[k]) for k in ("brightness", "contrast", "saturation", "hue")])
        cols = {k: [] for k in ("order", "brightness", "contrast", "saturation", "hue")}
        for _ in range(n):
            order, *f = T.ColorJitter.get_params(t.brightness, t.contrast, t.saturation, t.hue)
            cols["order"].append(float(sum(int(v) * 4**i for i, v in enumerate(order))))
            for k, v in zip(("brightness", "contrast", "saturation", "hue"), f, strict=False):
                if v is not None:
                    cols[k].append(float(v))
        return {k: v for k, v in cols.items() if v}
    return more_draws(d, a, n, w, h)


def more_draws(d, a, n, w, h):
    name = d["name"]
    if name == "GaussianBlur":
        return {"sigma": [T.GaussianBlur.get_params(*a["sigma"]) for _ in range(n)]}
    if name == "RandomRotation":
        return {"angle": [T.RandomRotation.get_params(a["degrees"]) for _ in range(n)]}
    if name == "RandomAffine":
        cols = {k: [] for k in ("angle", "translate_x", "translate_y", "scale", "shear_x", "shear_y")}
        for _ in range(n):
            ranges = [a[k] for k in ("degrees", "translate", "scale", "shear")]
            angle, t, scale, shear = T.RandomAffine.get_params(*ranges, [w, h])
            for k, v in zip(cols, (angle, *t, scale, *shear), strict=True):
                cols[k].append(float(v))
        return cols
    if name in CHANCE:
        return {"apply": [float(torch.rand(1) < a["p"]) for _ in range(n)]}
    if name == "RandomErasing":
        cols, img = {k: [] for k in ("apply", "top", "left", "height", "width")}, torch.zeros(1, h, w)
        for _ in range(n):
            box = T.RandomErasing.get_params(img, a["scale"], a["ratio"], [0.0]) if torch.rand(1) < a["p"] else None
            done = box is not None and box[4] is not img
            cols["apply"].append(float(done))
            for k, v in zip(("top", "left", "height", "width"), box[:4] if done else (), strict=False):
                cols[k].append(float(v))
        return cols
    if name in AUTO:
        return auto_draws(name, a, n, Image.new("RGB", (w, h)))
    return {}


def auto_draws(name, a, n, img):
    fixed = {"interpolation": M(a["interpolation"]), "fill": None}
    if name == "AutoAugment":
        t = T.AutoAugment(T.AutoAugmentPolicy(a["policy"]), **fixed)
    elif name == "RandAugment":
        t = T.RandAugment(int(a["num_ops"]), int(a["magnitude"]), int(a["num_magnitude_bins"]), **fixed)
    else:
        t = T.TrivialAugmentWide(int(a["num_magnitude_bins"]), **fixed)
    drawn, kept = [], A._apply_op
    A._apply_op = lambda img, op, magnitude, **_: (drawn.append((op, magnitude)), img)[1]
    cols = {"count": []}
    try:
        for _ in range(n):
            drawn.clear()
            t(img)
            cols["count"].append(float(len(drawn)))
            for i, (op, magnitude) in enumerate(drawn[:4]):
                cols.setdefault(f"op{i}", []).append(float(AUTO_OPS.index(op)))
                cols.setdefault(f"magnitude{i}", []).append(magnitude)
    finally:
        A._apply_op = kept
    return cols


def main():
    stdin, out = sys.stdin.buffer, sys.stdout

    def read(n):
        b = stdin.read(n)
        if len(b) != n:
            raise EOFError("the request ends early")
        return b

    print(
        json.dumps({"torchvision": torchvision.__version__, "pillow": PIL.__version__, "torch": torch.__version__}),
        flush=True,
    )
    for line in stdin:
        q = json.loads(line)
        if "case" in q:
            answer = case(q["case"], read)
        else:
            answer = {"draws": draws(q["draws"])}
        out.write(json.dumps(answer) + "\n")
        out.flush()


main()
