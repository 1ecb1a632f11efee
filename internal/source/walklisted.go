package source

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/record"
	"larder/internal/source/packed"
)

// A root may be some lists of image files (packed.Listing). Then rows of dirs are the folders of the images, samples
// are files as in a folder of images, and lists are the rows of the lists themselves. Ids follow the lists.

// listed reports whether the samples are files that lists name.
func (s *snapshot) listed() bool { return s.lists != nil }

// listedImage is one image of a list.
type listedImage struct {
	sample *packed.Sample
	list   string // below the root, as the list itself
	path   string // below the root
	meta   fileMeta
	err    error
}

// walkListed reads the lists, and looks at every image that they name.
func (rs *rootState) walkListed(
	ctx context.Context, f packed.Listing, w *packedWalk, was merger,
) (*snapshot, []fileMeta, error) {
	how := &scan{a: w.a, format: rs.format, schema: &record.Schema{}, lists: true}
	if err := rs.scanFiles(ctx, how, w.rows); err != nil {
		return nil, nil, err
	}
	images, err := rs.images(w)
	if err != nil {
		return nil, nil, err
	}
	if err := rs.statImages(ctx, images, w.at); err != nil {
		return nil, nil, err
	}
	if err := refuseListed(rs, images, w.at); err != nil {
		return nil, nil, err
	}
	old := was.old
	if old == nil {
		old = &snapshot{}
	}
	m := &merger{old: old, metaOf: was.metaOf, found: make([]bool, len(old.dirOf)), meta: make([]fileMeta, len(old.dirOf))}
	m.s = &snapshot{root: rs.root, uri: rs.uri, dirs: slices.Clone(old.dirs), dirOf: slices.Clone(old.dirOf),
		nameEnd: slices.Clone(old.nameEnd), labels: slices.Clone(old.labels), report: Report{Kinds: map[string]int{}},
		lists: []dirRow{}}
	if m.s.labels == nil {
		m.s.labels = []int32{}
	}
	m.names.WriteString(old.names)
	for i := range w.rows {
		r := &w.rows[i]
		m.s.lists = append(m.s.lists, dirRow{rel: r.rel, dev: r.st.dev, ino: r.st.ino, size: r.st.size, mtime: r.st.mtime,
			live: true})
	}
	m.report(withLeftOut(packed.Found{}, was.left, true))
	if err := m.classes(rs, w.a, w.rows); err != nil {
		return nil, nil, err
	}
	if err := m.listed(images); err != nil {
		return nil, nil, err
	}
	return m.finish(rs)
}

// images are the images of all lists, in order.
func (rs *rootState) images(w *packedWalk) ([]listedImage, error) {
	n := 0
	for i := range w.rows {
		n += len(w.rows[i].samples)
	}
	out := make([]listedImage, 0, n)
	seen := make(map[string]int, n)
	root := rs.inPlace("")
	for i := range w.rows {
		r := &w.rows[i]
		bad := func(s *packed.Sample, format string, args ...any) error {
			return errs.New(errs.DatasetUnread, printable(join(rs.root, r.rel)), "correct the list", "index %s: %s, line %d: %s",
				printable(rs.uri), printable(join(rs.root, r.rel)), s.Off+1, fmt.Sprintf(format, args...))
		}
		for k := range r.samples {
			s := &r.samples[k]
			below, err := packed.ImagePath(filepath.Clean(root), path.Dir(r.rel), s.Key)
			if err != nil {
				return nil, bad(s, "%v", err)
			}
			if first, again := seen[below]; again {
				return nil, bad(s, "it names %q, as line %d of %s does; each image may be listed once", printable(below),
					out[first].sample.Off+1, printable(out[first].list))
			}
			seen[below] = len(out)
			out = append(out, listedImage{sample: s, list: r.rel, path: below})
		}
	}
	return out, nil
}

// statImages looks at every image, and reports the first of those that are missing.
func (rs *rootState) statImages(ctx context.Context, images []listedImage, at *storePlace) error {
	if at != nil {
		paths := make([]string, len(images))
		for i := range images {
			paths[i] = rs.inPlace(images[i].path)
		}
		at.learnAll(paths)
	}
	var mu sync.Mutex
	missing := 0
	chunks := (len(images) + statChunk - 1) / statChunk
	err := inParallel(ctx, rs.scanners(), chunks, func(i int) error {
		some := images[i*statChunk : min(len(images), (i+1)*statChunk)]
		for k := range some {
			x := &some[k]
			x.meta, x.err = rs.statFile(x.path, at)
			if e := rs.storeError("index "+printable(rs.uri), x.err); e != nil {
				return e
			}
			if x.err != nil {
				mu.Lock()
				missing++
				mu.Unlock()
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		progressOf(ctx).add(Indexed{Samples: int64(len(some))})
		return nil
	})
	if _, ok := errors.AsType[*errs.Error](err); ok {
		return err
	}
	if err != nil {
		return fmt.Errorf("look at the images of %s: %w", printable(rs.uri), err)
	}
	if missing == 0 {
		return nil
	}
	var lines []string
	for i := range images {
		if x := &images[i]; x.err != nil && len(lines) < maxProblems {
			lines = append(lines, fmt.Sprintf("%s, line %d: %s: %v", printable(x.list), x.sample.Off+1,
				printable(x.path), x.err))
		}
	}
	more := ""
	if missing > len(lines) {
		more = fmt.Sprintf("; and %d more", missing-len(lines))
	}
	return errs.New(errs.DatasetUnread, printable(rs.uri),
		"correct the list, whose paths are relative to its own folder; the daemon runs as "+whoami(), "index %s: %s%s",
		printable(rs.uri), strings.Join(lines, "; "), more)
}

// listed adds the images, in order. One that was there keeps its id while its label stays.
func (m *merger) listed(images []listedImage) error {
	known := make(map[string]ident.SampleID, len(m.old.dirOf))
	for id := range m.old.dirOf { // a later one of a path is that of the newest label
		known[m.old.fileKey(ident.SampleID(id))] = ident.SampleID(id)
	}
	row := make(map[string]int, len(m.s.dirs))
	for i := range m.s.dirs {
		m.s.dirs[i].live = false
		row[m.s.dirs[i].rel] = i
	}
	for i := range images {
		x := &images[i]
		dir, name := "", x.path
		if k := strings.LastIndexByte(x.path, '/'); k >= 0 {
			dir, name = x.path[:k], x.path[k+1:]
		}
		k, ok := row[dir]
		if !ok {
			k = len(m.s.dirs)
			m.s.dirs = append(m.s.dirs, dirRow{rel: dir})
			row[dir] = k
		}
		m.s.dirs[k].live = true
		label := m.label(x.sample)
		if id, ok := known[x.path]; ok && m.s.labels[id] == label {
			m.found[id], m.meta[id] = true, x.meta
			continue
		}
		if err := m.add(uint32(k), name, label, x.meta); err != nil {
			return err
		}
	}
	return nil
}
