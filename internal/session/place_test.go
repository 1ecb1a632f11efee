package session

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"larder/internal/errs"
)

const other = 61001 // a user that no test runs as

func asRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can give files to others")
	}
}

// stickyFolder is one that all may write in, as /tmp.
func stickyFolder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777|fs.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestMarkFollowsNoLink: whatever another user has put beside a socket, a mark is written to no file of another name,
// and replaces a link.
func TestMarkFollowsNoLink(t *testing.T) {
	dir := stickyFolder(t)
	path, victim := filepath.Join(dir, "l.sock"), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	untouched := func(what string) {
		t.Helper()
		if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
			t.Errorf("%s: the file of another name is %q, %v", what, b, err)
		}
	}
	for _, name := range []string{path + ".stopped.tmp", path + ".stopped"} {
		if err := os.Symlink(victim, name); err != nil {
			t.Fatal(err)
		}
	}
	one := NewStopMark("alice", 1)
	if err := MarkUnserved(path, one); err != nil {
		t.Fatal(err)
	}
	untouched("a link, and no process serves")
	if got, ok := ReadStopMark(path); !ok || got != one {
		t.Errorf("read %+v, %v", got, ok)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Unmark(), os.Symlink(victim, path+".stopped")); err != nil {
		t.Fatal(err)
	}
	if _, ok := ReadStopMark(path); ok {
		t.Error("a link is read as a mark")
	}
	if err := errors.Join(l.Mark(one), l.Close()); err != nil {
		t.Fatal(err)
	}
	untouched("a link, and a daemon serves")
	if st, err := os.Lstat(path + ".stopped"); err != nil || st.Mode() != 0o644 {
		t.Errorf("the mark is %v, %v", st, err)
	}
	if left, _ := filepath.Glob(path + ".stopped.*"); len(left) != 1 || left[0] != path+".stopped.tmp" {
		t.Errorf("left: %v", left)
	}
	// The lock is written too, and a hard link is no link that open would refuse.
	if err := os.Link(victim, path+".lock"); err != nil {
		t.Fatal(err)
	}
	if err := MarkUnserved(path, one); !errs.Is(err, errs.Invalid) ||
		!strings.Contains(err.Error(), "is not a file of its own") {
		t.Errorf("a lock of two names: %v", err)
	}
	untouched("a hard link")
}

// TestMarkOfAnotherUser: who can only make files beside the socket stops no client by a mark, and keeps no daemon from
// starting.
func TestMarkOfAnotherUser(t *testing.T) {
	asRoot(t)
	path := filepath.Join(stickyFolder(t), "l.sock")
	name := path + ".stopped"
	if err := NewStopMark("root", 1).write(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(name, other, other); err != nil {
		t.Fatal(err)
	}
	if m, ok := ReadStopMark(path); ok {
		t.Errorf("the mark of another user is believed: %+v", m)
	}
	if err := os.Chown(filepath.Dir(path), other, -1); err != nil {
		t.Fatal(err)
	}
	if _, ok := ReadStopMark(path); !ok {
		t.Error("the mark of the folder's owner is not believed")
	}
	if err := errors.Join(os.Chown(filepath.Dir(path), 0, -1), os.Remove(name),
		os.MkdirAll(filepath.Join(name, "full"), 0o700)); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(path) // a folder there cannot be removed, as another user's file cannot by a daemon that is not root
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Unmark(); err != nil {
		t.Errorf("a mark that is not believed: %v", err)
	}
}

// TestGroupPlace: a socket for a group lies where no other user can put another folder in its place, at any level
// of the path.
func TestGroupPlace(t *testing.T) {
	asRoot(t)
	const group = 62000
	for name, x := range map[string]struct {
		make_ func(top string) (folder string)
		want  string // "" = it is good
	}{
		"fine": {func(top string) string { return filepath.Join(top, "larder") }, ""},
		"sticky": {func(top string) string { _ = os.Chmod(top, 0o777|fs.ModeSticky); return filepath.Join(top, "larder") },
			""},
		"group": {func(top string) string { _ = os.Chmod(top, 0o775); return filepath.Join(top, "larder") },
			"others may write in TOP (mode 0775)"},
		"all, above": {func(top string) string {
			_ = errors.Join(os.Mkdir(top+"/in", 0o755), os.Chmod(top, 0o757))
			return filepath.Join(top, "in", "larder")
		}, "others may write in TOP (mode 0757)"},
		"another's": {func(top string) string { _ = os.Chown(top, other, -1); return filepath.Join(top, "larder") },
			"TOP belongs to uid 61001"},
		"another's link": {func(top string) string {
			_ = errors.Join(os.Mkdir(top+"/real", 0o755), os.Symlink("real", top+"/link"), os.Lchown(top+"/link", other, -1))
			return filepath.Join(top, "link", "larder")
		}, "TOP/link belongs to uid 61001"},
		"behind a link": {func(top string) string {
			_ = errors.Join(os.MkdirAll(top+"/open/real", 0o755), os.Chmod(top+"/open", 0o777),
				os.Symlink(top+"/open/real", top+"/link"))
			return filepath.Join(top, "link", "larder")
		}, "others may write in TOP/open (mode 0777)"},
	} {
		t.Run(name, func(t *testing.T) {
			top, err := os.MkdirTemp("", "larder-place-") // t.TempDir may be closed to the group
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(top)
			if err := os.Chmod(top, 0o755); err != nil { //nolint:gosec // the group goes through
				t.Fatal(err)
			}
			dir := x.make_(top)
			l, err := ListenGroup(filepath.Join(dir, "l.sock"), group)
			if x.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				_ = l.Close()
				return
			}
			want := strings.ReplaceAll(x.want, "TOP", top)
			if !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) ||
				!strings.Contains(errs.From(err).Hint, "run: ch") {
				t.Errorf("%v; want %q", err, want)
			}
			if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a folder was made all the same: %v", err)
			}
		})
	}
}
