package packed

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strconv"

	"larder/internal/record"
)

// cifar is the binary version of CIFAR-10 and CIFAR-100 (https://www.cs.toronto.edu/~kriz/cifar.html): rows of one or
// two labels and 32 x 32 pixels, one plane a colour.
type cifar struct{ classes int }

const (
	side    = 32
	plane   = side * side
	pixels  = 3 * plane
	ppmHead = "P6\n32 32\n255\n"

	cifarCoarse   = "coarse" // the property
	coarseClasses = 20
)

func (c cifar) Scheme() string { return "cifar" + strconv.Itoa(c.classes) }

// folder is where the files lie: the path itself, or the folder that the archive makes in it.
func (c cifar) folder(a Address) string {
	inner := filepath.Join(a.Path, c.archived())
	if a.isDir(inner) {
		return inner
	}
	return a.Path
}

func (c cifar) Files(a Address) (files, beside []string, err error) {
	dir := c.folder(a)
	test := a.Args["split"] == "test"
	var names []string
	switch {
	case c.classes == 100 && test:
		names = []string{"test.bin"}
	case c.classes == 100:
		names = []string{"train.bin"}
	case test:
		names = []string{"test_batch.bin"}
	default:
		names = []string{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"}
	}
	for _, n := range names {
		files = append(files, filepath.Join(dir, n))
	}
	for _, f := range files {
		ok, err := a.exists(f)
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			return nil, nil, c.lacks(a, dir, names)
		}
		if a.At != nil { // each file is a request, and is looked at later
			break
		}
	}
	return files, nil, nil
}

// lacks is the error of a folder without all of some files.
func (c cifar) lacks(a Address, dir string, names []string) error {
	n, suffix := strconv.Itoa(c.classes), map[int]string{10: "-batches-py", 100: "-python"}[c.classes]
	python := filepath.Join(a.Path, "cifar-"+n+suffix)
	if a.isDir(python) {
		return fmt.Errorf("%q is the Python version, pickles, which larder never reads: "+
			"download the binary version (cifar-%d-binary.tar.gz)", python, c.classes)
	}
	return a.unlike(dir, holdings{what: "CIFAR-" + n, names: names, or: " (or " + c.archived() + " with them)"})
}

// archived is the folder that the archive makes.
func (c cifar) archived() string {
	return "cifar-" + strconv.Itoa(c.classes) + map[int]string{10: "-batches-bin", 100: "-binary"}[c.classes]
}

// Names are the lines of the list of names that lies beside the files.
func (c cifar) Names(a Address) ([]string, error) {
	name := map[int]string{10: "batches.meta.txt", 100: "fine_label_names.txt"}[c.classes]
	b, err := a.readSmall(filepath.Join(c.folder(a), name), maxHeader)
	if err != nil {
		return nil, err
	}
	var out []string
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		if s := string(bytes.TrimSpace(lines.Bytes())); s != "" {
			out = append(out, s)
		}
	}
	if len(out) != c.classes {
		return nil, fmt.Errorf("%s has %d names, not %d", name, len(out), c.classes)
	}
	return out, nil
}

func (c cifar) Scan(ctx context.Context, _ Address, f File, emit func(Sample) error) (Found, error) {
	labels := map[int]int64{10: 1, 100: 2}[c.classes]
	row := labels + pixels
	if f.Size == 0 || f.Size%row != 0 {
		return Found{}, fmt.Errorf("it has %d bytes, which are no whole rows of %d bytes", f.Size, row)
	}
	buf := make([]byte, labels)
	for i := range f.Size / row {
		if i&1023 == 1023 && ctx.Err() != nil {
			return Found{}, ctx.Err()
		}
		if _, err := f.ReadAt(buf, i*row); err != nil {
			return Found{}, fmt.Errorf("read at byte %d: %w", i*row, err)
		}
		label := int64(buf[labels-1])
		if label >= int64(c.classes) {
			return Found{}, fmt.Errorf("row %d, at byte %d, has label %d of %d", i, i*row, label, c.classes)
		}
		if err := emit(Sample{Key: rowKey(i), Off: i*row + labels, Size: pixels, Label: label}); err != nil {
			return Found{}, err
		}
	}
	return Found{}, nil
}

// rowKey names a row so that keys sort as rows do.
func rowKey(i int64) string { return fmt.Sprintf("%08d", i) }

func (cifar) Overhead() int { return len(ppmHead) }

// Image makes a PPM of the three planes.
func (cifar) Image(raw []byte) ([]byte, error) {
	if len(raw) != len(ppmHead)+pixels {
		return nil, fmt.Errorf("an image of %d bytes, not %d", len(raw)-len(ppmHead), pixels)
	}
	var planes [pixels]byte
	copy(planes[:], raw[len(ppmHead):])
	copy(raw, ppmHead)
	out := raw[len(ppmHead):]
	for i := range plane {
		out[3*i], out[3*i+1], out[3*i+2] = planes[i], planes[plane+i], planes[2*plane+i]
	}
	return raw, nil
}

// Properties implements OwnProperties: rows of CIFAR-100 begin with a coarse label, which is not the label.
func (c cifar) Properties() Records {
	if c.classes == 100 {
		return coarse{c}
	}
	return nil
}

// coarse reads the coarse labels of CIFAR-100 as records of one field.
type coarse struct{ cifar }

var _ Named = coarse{}

func (coarse) PropertyNames(context.Context, Address, []string, func(string) (Other, error)) ([]string, error) {
	return []string{cifarCoarse}, nil
}

func (coarse) Schema(context.Context, Address, []string, func(string) (Other, error)) (record.Schema, error) {
	return record.Schema{Fields: []record.Field{scalarField(cifarCoarse, record.Int64)}}, nil
}

func (coarse) Open(_ context.Context, _ Address, f File) (Rows, error) {
	if f.Schema == nil {
		return nil, errNoSchema
	}
	return &coarseRows{f}, nil
}

type coarseRows struct{ f File }

func (*coarseRows) Close() error { return nil }

// Record reads the first of the two labels that lie before the pixels.
func (r *coarseRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	var b [1]byte
	at := s.Off - 2
	if at < 0 {
		return nil, fmt.Errorf("its labels should lie at byte %d", at)
	}
	if err := readFull(within(ctx, r.f), b[:], at); err != nil {
		return nil, fmt.Errorf("read its coarse label at byte %d: %w", at, err)
	}
	if b[0] >= coarseClasses {
		return nil, fmt.Errorf("at byte %d it has the coarse label %d of %d", at, b[0], coarseClasses)
	}
	return record.Append(dst, r.f.Schema, []record.Content{{Data: le64(int64(b[0]))}})
}
