"""Does to images, masks, boxes and keypoints what the Go side did, with the same parameters, and says what differs.

Reads one case a line, as JSON. Images are PIL images through torchvision.transforms.functional. The rest goes through
the kernels of torchvision.transforms.v2 where there are any: LARDER_TORCHVISION_V2 names an unpacked wheel of
torchvision 0.24 or later, whose kernels run under older versions of torch too. Else through the formulas below, which
were written from their source.
"""

from __future__ import annotations

import base64
import importlib
import json
import math
import os
import sys
import types

import numpy as np
import torch
import torchvision.transforms.functional as PF
from PIL import Image

DTYPES = {"f32": "<f4", "f64": "<f8", "i32": "<i4", "i64": "<i8", "u8": "|u1"}


def kernels():
    """torchvision's kernels for tv_tensors out of a wheel, under the torch that is here; None without a wheel."""
    root = os.environ.get("LARDER_TORCHVISION_V2", "")
    if not root:
        return None
    for name in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        del sys.modules[name]

    def package(name, **names):
        m = types.ModuleType(name)
        m.__path__ = [os.path.join(root, *name.split("."))]
        m.__dict__.update(names)
        sys.modules[name] = m
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, m)

    package("torchvision")
    package("torchvision.io", decode_jpeg=None, encode_jpeg=None)
    package("torchvision.utils", _log_api_usage_once=lambda *a: None,
            _Image_fromarray=lambda a, mode=None: Image.fromarray(a))
    if not hasattr(torch, "compiler"):
        torch.compiler = types.SimpleNamespace(is_compiling=lambda: False, disable=lambda f: f)
    if not hasattr(torch._C, "DisableTorchFunctionSubclass"):
        torch._C.DisableTorchFunctionSubclass = torch._C.DisableTorchFunction
    package("torchvision.transforms")
    functional = importlib.import_module("torchvision.transforms.functional")
    sys.modules["torchvision.transforms"].InterpolationMode = functional.InterpolationMode
    sys.modules["torchvision.transforms"].functional = functional
    package("torchvision.transforms.v2")
    importlib.import_module("torchvision.tv_tensors")
    return importlib.import_module("torchvision.transforms.v2.functional")


V2 = kernels()
MODES = {"nearest": PF.InterpolationMode.NEAREST, "bilinear": PF.InterpolationMode.BILINEAR,
         "bicubic": PF.InterpolationMode.BICUBIC}


# ---- formulas


def corners(b, fmt):
    b = b.clone()
    if fmt == "XYWH":
        b[:, 2:] += b[:, :2]
    elif fmt == "CXCYWH":
        b[:, :2] -= b[:, 2:] / 2
        b[:, 2:] += b[:, :2]
    return b


def back(b, fmt):
    if fmt == "XYWH":
        b[:, 2:] -= b[:, :2]
    elif fmt == "CXCYWH":
        b[:, 2:] -= b[:, :2]
        b[:, :2] = (b[:, :2] * 2 + b[:, 2:]) / 2
    return b


def floats(b):
    return b.clone() if b.is_floating_point() else b.float()


def clamped(b, fmt, size):
    c = corners(floats(b), fmt)
    c[:, 0::2] = c[:, 0::2].clamp(0, size[1])
    c[:, 1::2] = c[:, 1::2].clamp(0, size[0])
    return back(c, fmt).to(b.dtype)


def flipped(v, fmt, size, axis):
    v, side = v.clone(), size[1 - axis]
    if fmt == "points":
        v[:, axis] = -(v[:, axis] - (side - 1))
    elif fmt == "XYXY":
        v[:, axis], v[:, axis + 2] = -(v[:, axis + 2] - side), -(v[:, axis] - side)
    elif fmt == "XYWH":
        v[:, axis] = -(v[:, axis] + v[:, axis + 2] - side)
    else:
        v[:, axis] = -(v[:, axis] - side)
    return v


