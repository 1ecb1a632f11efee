package imagegen

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/jpeg"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"larder/internal/errs"
	"larder/internal/xrand"
)

// The files of a drawn photograph weigh between minFile and maxFile bytes, as photographs of a few hundred pixels do.
const (
	minFile = 30_000
	maxFile = 120_000
	minSide = 300 // pixels
	maxSide = 500
)

// MaxShrink is the largest Spec.Shrink; the smallest picture is then 37 pixels wide.
const MaxShrink = 8

// MaxClasses is how many classes a dataset has, or as many as it has samples where that is fewer.
const MaxClasses = 10

// Spec says what to draw.
type Spec struct {
	Seed    uint64
	Samples int
	Shrink  int // 1 to MaxShrink: sides are Shrink times smaller, files Shrink squared times; 0 means 1
}

// Dataset is a drawn dataset on disk. Keys are in the order of their dense sample ids: classes sorted, then names
// sorted.
type Dataset struct {
	Root    string
	Classes []string
	Keys    []string // relative to Root, slash separated
	Labels  []int64  // by sample id
	Bytes   int64    // of all files
	Min     int64    // bytes of the smallest file
	Max     int64    // bytes of the largest file
	Pixels  int64    // of all images
}

// Draw writes the JPEG files of a dataset below root, in one folder per class; the same Spec gives the same bytes. It
// uses all cores, calls tick (from any goroutine, may be nil) after every file and stops early when ctx ends.
func Draw(ctx context.Context, root string, spec Spec, tick func()) (*Dataset, error) {
	n, shrink := spec.Samples, max(1, spec.Shrink)
	classes := min(MaxClasses, n)
	d := &Dataset{Root: root, Keys: make([]string, n), Labels: make([]int64, n)}
	for c := range classes {
		name := fmt.Sprintf("class_%02d", c)
		d.Classes = append(d.Classes, name)
		if err := os.MkdirAll(filepath.Join(root, name), 0o700); err != nil {
			return nil, diskError(err, root)
		}
	}
	for i := range n {
		// Class-major, as a sorted walk finds them; the classes differ in size by at most one.
		c := i * classes / n
		d.Labels[i] = int64(c)
		d.Keys[i] = fmt.Sprintf("%s/photo_%06d.jpg", d.Classes[c], i)
	}
	sizes, pixels := make([]int64, n), make([]int64, n)
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			p := &painter{shrink: shrink}
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				data, size, err := p.photo(spec.Seed, i, int(d.Labels[i]))
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(root, filepath.FromSlash(d.Keys[i])), data, 0o600); err != nil {
					return diskError(err, root)
				}
				sizes[i], pixels[i] = int64(len(data)), int64(size.X)*int64(size.Y)
				if tick != nil {
					tick()
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	d.Min, d.Max = sizes[0], sizes[0]
	for i := range n {
		d.Bytes += sizes[i]
		d.Pixels += pixels[i]
		d.Min, d.Max = min(d.Min, sizes[i]), max(d.Max, sizes[i])
	}
	return d, nil
}

// diskError reports that a folder or file of the dataset could not be written.
func diskError(err error, where string) error {
	return errs.New(errs.ResourceExceeded, where,
		"free some space there, set TMPDIR to a folder with more, or draw fewer with --samples",
		"the demo's images could not be written").Because(err)
}

// painter draws one photograph after another and keeps its buffers between them. Not safe for concurrent use.
type painter struct {
	shrink int // Spec.Shrink, at least 1
	out    bytes.Buffer
	light  []float32
}

