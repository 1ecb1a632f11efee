package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// reader is a user that no test runs as.
var reader = Reader{UID: 61001, GID: 61001, Groups: []uint32{62000}}

// readable makes a dataset of plain files in a folder that all users may enter.
func readable(t *testing.T) (dir string, c *Catalog, d *Dataset) {
	t.Helper()
	dir, err := os.MkdirTemp("", "larder-access-") // t.TempDir lies in folders of mode 0700 or 0755, as the umask is
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, class := range []string{"a", "b"} {
		for _, name := range []string{"1.jpg", "2.jpg"} {
			path := filepath.Join(dir, class, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(class+name), 0o644); err != nil {
				t.Fatal(err)
			}
			chmod(t, path, 0o644)
		}
		chmod(t, filepath.Join(dir, class), 0o755)
	}
	chmod(t, dir, 0o755)
	if real, err := filepath.EvalSymlinks(dir); err != nil || real != dir {
		t.Skipf("the temporary folder is behind a link: %s, %v", real, err)
	}
	c, err = OpenCatalog(CatalogConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	d, err = c.Add(t.Context(), "", "imagefolder:"+dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, c, d
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// Every folder down to the files, and every file, has to be readable; links are not followed.
func TestMayRead(t *testing.T) {
	dir, c, d := readable(t)
	uri := "imagefolder:" + dir
	if err := c.MayList(uri, reader); err != nil {
		t.Fatal(err)
	}
	if fp, err := c.MayRead(t.Context(), d, reader); err != nil || fp != d.Fingerprint() {
		t.Fatalf("%x, %v", fp, err)
	}
	link := filepath.Join(dir, "b", "1.jpg")
	for name, x := range map[string]struct {
		break_, mend func()
		list         bool // the folder may be listed all the same
		want         string
	}{
		"a file": {func() { chmod(t, dir+"/b/2.jpg", 0o640) }, func() { chmod(t, dir+"/b/2.jpg", 0o644) }, true,
			"b/2.jpg: its owner, mode"},
		"no search": {func() { chmod(t, dir+"/b", 0o754) }, func() { chmod(t, dir+"/b", 0o755) }, true,
			"/b: its owner, mode"},
		"no listing": {func() { chmod(t, dir+"/b", 0o751) }, func() { chmod(t, dir+"/b", 0o755) }, true,
			"/b: its owner, mode"},
		"the root": {func() { chmod(t, dir, 0o700) }, func() { chmod(t, dir, 0o755) }, false, dir + ": its owner, mode"},
		"a link": {func() {
			_ = os.Rename(link, link+".was")
			_ = os.Symlink(link+".was", link)
		}, func() { _ = os.Rename(link+".was", link) }, true, "b/1.jpg: it is a symbolic link"},
		"another file": {func() {
			_ = os.Rename(link, link+".was")
			_ = os.WriteFile(link, []byte("b1.jpg"), 0o644) //nolint:gosec // all users may read it
		}, func() { _ = os.Rename(link+".was", link) }, true, "b/1.jpg: it changed while it was looked at"},
		"gone": {func() { _ = os.Rename(link, link+".was") }, func() { _ = os.Rename(link+".was", link) }, true,
			"b/1.jpg: no such file"},
	} {
		x.break_()
		if err := c.MayList(uri, reader); (err == nil) != x.list {
			t.Errorf("%s: the folder: %v", name, err)
		}
		_, err := c.MayRead(t.Context(), d, reader)
		if !errs.Is(err, errs.Denied) || !strings.Contains(err.Error(), x.want) ||
			!strings.Contains(err.Error(), "uid 61001 may not read") {
			t.Errorf("%s: %v; want %q", name, err, x.want)
		}
		x.mend()
		if _, err := c.MayRead(t.Context(), d, reader); err != nil {
			t.Fatalf("%s, mended: %v", name, err)
		}
	}
	alias := dir + "-link"
	if err := os.Symlink(dir, alias); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(alias)
	for name, want := range map[string]string{
		"imagefolder:" + alias: "symbolic link", "imagefolder:" + dir + "/none": "no such file", "imagefolder:" + dir +
			"/a/1.jpg": "is no folder",
	} {
		if err := c.MayList(name, reader); !errs.Is(err, errs.Denied) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", name, err, want)
		}
	}
	if err := c.MayList("train", reader); !errs.Is(err, errs.NotFound) || strings.Contains(err.Error(), dir) {
		t.Errorf("an unknown name: %v", err)
	}
}

// Once a file is read for another user, a link that takes its place, or that of its folder, leads nowhere: not even to
// a file of the same size and time.
func TestLinksLeadNowhere(t *testing.T) {
	dir, c, d := readable(t)
	secret := t.TempDir()
	for _, name := range []string{"1.jpg", "2.jpg"} {
		if err := os.WriteFile(filepath.Join(secret, name), []byte("S"+name), 0o600); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(filepath.Join(dir, "a", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(secret, name), st.ModTime(), st.ModTime()); err != nil {
			t.Fatal(err)
		}
	}
	object := func(key string) ident.ObjectID {
		for s := range ident.SampleID(d.Len()) {
			if d.Key(s) == key {
				return d.Object(s)
			}
		}
		t.Fatal(key)
		return 0
	}
	one, two := object("a/1.jpg"), object("a/2.jpg")
	swap := func(path, target string) {
		t.Helper()
		if err := errors.Join(os.Rename(path, path+".was"), os.Symlink(target, path)); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "a", "1.jpg")
	swap(file, filepath.Join(secret, "1.jpg"))
	if b, err := c.Read(t.Context(), one, nil); err != nil || string(b) != "S1.jpg" {
		t.Fatalf("the daemon's own user follows links: %q, %v", b, err) // or this test shows nothing
	}
	if err := errors.Join(os.Remove(file), os.Rename(file+".was", file)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.MayRead(t.Context(), d, reader); err != nil {
		t.Fatal(err)
	}
	if b, err := c.Read(t.Context(), one, nil); err != nil || string(b) != "a1.jpg" {
		t.Fatalf("%q, %v", b, err)
	}
	swap(file, filepath.Join(secret, "1.jpg"))
	if b, err := c.Read(t.Context(), one, nil); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a link in the file's place: %q, %v", b, err)
	}
	swap(filepath.Join(dir, "a"), secret)
	if b, err := c.Read(t.Context(), two, nil); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a link in the folder's place: %q, %v", b, err)
	}
}

// rights.of says what the kernel does, for drawn owners, modes and access lists.
func TestRightsAreTheKernels(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be other users")
	}
	dir, err := os.MkdirTemp("", "larder-acl-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	chmod(t, dir, 0o755)
	path := filepath.Join(dir, "x")
	ids := []uint32{0, 61001, 61002, 62000, 62001}
	r := xrand.New(7)
	draw := func(n int) int { return int(r.Uint64() % uint64(n)) }
	lists, allowed := 0, 0
	for i := range 600 {
		_ = os.Remove(path)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chown(path, int(ids[draw(3)]), int(ids[draw(5)])),
			os.Chmod(path, os.FileMode(draw(0o1000)))); err != nil {
			t.Fatal(err)
		}
		if draw(3) > 0 {
			acl := binary.LittleEndian.AppendUint32(nil, aclVersion)
			add := func(tag uint16, id uint32) {
				acl = binary.LittleEndian.AppendUint16(acl, tag)
				acl = binary.LittleEndian.AppendUint16(acl, uint16(draw(8)))
				acl = binary.LittleEndian.AppendUint32(acl, id)
			}
			const nobody = 1<<32 - 1
			add(aclUserObj, nobody)
			if draw(2) > 0 {
				add(aclUser, ids[1+draw(2)])
			}
			add(aclGroupObj, nobody)
			for _, g := range ids[3:] {
				if draw(2) > 0 {
					add(aclGroup, g)
				}
			}
			add(aclMask, nobody)
			add(aclOther, nobody)
			if err := unix.Setxattr(path, "system.posix_acl_access", acl, 0); errors.Is(err, unix.EOPNOTSUPP) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			lists++
		}
		who := Reader{UID: ids[1+draw(2)], GID: ids[1+draw(4)]}
		if draw(2) > 0 {
			who.Groups = []uint32{ids[3+draw(2)]}
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		have, err := rightsOf(who).of(path, &st)
		if err != nil {
			t.Fatal(err)
		}
		kernel := opens(t, path, who)
		if got := have&mayRead != 0; got && !kernel {
			t.Errorf("%d: %+v, mode %o of %d:%d: we say that it may be read, the kernel does not", i, who, st.Mode&0o777, st.Uid,
				st.Gid)
		} else if !got && kernel && st.Mode&0o070 != 0 { // without a right in the mask the kernel does not look at the list
			t.Errorf("%d: %+v, mode %o of %d:%d: the kernel lets it be read, we do not", i, who, st.Mode&0o777, st.Uid, st.Gid)
		} else if got {
			allowed++
		}
	}
	t.Logf("%d access lists, %d readable", lists, allowed)
	if allowed < 50 {
		t.Errorf("only %d were readable", allowed)
	}
}

// opens tries to open a file as another user, in a thread that ends with that.
func opens(t *testing.T, path string, who Reader) bool {
	t.Helper()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is of no use to others
		var groups unsafe.Pointer
		if len(who.Groups) > 0 {
			groups = unsafe.Pointer(&who.Groups[0])
		}
		for _, call := range [][3]uintptr{
			{unix.SYS_SETGROUPS, uintptr(len(who.Groups)), uintptr(groups)}, {unix.SYS_SETFSGID, uintptr(who.GID)}, {
				unix.SYS_SETFSUID, uintptr(who.UID)},
		} {
			if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], 0); errno != 0 {
				result <- fmt.Errorf("become uid %d: %w", who.UID, errno)
				return
			}
		}
		fd, err := unix.Open(path, unix.O_RDONLY, 0)
		if err == nil {
			err = unix.Close(fd)
		}
		result <- err
	}()
	err := <-result
	if err != nil && !errors.Is(err, unix.EACCES) {
		t.Fatal(err)
	}
	return err == nil
}