def cropped(v, fmt, top, left, height, width):
    sub = [left, top] if fmt == "points" else [left, top] * 2 if fmt == "XYXY" else [left, top, 0, 0]
    v = v - torch.tensor(sub, dtype=v.dtype)
    return v if fmt == "points" else clamped(v, fmt, (height, width))


def resized(v, fmt, old, new):
    if tuple(old) == tuple(new):
        return v
    ratios = torch.tensor([new[1] / old[1], new[0] / old[0]] * (1 if fmt == "points" else 2))
    return (v * ratios).to(v.dtype)


def affine(v, fmt, size, m, expand, new):
    if v.numel() == 0:
        return v
    f = floats(v)
    t = torch.tensor(m, dtype=f.dtype).reshape(2, 3)
    to = lambda p: p @ t[:, :2].T + t[:, 2]  # noqa: E731
    edge = to(torch.tensor([[0, 0], [0, size[0]], [size[1], size[0]], [size[1], 0]], dtype=f.dtype))
    tr = edge.amin(0) if expand else torch.zeros(2, dtype=f.dtype)
    if fmt == "points":
        return (to(f) - tr).to(v.dtype)
    c = corners(f, fmt)
    all4 = torch.stack([to(c[:, k]) for k in ([0, 1], [2, 1], [2, 3], [0, 3])], 1)
    out = torch.cat([all4.amin(1) - tr, all4.amax(1) - tr], 1)
    out[:, 0::2] = out[:, 0::2].clamp(0, new[1])
    out[:, 1::2] = out[:, 1::2].clamp(0, new[0])
    return back(out, fmt).to(v.dtype)


def matrix(center, angle, translate, scale, shear):
    """Where a point goes: rotation about the centre, scale, shear, shift."""
    rot, sx, sy = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    a = math.cos(rot - sy) / math.cos(sy)
    b = -(a * math.tan(sx) + math.sin(rot))
    c = math.sin(rot - sy) / math.cos(sy)
    d = math.cos(rot) - c * math.tan(sx)
    a, b, c, d = a * scale, b * scale, c * scale, d * scale
    return [a, b, center[0] + translate[0] - a * center[0] - b * center[1],
            c, d, center[1] + translate[1] - c * center[0] - d * center[1]]  # fmt: skip


# ---- one op on all fields


def numbers(v, fmt, size, name, p, args, new):
    """Boxes or keypoints behind an op; size and new are (height, width) of the image."""
    if V2 is not None:
        return numbers_v2(v, fmt, size, name, p, args)
    if name in ("RandomHorizontalFlip", "RandomVerticalFlip"):
        return flipped(v, fmt, size, int(name == "RandomVerticalFlip")) if p["flip"] else v
    if name == "CenterCrop":
        h, w = (int(n) for n in args["size"])
        return cropped(v, fmt, round((size[0] - h) / 2), round((size[1] - w) / 2), h, w)
    if name == "Resize":
        return resized(v, fmt, size, new)
    if name == "RandomResizedCrop":
        v = cropped(v, fmt, p["top"], p["left"], p["height"], p["width"])
        return resized(v, fmt, (p["height"], p["width"]), new)
    center = args.get("center") or [size[1] * 0.5, size[0] * 0.5]
    if name == "RandomRotation":
        m = matrix(center, -p["angle"], [0, 0], 1, [0, 0])
        return affine(v, fmt, size, m, args["expand"], new)
    if name == "RandomAffine":
        m = matrix(center, p["angle"], [p["translate_x"], p["translate_y"]], p["scale"], [p["shear_x"], p["shear_y"]])
        return affine(v, fmt, size, m, False, new)
    return v


def numbers_v2(v, fmt, size, name, p, args):
    T = sys.modules["torchvision.tv_tensors"]
    t = T.KeyPoints(v, canvas_size=size) if fmt == "points" else T.BoundingBoxes(v, format=fmt, canvas_size=size)
    return kernel(t, name, p, args).as_subclass(torch.Tensor)


