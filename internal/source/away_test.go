package source

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/ident"
)

// What is wrong with one file is not what is wrong with its place.
func TestAPlaceThatFails(t *testing.T) {
	parent := t.TempDir()
	root := parent + "/set"
	for i := range 12 {
		write(t, root, fmt.Sprintf("a/%02d.jpg", i), fmt.Sprintf("content %d", i))
	}
	c, _ := open(t, "")
	d := add(t, c, "", root)
	away := func(i int) bool {
		t.Helper()
		o := d.Object(sampleID(i))
		_, err := c.Read(t.Context(), o, nil)
		if err == nil {
			t.Fatalf("sample %d can be read", i)
		}
		return c.Away(t.Context(), o, err)
	}
	must(t, os.Remove(root+"/a/03.jpg"))
	write(t, root, "a/04.jpg", "another content")
	if away(3) || away(4) {
		t.Error("a file that was removed or changed counts as an outage")
	}
	must(t, os.Rename(root, root+".gone"))
	if !away(3) || !away(5) {
		t.Error("a root that is gone is no outage")
	}
	must(t, os.Mkdir(root, 0o700)) // where a disk was mounted
	if !away(5) {
		t.Error("an empty root is no outage")
	}
	must(t, os.Remove(root))
	must(t, os.Rename(root+".gone", root))
	plain := c.sys.open
	for _, x := range []struct {
		err  error
		all  bool
		want bool
	}{{unix.EIO, true, true}, {unix.EIO, false, false}, {unix.ESTALE, true, true}, {unix.EACCES, true, true},
		{unix.EACCES, false, false}, {unix.EMFILE, false, true}, {unix.ENOMEM, false, true}} {
		c.sys.open = func(path string) (int, error) {
			if x.all || path == d.Path(5) {
				return -1, x.err
			}
			return plain(path)
		}
		if away(5) != x.want {
			t.Errorf("%v, of all files: %v: %v", x.err, x.all, !x.want)
		}
	}
	c.sys.open = plain
	if c.Away(t.Context(), d.Object(5), errs.New(errs.SampleBad, "x", "", "it is no image")) {
		t.Error("a bad sample counts as an outage")
	}
}

// Of a dataset of one sample, its folder decides.
func TestAPlaceOfOneSampleThatFails(t *testing.T) {
	root := t.TempDir() + "/one"
	write(t, root, "a/0.jpg", "content")
	c, _ := open(t, "")
	d := add(t, c, "", root)
	must(t, os.Remove(root+"/a/0.jpg"))
	_, err := c.Read(t.Context(), d.Object(0), nil)
	if c.Away(t.Context(), d.Object(0), err) {
		t.Error("its file is gone, and its folder is there")
	}
	must(t, os.RemoveAll(root))
	if !c.Away(t.Context(), d.Object(0), err) {
		t.Error("its folder is gone")
	}
}

// A bucket that answers nothing, or forbids everything, is away; one whose object was deleted is not.
func TestABucketThatFails(t *testing.T) {
	b := newBucket(t)
	for i := range 8 {
		b.put(t, fmt.Sprintf("set/a/%d.jpg", i), fmt.Sprintf("content %d", i))
	}
	c := b.open(t, "")
	d, err := c.Add(t.Context(), "", "imagefolder:s3://data/set")
	must(t, err)
	read := func(i int) error {
		_, err := c.Read(t.Context(), d.Object(sampleID(i)), nil)
		return err
	}
	must(t, read(2))
	_, err = b.mem.DeleteObject("data", "set/a/2.jpg")
	must(t, err)
	if c.Away(t.Context(), d.Object(2), read(2)) {
		t.Error("an object that was deleted counts as an outage")
	}
	for _, status := range []int{http.StatusForbidden, http.StatusServiceUnavailable, http.StatusNotFound} {
		b.status.Store(int64(status))
		if err := read(5); err == nil || !c.Away(t.Context(), d.Object(5), err) {
			t.Errorf("status %d: %v is no outage", status, err)
		}
	}
	b.status.Store(0)
	must(t, read(5))
}

// disks puts the samples of a dataset on several devices, as far as the catalogue knows.
func disks(c *Catalog, d *Dataset, of func(s ident.SampleID) uint32) {
	for s := range ident.SampleID(d.Len()) {
		c.objects.rows[d.Object(s)].dev = of(s)
	}
	for len(c.objects.devs) < 8 {
		c.objects.devs = append(c.objects.devs, 1<<40+uint64(len(c.objects.devs)))
	}
}