// photo returns a JPEG file that depends on (seed, id, class) alone. The bytes are valid until the next call.
func (p *painter) photo(seed uint64, id, class int) ([]byte, image.Point, error) {
	r := xrand.New(seed, uint64(id), 0x70686f746f) // a stream of its own for every picture, whichever goroutine draws it
	long := minSide + 40 + r.IntN(maxSide-minSide-39)
	short := max(minSide, long*(60+r.IntN(41))/100)
	w, h := long, short
	if r.IntN(3) == 0 {
		w, h = short, long
	}
	w, h = w/p.shrink, h/p.shrink
	img := image.NewYCbCr(image.Rect(0, 0, w, h), image.YCbCrSubsampleRatio420)
	p.paint(img, r, class)
	// The weight of a photograph comes from its texture, which paint varies; the quality only corrects what falls out of
	// the range. Bisection over the quality would be exact and is not needed.
	for quality := 86; ; {
		p.out.Reset()
		if err := jpeg.Encode(&p.out, img, &jpeg.Options{Quality: quality}); err != nil {
			return nil, image.Point{}, fmt.Errorf("encode drawn image %d: %w", id, err)
		}
		size := p.out.Len()
		switch {
		case size < minFile/p.shrink/p.shrink && quality < 100:
			quality = min(100, quality+4)
		case size > maxFile/p.shrink/p.shrink && quality > 10:
			quality -= 8
		default:
			return p.out.Bytes(), image.Pt(w, h), nil
		}
	}
}

// paint fills the image: a lit sky over ground, hills of soft noise, the shapes of the class, and film grain.
func (p *painter) paint(img *image.YCbCr, r *xrand.Rand, class int) {
	w, h := img.Rect.Dx(), img.Rect.Dy()
	p.backdrop(img, r)
	for range 3 + r.IntN(3) {
		p.shape(img, r, class)
	}
	texture := newNoise(r, 5+r.IntN(6))
	fine := newNoise(r, 40+r.IntN(40))
	depth, grain := float32(r.Uniform(10, 34)), int(r.Uniform(8, 26))
	for y := range h {
		row := img.Y[y*img.YStride : y*img.YStride+w]
		texture.row(float32(y)/float32(h), w, &p.light)
		soft := p.light
		for x := range row {
			row[x] = clamp(float32(row[x]) + depth*soft[x])
		}
		fine.row(float32(y)/float32(h), w, &p.light)
		var bits uint64
		for x := range row {
			if x&7 == 0 {
				bits = r.Uint64()
			}
			g := (int(int8(bits)) * grain) >> 7
			bits >>= 8
			row[x] = clamp(float32(row[x]) + depth*.4*p.light[x] + float32(g))
		}
	}
}

// backdrop paints a gradient from the colour of a sky to that of a ground, lit from one side.
func (p *painter) backdrop(img *image.YCbCr, r *xrand.Rand) {
	w, h := img.Rect.Dx(), img.Rect.Dy()
	top, bottom := anyColour(r, 130, 225), anyColour(r, 40, 150)
	horizon, slant := float32(r.Uniform(.3, .7)), float32(r.Uniform(-40, 40))
	for y := range h {
		t := smooth((float32(y)/float32(h) - horizon + .18) / .36)
		base := mix(top, bottom, t)
		row := img.Y[y*img.YStride : y*img.YStride+w]
		light, step := base.y-slant/2, slant/float32(w)
		for x := range row {
			row[x] = clamp(light + step*float32(x))
		}
		if y&1 == 0 {
			c := (y / 2) * img.CStride
			cb, cr := clamp(base.cb), clamp(base.cr)
			for x := range img.CStride {
				img.Cb[c+x], img.Cr[c+x] = cb, cr
			}
		}
	}
}