def kernel(t, name, p, args):
    if name == "RandomHorizontalFlip":
        return V2.horizontal_flip(t) if p["flip"] else t
    if name == "RandomVerticalFlip":
        return V2.vertical_flip(t) if p["flip"] else t
    if name == "CenterCrop":
        return V2.center_crop(t, [int(n) for n in args["size"]])
    if name == "Resize":
        return V2.resize(t, sizes(args), max_size=args["max_size"] and int(args["max_size"]))
    if name == "RandomResizedCrop":
        return V2.resized_crop(t, p["top"], p["left"], p["height"], p["width"], [int(n) for n in args["size"]])
    if name == "RandomRotation":
        return V2.rotate(t, p["angle"], expand=args["expand"], center=args["center"])
    if name == "RandomAffine":
        return V2.affine(t, p["angle"], [p["translate_x"], p["translate_y"]], p["scale"], [p["shear_x"], p["shear_y"]],
                         center=args["center"])  # fmt: skip
    for functional in COLOURS[name]:  # as a transform calls it: what has no kernel passes
        get = importlib.import_module("torchvision.transforms.v2.functional._utils")._get_kernel
        if get(getattr(V2, functional), type(t), allow_passthrough=True)(t) is not t:
            raise ValueError(f"{functional} changes a {type(t).__name__}")
    return t


COLOURS = {
    "ColorJitter": ["adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue"],
    "GaussianBlur": ["gaussian_blur"], "Grayscale": ["rgb_to_grayscale"], "RandomAutocontrast": ["autocontrast"],
    "RandomEqualize": ["equalize"], "RandomInvert": ["invert"], "RandomSolarize": ["solarize"],
    "RandomPosterize": ["posterize"], "RandomAdjustSharpness": ["adjust_sharpness"], "RandomErasing": ["erase"],
    "Normalize": ["normalize"], "ToDtype": [],
}  # fmt: skip


def sizes(args):
    size = args["size"]
    return [int(n) for n in size] if isinstance(size, list) else [int(size)]


def picture(img, name, p, args, interpolation, fill):
    """A PIL image behind an op."""
    mode = MODES[interpolation]
    if name == "RandomHorizontalFlip":
        return PF.hflip(img) if p["flip"] else img
    if name == "RandomVerticalFlip":
        return PF.vflip(img) if p["flip"] else img
    if name == "CenterCrop":
        return PF.center_crop(img, [int(n) for n in args["size"]])
    if name == "Resize":
        return PF.resize(img, sizes(args), mode, args["max_size"] and int(args["max_size"]))
    if name == "RandomResizedCrop":
        return PF.resized_crop(img, p["top"], p["left"], p["height"], p["width"], [int(n) for n in args["size"]], mode)
    if name == "RandomRotation":
        return PF.rotate(img, p["angle"], mode, args["expand"], args["center"], fill)
    if name == "RandomAffine":
        move, shear = [p["translate_x"], p["translate_y"]], [p["shear_x"], p["shear_y"]]
        return PF.affine(img, p["angle"], move, p["scale"], shear, mode, fill, args["center"])
    if name == "ColorJitter":
        do = [PF.adjust_brightness, PF.adjust_contrast, PF.adjust_saturation, PF.adjust_hue]
        names = ["brightness", "contrast", "saturation", "hue"]
        for k in p["order"]:
            if names[k] in p:
                img = do[k](img, p[names[k]])
        return img
    if name in CHANCE:
        return CHANCE[name](img, args) if p["apply"] else img
    if name == "GaussianBlur":
        return PF.gaussian_blur(img, [int(n) for n in args["kernel_size"]], [p["sigma"]] * 2)
    if name == "Grayscale":
        return PF.to_grayscale(img, int(args["num_output_channels"]))
    if name == "RandomErasing":
        return erased(img, p, args)
    if name == "Normalize":
        return PF.normalize(img, args["mean"], args["std"])
    if name == "ToDtype":
        return PF.to_tensor(img) if args["dtype"] == "float32" else img
    raise ValueError(name)