// One of several disks that is gone is an outage of that disk, however few of the samples it has; the others answer.
func TestOneOfSeveralDisks(t *testing.T) {
	root := t.TempDir() + "/set"
	for i := range 400 {
		write(t, root, fmt.Sprintf("%c/%03d.jpg", 'a'+rune(i/100), i), fmt.Sprintf("content %d", i))
	}
	write(t, root, "e/400.jpg", "alone on its disk")
	c, _ := open(t, "")
	d := add(t, c, "", root)
	disks(c, d, func(s ident.SampleID) uint32 { return min(uint32(s)/100, 5) })
	plain := c.sys
	away := func(s int) bool {
		t.Helper()
		_, err := c.Read(t.Context(), d.Object(sampleID(s)), nil)
		if err == nil {
			t.Fatalf("sample %d can be read", s)
		}
		return c.Away(t.Context(), d.Object(sampleID(s)), err)
	}
	failing := func(bad func(path string) bool, with error) func(string) (int, error) {
		return func(path string) (int, error) {
			if bad(path) {
				return -1, with
			}
			return plain.open(path)
		}
	}
	second := func(path string) bool { return strings.HasPrefix(path, root+"/b/") }
	for _, errno := range []unix.Errno{unix.EIO, unix.ESTALE, unix.ENOENT, unix.EACCES, unix.ENODEV, unix.ENOTCONN,
		unix.EHOSTDOWN, unix.ENXIO} {
		c.sys.open = failing(second, errno)
		for s := 100; s < 200; s += 33 {
			if !away(s) {
				t.Errorf("%v of every file of a disk is no outage of it", errno)
			}
		}
		if _, err := c.Read(t.Context(), d.Object(0), nil); err != nil {
			t.Errorf("another disk: %v", err)
		}
	}
	one := func(path string) bool { return path == d.Path(150) || path == d.Path(20) || path == d.Path(370) }
	for _, errno := range []unix.Errno{unix.EIO, unix.ESTALE, unix.ENOENT, unix.EACCES} {
		c.sys.open = failing(one, errno)
		if away(150) || away(20) || away(370) {
			t.Errorf("%v of one file of a disk is an outage", errno)
		}
	}
	c.sys = plain
	if a, b := c.Place(d.Object(7)), c.Place(d.Object(93)); a != b || a == c.Place(d.Object(107)) {
		t.Errorf("samples lie at %v and %v", a, b)
	}
	must(t, os.Remove(d.Path(400)))
	if !away(400) {
		t.Error("a folder that is empty and on another device than its file was is no outage")
	}
	must(t, os.Remove(root+"/e"))
	if away(400) {
		t.Error("a folder that was removed is an outage")
	}
}

// Where a few of the files of a place cannot be read, the place is acquitted sooner or later: each look is at others.
func TestEachLookIsAtOtherFiles(t *testing.T) {
	root := t.TempDir() + "/set"
	for i := range 40 {
		write(t, root, fmt.Sprintf("a/%02d.jpg", i), fmt.Sprintf("content %d", i))
	}
	c, _ := open(t, "")
	d := add(t, c, "", root)
	for i := 0; i < 40; i += 2 {
		must(t, os.Remove(d.Path(sampleID(i))))
	}
	_, err := c.Read(t.Context(), d.Object(2), nil)
	for n := 0; c.Away(t.Context(), d.Object(2), err); n++ {
		if n == 30 { // each time with a chance of an eighth
			t.Fatal("a place of which half can be read is away for good")
		}
	}
}

// The rule, for all that may be known.
func TestEvidence(t *testing.T) {
	for _, x := range []struct {
		e    evidence
		want bool
	}{
		{evidence{blame: blameOpen, looked: 3, readable: 0}, true},
		{evidence{blame: blameOpen, looked: 3, readable: 1, missing: true}, false},
		{evidence{blame: blameOpen, looked: 1}, true},
		{evidence{blame: blameOpen}, false},
		{evidence{blame: blameOpen, missing: true}, true},
		{evidence{blame: blameObject, missing: true}, false},
		{evidence{blame: blamePlace, looked: 3, readable: 3}, true},
	} {
		if got := x.e.away(); got != x.want {
			t.Errorf("%+v: %v", x.e, got)
		}
	}
}

// A tar that is gone has bad samples, the others of its folder being there.
func TestOneTarOfSeveral(t *testing.T) {
	root := t.TempDir()
	for i := range 3 {
		write(t, root, fmt.Sprintf("%d.tar", i), shard(t, fmt.Sprintf("%d-0=1", i), fmt.Sprintf("%d-1=1", i),
			fmt.Sprintf("%d-2=1", i), fmt.Sprintf("%d-3=1", i)))
	}
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "wds:"+root)
	must(t, err)
	must(t, os.Remove(root+"/1.tar"))
	for s := 4; s < 8; s++ {
		_, err := c.Read(t.Context(), d.Object(sampleID(s)), nil)
		if err == nil || c.Away(t.Context(), d.Object(sampleID(s)), err) {
			t.Errorf("sample %d of a tar that was removed: %v", s, err)
		}
	}
	must(t, os.Rename(root+"/0.tar", root+"/0.gone"))
	must(t, os.Rename(root+"/2.tar", root+"/2.gone"))
	if _, err := c.Read(t.Context(), d.Object(5), nil); !c.Away(t.Context(), d.Object(5), err) {
		t.Error("no tar is there, and that is no outage")
	}
}
