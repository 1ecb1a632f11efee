#!/bin/sh
# Writes docs/measurements/parity.md to standard output: table.sh LARDER DATASET PYTHON, e.g.
#   internal/prep/parity/table.sh bin/larder imagefolder:/data/imagenet-700 /usr/bin/python3 > docs/measurements/parity.md
set -eu
larder=$1 dataset=$2 python=$3
cat <<'TEXT'
# Parity with torchvision, measured

`internal/prep/parity/table.sh` writes this page. It runs `larder verify parity` on 700 ImageNet photographs.
[parity.md](../parity.md) says what is compared and what differs.

**Ops.** Each op gets what larder had before it, so a difference shows at the op that makes it. "whole recipe" starts
from the file. MAX and MEAN are in the op's own values: grey levels, or the values of Normalize.

**Parameters.** 12,000 draws of each random parameter are compared with as many of torchvision's by the
Kolmogorov-Smirnov distance: area and ratio of a box, its position as a share of the free room, flips and other ops with
a probability (apply), angles and factors, order of ColorJitter; of RandAugment and its kin how many ops, which, and
their magnitudes. Equal distributions exceed the limit once in 100,000 times. Random values of RandomErasing are taken
from larder, and compared by their distribution elsewhere (`internal/prep` TestErasedNoise).
TEXT
verify() {
	printf '\n## %s\n\n```yaml\n%s\n```\n\n```\n' "$1" "$2"
	printf '%s\n' "$2" | "$larder" verify parity "$dataset" --python "$python" --samples 0 --recipe -
	printf '```\n'
}
verify "Training" "- RandomResizedCrop: {size: 224}
- RandomHorizontalFlip
- ToTensor
- Normalize: {mean: imagenet}"
verify "Evaluation" "- Resize: {size: 256}
- CenterCrop: {size: 224}
- ToTensor
- Normalize: {mean: imagenet}"
verify "Strong augmentation" "- RandomResizedCrop: {size: 224, interpolation: bicubic}
- RandomHorizontalFlip
- RandomVerticalFlip
- ColorJitter: {brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1}
- Normalize: {mean: imagenet}"
verify "Grey, nearest" "- Resize: {size: [160, 160], interpolation: nearest}
- RandomResizedCrop: {size: 128, interpolation: nearest}
- Grayscale: {num_output_channels: 1}
- Normalize: {mean: 0.5, std: 0.25}"
verify "Ops of training scripts" "- RandomResizedCrop: {size: 224}
- GaussianBlur: {kernel_size: 5}
- RandomRotation: {degrees: 30, interpolation: bilinear}
- RandomAffine: {degrees: 15, translate: [0.1, 0.1], scale: [0.8, 1.2], shear: 10, interpolation: bicubic}
- RandomAutocontrast
- RandomEqualize
- RandomInvert: {p: 0.2}
- RandomSolarize: {threshold: 128, p: 0.2}
- RandomPosterize: {bits: 4}
- RandomAdjustSharpness: {sharpness_factor: 2}
- Normalize: {mean: imagenet}
- RandomErasing"
verify "Learned augmentation" "- RandomResizedCrop: {size: 224}
- RandAugment
- TrivialAugmentWide
- AutoAugment
- Normalize: {mean: imagenet}
- RandomErasing: {p: 0.9, value: random}"
