package packed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
)

// idx is the format of MNIST, FashionMNIST, KMNIST and their like (http://yann.lecun.com/exdb/mnist/): one file of
// square grey images, and one of labels beside it.
type idx struct{}

const pgmHead = "P5\n%5d %5d\n255\n"

var pgmBytes = len(fmt.Sprintf(pgmHead, 0, 0))

func (idx) Scheme() string                  { return "idx" }
func (idx) Names(Address) ([]string, error) { return nil, nil }
func (idx) Overhead() int                   { return pgmBytes }
func labelsOf(images string) string {
	return strings.TrimSuffix(images, "images-idx3-ubyte") + "labels-idx1-ubyte"
}

// Files finds train-images-idx3-ubyte (or t10k-…) in the folder, or in the folder raw that torchvision makes.
func (idx) Files(a Address) (files, beside []string, err error) {
	name := "train-images-idx3-ubyte"
	if a.Args["split"] == "test" {
		name = "t10k-images-idx3-ubyte"
	}
	for _, dir := range []string{a.Path, filepath.Join(a.Path, "raw")} {
		path := filepath.Join(dir, name)
		ok, err := a.exists(path)
		if err != nil {
			return nil, nil, err
		}
		if ok {
			return []string{path}, []string{labelsOf(path)}, nil
		}
		if ok, err := a.exists(path + ".gz"); ok && err == nil {
			return nil, nil, fmt.Errorf("%q is compressed; unpack it and %s with gunzip", path+".gz",
				filepath.Base(labelsOf(path))+".gz")
		}
	}
	return nil, nil, idxLacks(a, name)
}

// idxLacks is the error of a folder without the images.
func idxLacks(a Address, name string) error {
	err := a.unlike(a.Path, holdings{what: "idx dataset", names: []string{name, labelsOf(name)},
		or: " (or the folder raw with them)"})
	u, ok := errors.AsType[*Unlike](err)
	if !ok || a.At != nil {
		return err
	}
	there, _ := a.contents(a.Path) // torchvision makes DATASET/raw in its root
	for _, dir := range there {
		if is, err := a.exists(filepath.Join(a.Path, dir, "raw", name)); is && err == nil {
			u.Hint = "did you mean idx:" + filepath.Join(a.Path, dir) + "?"
			break
		}
	}
	return u
}

// header reads the magic number and the sizes of an idx file of bytes.
func header(r interface {
	ReadAt([]byte, int64) (int, error)
}, size int64, dims int) ([]int64, int64, error) {
	b := make([]byte, 4+4*dims)
	if size < int64(len(b)) {
		return nil, 0, fmt.Errorf("it has %d bytes, fewer than its header", size)
	}
	if _, err := r.ReadAt(b, 0); err != nil {
		return nil, 0, err
	}
	if b[0] != 0 || b[1] != 0 || b[2] != 8 || int(b[3]) != dims {
		return nil, 0, fmt.Errorf("it begins with %x, and an idx file of %d dimensions of bytes with 0000080%d", b[:4], dims,
			dims)
	}
	out := make([]int64, dims)
	total := int64(1)
	for i := range out {
		out[i] = int64(binary.BigEndian.Uint32(b[4+4*i:]))
		if out[i] > 0 && total > math.MaxInt64/out[i] {
			return nil, 0, fmt.Errorf("its sizes are absurd: %d", out[:i+1])
		}
		total *= out[i]
	}
	if size != int64(len(b))+total {
		return nil, 0, fmt.Errorf("it has %d bytes, and its sizes %d need %d", size, out, int64(len(b))+total)
	}
	return out, int64(len(b)), nil
}

func (idx) Scan(ctx context.Context, _ Address, f File, emit func(Sample) error) (Found, error) {
	dims, at, err := header(f, f.Size, 3)
	if err != nil {
		return Found{}, err
	}
	n, h, w := dims[0], dims[1], dims[2]
	if h != w || h == 0 || h > 99999 {
		return Found{}, fmt.Errorf("its images have %d x %d pixels; larder reads square ones", h, w)
	}
	labels, err := f.Beside(labelsOf(f.Path))
	if err != nil {
		return Found{}, err
	}
	defer labels.Close()
	ldims, lat, err := header(labels, labels.Len(), 1)
	if err != nil {
		return Found{}, fmt.Errorf("%s: %w", filepath.Base(labelsOf(f.Path)), err)
	}
	if ldims[0] != n {
		return Found{}, fmt.Errorf("it has %d images, and %s has %d labels", n, filepath.Base(labelsOf(f.Path)), ldims[0])
	}
	const block = 64 << 10 // labels that are read at once
	chunk := make([]byte, min(n, block))
	for i := range n {
		k := i % block
		if k == 0 {
			if ctx.Err() != nil {
				return Found{}, ctx.Err()
			}
			if _, err := labels.ReadAt(chunk[:min(n-i, block)], lat+i); err != nil {
				return Found{}, fmt.Errorf("%s: read at byte %d: %w", filepath.Base(labelsOf(f.Path)), lat+i, err)
			}
		}
		if err := emit(Sample{Key: rowKey(i), Off: at + i*h*w, Size: h * w, Label: int64(chunk[k])}); err != nil {
			return Found{}, err
		}
	}
	return Found{}, nil
}

// Image puts the header of a PGM before the pixels of a square image.
func (idx) Image(raw []byte) ([]byte, error) {
	n := len(raw) - pgmBytes
	side := int(math.Sqrt(float64(max(n, 0))))
	if n <= 0 || side*side != n {
		return nil, fmt.Errorf("an image of %d bytes is not square", n)
	}
	copy(raw, fmt.Sprintf(pgmHead, side, side))
	return raw, nil
}
