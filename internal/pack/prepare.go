package pack

import (
	"context"
	"fmt"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/source"
	"larder/internal/store"
)

// maker reads samples and makes the images that are packed. It belongs to one goroutine.
type maker struct {
	cfg  *Config
	cat  *source.Catalog
	data *source.Dataset
	w    *prep.Worker
	pix  []byte
}

func newMaker(cfg *Config, cat *source.Catalog, data *source.Dataset) *maker {
	return &maker{cfg: cfg, cat: cat, data: data, w: prep.NewWorker(prep.Limits{})}
}

// recovered makes a panic the error of one sample, as in the daemon: it is a bug.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = errs.New(errs.SampleBad, "", "please report this", "larder panicked while preparing it: %v", p)
	}
}

// make returns sample id as it goes into the pack, at place at of its order.
func (m *maker) make(ctx context.Context, at int, id ident.SampleID) (s *sample, err error) {
	defer recovered(&err)
	enc, err := m.cat.Read(ctx, m.data.Object(id), nil)
	if err != nil {
		return nil, err
	}
	if m.cfg.columns != nil {
		return m.record(at, enc)
	}
	pic, err := m.picture(enc)
	if err != nil {
		return nil, err
	}
	s = &sample{at: at, label: m.data.Label(id), image: pic.file, png: pic.png}
	if pic.encoded {
		s.encoded = 1
	}
	if m.cfg.Properties {
		s.props = &properties{Key: m.data.Key(id), Class: m.data.Class(id), Width: pic.w, Height: pic.h}
	}
	return s, nil
}

// picture is an image as it is packed.
type picture struct {
	file    []byte
	png     bool // else a JPEG file
	encoded bool // it is not the source's bytes
	w, h    int  // in the source
}

// picture makes an image file what the flags ask for.
func (m *maker) picture(enc []byte) (picture, error) {
	format, w, h, err := m.w.Header(enc)
	if err != nil {
		return picture{}, err
	}
	out := picture{file: enc, png: format == "png", w: w, h: h}
	nw, nh := m.cfg.fit(w, h)
	resized := nw != w || nh != h
	jpeg := format == "jpeg" || m.cfg.Quality > 0
	switch {
	case resized, format != "jpeg" && format != "png", jpeg && format == "png",
		m.cfg.Quality > 0 && m.cfg.MaxSize == 0:
	default:
		return out, nil // the source's bytes
	}
	img, err := m.decode(enc, nw, nh, resized)
	if err != nil {
		return picture{}, err
	}
	out.png, out.encoded = !jpeg, true
	if jpeg {
		out.file, err = prep.EncodeJPEG(img, m.cfg.quality())
	} else {
		out.file, err = prep.EncodePNG(img)
	}
	return out, err
}

func (c *Config) quality() int {
	if c.Quality > 0 {
		return c.Quality
	}
	return DefaultQuality
}

// fit is the size that an image is resized to: the longer side becomes MaxSize, rounded as torchvision rounds.
func (c *Config) fit(w, h int) (nw, nh int) {
	long := max(w, h)
	if c.MaxSize == 0 || long <= c.MaxSize {
		return w, h
	}
	return max(1, w*c.MaxSize/long), max(1, h*c.MaxSize/long)
}

// decode gives the pixels that larder delivers, resized if asked for.
func (m *maker) decode(enc []byte, w, h int, resized bool) (prep.Image, error) {
	var ops []prep.OpSpec
	if resized {
		ops = []prep.OpSpec{{Name: "Resize", Args: map[string]any{"size": []int{h, w}, "interpolation": "bicubic"}}}
	}
	recipe, err := prep.ParseRecipe(ops)
	if err != nil {
		return prep.Image{}, fmt.Errorf("resize to %d x %d: %w", w, h, err)
	}
	return m.w.Decode(recipe, enc, func(n int) ([]byte, error) {
		if cap(m.pix) < n {
			m.pix = make([]byte, n)
		}
		return m.pix[:n], nil
	})
}

// ofSample reports whether an error of a read is of one sample alone. What a store does not give may be there the next
// minute, and a store or a disk that is down fails for every sample.
func (p *packer) ofSample(ctx context.Context, id ident.SampleID, err error) bool {
	if store.IsRemote(p.data.Root()) {
		return errs.Is(err, errs.SampleBad)
	}
	return (errs.Is(err, errs.SampleBad) || errs.Is(err, errs.DatasetUnread) || errs.Is(err, errs.ResourceExceeded)) &&
		!p.cat.Away(ctx, p.data.Object(id), err)
}
