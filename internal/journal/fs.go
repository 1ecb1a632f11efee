package journal

import "io"

// FS is the folder of one state, as a log sees it: flat, names without separators. The real one is OpenDir; MemFS is
// one in memory that can lose what was not synced.
type FS interface {
	// List returns the names of the files, sorted.
	List() ([]string, error)
	// ReadFile returns the content of a file.
	ReadFile(name string) ([]byte, error)
	// ReadInto is ReadFile into the memory of buf if it suffices, else into new memory.
	ReadInto(name string, buf []byte) ([]byte, error)
	// ReadAt reads up to len(p) bytes at off; fewer only at the end of the file.
	ReadAt(name string, p []byte, off int64) (int, error)
	// Size is the size of a file in bytes.
	Size(name string) (int64, error)
	// Create makes a new file that must not exist, or opens an existing one when exclusive is false.
	Create(name string, exclusive bool) (File, error)
	// Rename gives a file another name, whose file is replaced.
	Rename(from, to string) error
	// Remove removes a file.
	Remove(name string) error
	// Sync makes creations, renames and removals durable.
	Sync() error
	// Lock takes the folder for this process alone until the lock is closed; ErrLocked says who has it.
	Lock() (io.Closer, error)
	// Path is a name for people.
	Path(name string) string
}

// File is open for writing.
type File interface {
	io.Writer // at the end of what was written through this File
	io.WriterAt
	io.Closer
	// Reserve makes sure that the file can grow to a size without the disk being full; the size itself stays. Where the
	// disk cannot promise that, it does nothing. Truncate releases what was reserved behind the end.
	Reserve(size int64) error
	// Truncate cuts the file.
	Truncate(size int64) error
	// Sync makes content and size durable.
	Sync() error
}

// LockedError says who has a state directory.
type LockedError struct {
	Holder string
	PID    int // 0 = not known
}

// Error names the holder.
func (e *LockedError) Error() string { return "it is in use by " + e.Holder }
