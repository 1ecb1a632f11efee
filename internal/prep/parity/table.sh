#!/bin/sh
# Writes docs/parity.md to standard output: table.sh LARDER DATASET PYTHON, e.g.
#   internal/prep/parity/table.sh bin/larder imagefolder:/data/imagenet-700 /usr/bin/python3 > docs/parity.md
set -eu
larder=$1 dataset=$2 python=$3
cat <<'TEXT'
# Parity with torchvision

On the fast build (libjpeg-turbo; `larder version` says that it is bit-equal) a recipe gives, to the last bit, what Pillow and torchvision give on PIL images with the same
random parameters. This page is made by `internal/prep/parity/table.sh`, which runs `larder verify parity` on 700 ImageNet photographs; run the command on your
own data and your own torchvision:

    larder verify parity imagefolder:/data/train --recipe job.yaml

It exits with 0 if no byte differs, both sides take the same files and every random parameter has torchvision's distribution, with 7 otherwise.

How to read it: each op is given what larder had before it, so a difference shows at the op that makes it; "whole recipe" starts from the file. MAX and MEAN are in the
op's own values: grey levels, or what Normalize gives. Below the ops, 12,000 draws of each random parameter are compared with as many of torchvision's (area and ratio of
the crop; its position as a share of the room that is left; flips; factors and order of ColorJitter) by the Kolmogorov-Smirnov distance; the limit is what equal
distributions exceed once in 100,000 times.

What is not equal: the portable build decodes JPEG in Go and differs there, by a fraction of a grey level on average in photographs (the ops are equal there too); images are never
rotated by EXIF, as in torchvision's ImageFolder; `antialias=False` and image ops on float tensors are refused rather than done otherwise; animated
WebP is refused too (one image at a time, as bad samples); ToDtype scales and Grayscale
gives three channels unless told otherwise. A damaged JPEG that libjpeg only warns about decodes as far as it goes, as in Pillow (`prep.on_corrupt: error` or `skip` refuses it); a truncated one is refused, as there.

## Formats
What torchvision's ImageFolder lists is decoded by content, whatever the suffix says: JPEG, PNG, GIF, WebP, BMP, TIFF and netpbm (PPM, PGM, PBM; plain and raw, any largest value).

Of TIFF the first page is read: grey of 1, 8 and 16 bits, palettes of 1 and 8 bits, RGB and RGBA of 8 and 16 bits; not compressed, or by LZW, Deflate, PackBits or as a fax (G3, G4); in strips or tiles, turned as the orientation says. As in Pillow 9.4,
16-bit grey is clipped at 255, in PNG, TIFF and PGM alike; scale such images before. What Pillow reads and larder refuses, with the kind in the message: JPEG, Zstandard, WebP and LZMA inside TIFF; CMYK, YCbCr and CIELab; 2, 4, 12 and 32 bits; signed and
floating point values; channels stored apart; more channels than RGBA; reversed bits; BigTIFF. `larder dataset inspect` shows the kind of single samples.
*Tests:* `internal/prep` TestGoldenDecode (51 drawn TIFF and netpbm files of all these kinds, every value compared with Pillow's), `internal/raster` TestTIFFKinds.
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