CHANCE = {
    "RandomAutocontrast": lambda img, a: PF.autocontrast(img),
    "RandomEqualize": lambda img, a: PF.equalize(img),
    "RandomInvert": lambda img, a: PF.invert(img),
    "RandomSolarize": lambda img, a: PF.solarize(img, a["threshold"]),
    "RandomPosterize": lambda img, a: PF.posterize(img, int(a["bits"])),
    "RandomAdjustSharpness": lambda img, a: PF.adjust_sharpness(img, a["sharpness_factor"]),
}


def erased(img, p, args):
    """RandomErasing of a tensor or, as v2 has it, of a PIL image."""
    if not p["apply"]:
        return img
    t = img if isinstance(img, torch.Tensor) else PF.pil_to_tensor(img)
    t = PF.erase(t, p["top"], p["left"], p["height"], p["width"], torch.tensor(args["value"])[:, None, None])
    return t if isinstance(img, torch.Tensor) else Image.fromarray(t.permute(1, 2, 0).numpy())


def size_of(img):
    """(height, width) of a PIL image or a tensor."""
    return tuple(img.shape[-2:]) if isinstance(img, torch.Tensor) else (img.height, img.width)


def mask_of(mask, name, p, args):
    """A mask behind an op: the kernel for masks, but rotations and affine transformations as PIL images."""
    if name in ("RandomRotation", "RandomAffine"):
        img = Image.fromarray(mask.numpy().astype(np.int32), "I")
        out = picture(img, name, p, args, "nearest", int(args["fill"][0]))
        return torch.from_numpy(np.asarray(out).astype(np.uint8))
    if V2 is not None:
        T = sys.modules["torchvision.tv_tensors"]
        return kernel(T.Mask(mask), name, p, args).as_subclass(torch.Tensor)
    if name == "RandomHorizontalFlip":
        return mask.flip(-1) if p["flip"] else mask
    if name == "RandomVerticalFlip":
        return mask.flip(-2) if p["flip"] else mask
    if name == "CenterCrop":
        return PF.center_crop(mask[None], [int(n) for n in args["size"]])[0]
    if name == "Resize":
        most = args["max_size"] and int(args["max_size"])
        return PF.resize(mask[None], sizes(args), MODES["nearest"], most)[0]
    if name == "RandomResizedCrop":
        box = (p["top"], p["left"], p["height"], p["width"])
        return PF.resized_crop(mask[None], *box, [int(n) for n in args["size"]], MODES["nearest"])[0]
    return mask


# ---- cases


def array(case, key):
    a = case[key]
    return np.frombuffer(base64.b64decode(a["data"]), DTYPES[a["dtype"]]).reshape(a["shape"])


def run(case):
    img = Image.fromarray(array(case, "image").copy())
    mask = torch.from_numpy(array(case, "mask").copy())
    boxes, points = (torch.from_numpy(array(case, k).copy()) for k in ("boxes", "points"))
    for op in case["ops"]:
        name, p, args = op["name"], op["params"], op["args"]
        size = size_of(img)
        fill = tuple(int(n) for n in args["fill"]) if "fill" in args else 0
        after = picture(img, name, p, args, args.get("interpolation", "nearest"), fill)
        new = size_of(after)
        boxes = numbers(boxes, case["format"], size, name, p, args, new)
        points = numbers(points, "points", size, name, p, args, new)
        mask = mask_of(mask, name, p, args)
        img = after
    return {"image": np.asarray(img), "mask": mask.numpy(), "boxes": boxes.numpy(), "points": points.numpy()}


def main():
    print(json.dumps({"kernels": "torchvision v2" if V2 is not None else "formulas"}), flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        answer = {}
        for key, want in run(case).items():
            got = array(case, key + "_out")
            if got.shape != want.shape:
                answer[key] = {"shape": [list(got.shape), list(want.shape)], "differing": max(got.size, 1), "max": -1.0}
                continue
            unlike = ~((got == want) | ((got != got) & (want != want)))
            far = np.abs(got.astype(np.float64) - want.astype(np.float64))
            answer[key] = {"values": int(got.size), "differing": int(unlike.sum()),
                           "max": float(far[unlike].max()) if unlike.any() else 0.0}  # fmt: skip
        print(json.dumps(answer), flush=True)


main()