// shape paints one soft-edged, shaded form. The class decides which: its number gives the sides of the figure and its
// hue, so that a network could learn to distinguish the classes.
func (p *painter) shape(img *image.YCbCr, r *xrand.Rand, class int) {
	w, h := img.Rect.Dx(), img.Rect.Dy()
	cx, cy := r.Uniform(.1, .9)*float64(w), r.Uniform(.15, .95)*float64(h)
	size := r.Uniform(.1, .34) * float64(min(w, h))
	turn, squash := r.Uniform(0, 2*math.Pi), r.Uniform(.6, 1)
	hue := 2*math.Pi*float64(class)/MaxClasses + r.Uniform(-.25, .25)
	col := colour{
		y:  float32(r.Uniform(60, 210)),
		cb: float32(128 + 62*math.Cos(hue)),
		cr: float32(128 + 62*math.Sin(hue)),
	}
	sides := class%5 + 2 // 2 = an ellipse, else a polygon of 3 to 6 sides
	sin, cos := math.Sincos(turn)
	x0, x1 := max(0, int(cx-size-2)), min(w, int(cx+size+3))
	y0, y1 := max(0, int(cy-size-2)), min(h, int(cy+size+3))
	// The polygon is the cut of half planes with these normals.
	normals := make([][2]float64, 0, 6)
	for k := range sides {
		s, c := math.Sincos(2 * math.Pi * float64(k) / float64(sides))
		normals = append(normals, [2]float64{c, s})
	}
	for y := y0; y < y1; y++ {
		for x := x0; x < x1; x++ {
			u := (float64(x)-cx)*cos + (float64(y)-cy)*sin
			v := (-(float64(x)-cx)*sin + (float64(y)-cy)*cos) / squash
			var edge float64 // distance from the edge, inwards, in pixels
			if sides == 2 {
				edge = size - math.Hypot(u, v)
			} else {
				far := math.Inf(-1)
				for _, n := range normals {
					far = max(far, u*n[0]+v*n[1])
				}
				edge = size*.62 - far
			}
			if edge <= -1 {
				continue
			}
			a := float32(min(1, (edge+1)/3))
			light := col.y + float32(40*(v-u)/size)
			i := y*img.YStride + x
			img.Y[i] = clamp(float32(img.Y[i])*(1-a) + light*a)
			if x&1 == 0 && y&1 == 0 {
				c := (y/2)*img.CStride + x/2
				img.Cb[c] = clamp(float32(img.Cb[c])*(1-a) + col.cb*a)
				img.Cr[c] = clamp(float32(img.Cr[c])*(1-a) + col.cr*a)
			}
		}
	}
}

type colour struct{ y, cb, cr float32 }

func anyColour(r *xrand.Rand, dark, bright float64) colour {
	return colour{
		y:  float32(r.Uniform(dark, bright)),
		cb: float32(r.Uniform(100, 156)),
		cr: float32(r.Uniform(100, 156)),
	}
}

func mix(a, b colour, t float32) colour {
	return colour{a.y + (b.y-a.y)*t, a.cb + (b.cb-a.cb)*t, a.cr + (b.cr-a.cr)*t}
}

func smooth(t float32) float32 {
	t = max(0, min(1, t))
	return t * t * (3 - 2*t)
}

func clamp(v float32) byte { return byte(max(0, min(255, v))) }

// noise is value noise: random numbers in [-1, 1] on a square grid, with straight lines between them.
type noise struct {
	cells int
	grid  []float32 // (cells+1) x (cells+1)
}

func newNoise(r *xrand.Rand, cells int) *noise {
	n := &noise{cells: cells, grid: make([]float32, (cells+1)*(cells+1))}
	for i := range n.grid {
		n.grid[i] = float32(r.Uniform(-1, 1))
	}
	return n
}

// row writes the noise along one horizontal line, v in [0, 1), into *dst, w values.
func (n *noise) row(v float32, w int, dst *[]float32) {
	if cap(*dst) < w {
		*dst = make([]float32, w)
	}
	*dst = (*dst)[:w]
	f := v * float32(n.cells)
	top := int(f)
	ty := smooth(f - float32(top))
	a, b := n.grid[top*(n.cells+1):], n.grid[(top+1)*(n.cells+1):]
	x, out := 0, *dst
	for c := range n.cells {
		l := a[c] + (b[c]-a[c])*ty
		rise := (a[c+1] + (b[c+1]-a[c+1])*ty - l) / float32(w) * float32(n.cells)
		from := float32(c) * float32(w) / float32(n.cells)
		for end := (c + 1) * w / n.cells; x < end; x++ {
			out[x] = l + rise*(float32(x)-from)
		}
	}
}
