package pack

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// nameless makes a file without a name in the folder for temporary files, so that nothing is left of a run that is
// killed. Where the file system has no such files, the name is there until the file is made, and no longer.
func nameless() (*os.File, error) {
	fd, err := unix.Open(os.TempDir(), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), filepath.Join(os.TempDir(), "larder-pack (a file without a name)")), nil
	}
	f, err := os.CreateTemp("", "larder-pack-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close() // it is given up
		return nil, err
	}
	return f, nil
}
