package pack

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// wds is a tar file of WebDataset. Names have nine digits, so that they sort as the samples lie.
type wds struct {
	w       *tar.Writer
	bytes   int64 // of the file, with its end
	columns columns
}

const (
	tarBlock = 512
	tarEnd   = 2 * tarBlock
)

func newWDS(w io.Writer, c columns) *wds { return &wds{w: tar.NewWriter(w), bytes: tarEnd, columns: c} }

// member is one file of a sample.
type member struct {
	ext  string
	body []byte
}

// members of a sample, sorted by extension, as webdataset's own writer sorts them.
func (w *wds) members(s *sample) ([]member, error) {
	if s.values != nil {
		return w.columns.members(s.values), nil
	}
	ext := "jpg"
	if s.png {
		ext = "png"
	}
	list := []member{{ext, s.image}}
	if s.label >= 0 {
		list = append(list, member{"cls", strconv.AppendInt(nil, s.label, 10)})
	}
	if s.props != nil {
		b, err := json.Marshal(s.props)
		if err != nil {
			return nil, err
		}
		list = append(list, member{"json", b})
	}
	slices.SortFunc(list, func(a, b member) int { return strings.Compare(a.ext, b.ext) })
	return list, nil
}

func (w *wds) size(s *sample) int64 {
	list, err := w.members(s)
	if err != nil {
		return w.bytes // add says so
	}
	n := w.bytes
	for _, m := range list {
		n += tarBlock + (int64(len(m.body))+tarBlock-1)/tarBlock*tarBlock
	}
	return n
}

func (w *wds) add(s *sample) error {
	list, err := w.members(s)
	if err != nil {
		return err
	}
	w.bytes = w.size(s)
	for _, m := range list {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%09d.%s", s.at, m.ext), Size: int64(len(m.body)),
			Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := w.w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.w.Write(m.body); err != nil {
			return err
		}
	}
	return nil
}

func (w *wds) end() error { return w.w.Close() }
