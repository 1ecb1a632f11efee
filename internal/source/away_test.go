package source

import (
	"fmt"
	"net/http"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
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
