package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
)

const (
	// walkers is how many goroutines list folders and stat files. On local storage two would do; on network storage a
	// stat is a round trip, and this many are in flight.
	walkers = 16
	// statChunk is how many files one task stats: enough to make the queue cheap, few enough to spread a flat folder.
	statChunk = 256
	// maxVisits is how many paths may lead to one folder. Symbolic links can multiply paths exponentially; datasets do
	// not.
	maxVisits = 1024
	// racyWindow: a folder changed so shortly before it was listed may change again within the resolution of
	// its modification time. Its time is then not trusted: the next check walks again.
	racyWindow = 2 * time.Second
)

// Report says what a walk found beside samples.
type Report struct {
	Folders   int            // listed, the root among them
	Ignored   int            // files that are no samples: without an image suffix, or directly in the root
	Irregular int            // pipes, sockets and devices with an image suffix
	Without   int            // samples of packed files without an image
	Loops     int            // symbolic links to a folder that holds them, not followed
	RootImage int            // of Ignored: images directly in the root
	Kinds     map[string]int // of the other Ignored, by kindOf their names; nil in an index of an older larder
	LeftOut   []string       // empty folders that came after the first index, and are no classes yet; in label order
}

// walkedFile is a sample found: a regular file with an image suffix.
type walkedFile struct {
	name string
	fileMeta
}

// walkedDir is a folder listed. rel is its path below the root, "" for the root itself; class its first segment.
type walkedDir struct {
	rel, class string
	dev, ino   uint64
	mtime      int64 // 0: not to be trusted
	files      []walkedFile
}

type walkResult struct {
	classes []string
	dirs    []*walkedDir // torchvision's order: by class, then by path; the root first
	report  Report
}

// link is the chain of folders above one, to notice loops.
type link struct {
	dev, ino uint64
	up       *link
}

type walkTask struct {
	rel     string // folder to list, when dir is nil
	above   *link
	dir     *walkedDir // folder whose names are to be looked at
	names   []walkName
	isClass bool // rel is a class folder
}

type walkName struct {
	name    string
	symlink bool
}

type walker struct {
	root  string
	since int64 // ns; folders changed after it are racy

	mu      sync.Mutex
	wake    *sync.Cond
	stack   []walkTask // last in, first out: keeps the list short
	busy    int
	stopped error
	dirs    []*walkedDir
	chains  map[*walkedDir]*link
	visits  map[[2]uint64]int
	classes []string
	report  Report
	bad     []badPath
	rootImg int // images directly in the root
	allow   allowEmpty

	as       *rights // of another user, for whom it walks; nil = the daemon's own. Its folders are not used
	names    atomic.Int64
	maxNames int64 // that it looks at for him
	progress *Progress
}

// badPath is what could not be read.
type badPath struct {
	path string
	err  error
}

// allowEmpty says which class folders may hold no image: all of them, or those that are classes already. Where there
// are such, another empty folder is no mistake either, and no class as long as it is empty.
type allowEmpty struct {
	all   bool
	known []string // in label order
}

// walkFolder lists an imagefolder as torchvision.datasets.ImageFolder does: classes are the folders in the root, links
// followed; every file below with an image suffix is a sample. Unlike os.walk it reports what it cannot read.
// For another user (as) it sees what he may read, and fails with PERMISSION_DENIED at the first thing that he may not.
func walkFolder(ctx context.Context, root string, allow allowEmpty, as *Reader) (*walkResult, error) {
	fi, err := os.Stat(root)
	switch {
	case err != nil:
		return nil, rootError(root, err)
	case !fi.IsDir():
		return nil, errs.New(errs.DatasetUnread, printable(root), "name the folder that holds the class folders",
			"dataset folder %q is a file", root)
	}
	w := &walker{root: root, since: time.Now().Add(-racyWindow).UnixNano(), visits: map[[2]uint64]int{},
		chains: map[*walkedDir]*link{}, allow: allow, progress: progressOf(ctx)}
	if as != nil {
		w.as, w.maxNames = rightsOf(*as), maxAsked
	}
	w.report.Kinds = map[string]int{}
	w.wake = sync.NewCond(&w.mu)
	w.stack = []walkTask{{rel: ""}}
	stop := context.AfterFunc(ctx, func() { w.fail(ctx.Err()) })
	defer stop()
	var wg sync.WaitGroup
	for range walkers {
		wg.Go(w.work)
	}
	wg.Wait()
	w.mu.Lock() // ctx may end at this very moment
	stopped := w.stopped
	w.mu.Unlock()
	if stopped != nil {
		return nil, fmt.Errorf("index %s: %w", printable(root), stopped)
	}
	return w.finish()
}

func rootError(root string, err error) error {
	hint := "check the path on the machine of the daemon"
	if errors.Is(err, fs.ErrPermission) {
		hint = "the daemon runs as " + whoami() + "; make the folder readable for it"
	}
	return errs.New(errs.DatasetUnread, printable(root), hint, "dataset folder %q cannot be read", root).Because(err)
}

func whoami() string { return fmt.Sprintf("uid %d", os.Getuid()) }

func (w *walker) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped == nil {
		w.stopped = err
	}
	w.wake.Broadcast()
}

func (w *walker) push(tasks ...walkTask) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stack = append(w.stack, tasks...)
	w.wake.Broadcast()
}

func (w *walker) work() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.stack) == 0 && w.busy > 0 && w.stopped == nil {
			w.wake.Wait()
		}
		if len(w.stack) == 0 || w.stopped != nil {
			w.wake.Broadcast()
			return
		}
		t := w.stack[len(w.stack)-1]
		w.stack = w.stack[:len(w.stack)-1]
		w.busy++
		w.mu.Unlock()
		if t.dir == nil {
			w.list(t)
		} else {
			w.look(t)
		}
		w.mu.Lock()
		w.busy--
	}
}

// unreadable notes a path that could not be read. The walk continues, to report all of them at once.
func (w *walker) unreadable(path string, err error) {
	if errs.Is(err, errs.Denied) { // another user gets no more than this
		w.fail(err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bad = append(w.bad, badPath{path, err})
}

func join(root, rel string) string {
	if rel == "" {
		return root
	}
	if strings.HasSuffix(root, "/") {
		return root + rel
	}
	return root + "/" + rel
}

func below(rel, name string) string {
	if rel == "" {
		return name
	}
	return rel + "/" + name
}

func firstSegment(rel string) string {
	class, _, _ := strings.Cut(rel, "/")
	return class
}

// list reads one folder and queues what is in it.
func (w *walker) list(t walkTask) {
	path := join(w.root, t.rel)
	f, err := w.openFolder(path)
	if err != nil {
		w.unreadable(path, err)
		return
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		w.unreadable(path, err)
		return
	}
	d := &walkedDir{rel: t.rel, class: firstSegment(t.rel), dev: st.Dev, ino: st.Ino, mtime: st.Mtim.Nano()}
	if d.mtime >= w.since {
		d.mtime = 0
	}
	if !w.enter(t, d) {
		return
	}
	chain := &link{d.dev, d.ino, t.above}
	var names []walkName
	var ignored kinds
	irregular, rootImg := 0, 0
	for {
		entries, err := f.ReadDir(4096)
		if !w.asked(len(entries)) {
			return
		}
		for _, e := range entries {
			switch typ := e.Type(); {
			case typ.IsDir():
				w.push(walkTask{rel: below(t.rel, e.Name()), above: chain, isClass: t.rel == ""})
			case typ&fs.ModeSymlink != 0 && w.as != nil:
				w.fail(w.as.denied(join(path, e.Name()), isLink))
				return
			case typ&fs.ModeSymlink != 0:
				names = append(names, walkName{e.Name(), true})
			case !isImageName(e.Name()):
				ignored.add(e.Name())
			case !typ.IsRegular():
				irregular++
			case t.rel == "":
				rootImg++
			default:
				names = append(names, walkName{e.Name(), false})
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			w.unreadable(path, err)
			return
		}
		if w.isStopped() {
			return
		}
	}
	w.mu.Lock()
	w.dirs = append(w.dirs, d)
	w.chains[d] = chain
	w.report.Folders++
	w.ignore(ignored)
	w.report.Irregular += irregular
	w.rootImg += rootImg
	if t.isClass {
		w.classes = append(w.classes, t.rel)
	}
	for chunk := range slices.Chunk(names, statChunk) {
		w.stack = append(w.stack, walkTask{rel: t.rel, dir: d, names: chunk})
	}
	w.wake.Broadcast()
	w.mu.Unlock()
}

func (w *walker) isStopped() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stopped != nil
}

// enter reports whether a folder must be walked: not when it is one of those above it.
func (w *walker) enter(t walkTask, d *walkedDir) bool {
	for up := t.above; up != nil; up = up.up {
		if up.dev != d.dev || up.ino != d.ino {
			continue
		}
		if t.isClass {
			w.unreadable(join(w.root, t.rel), errSelfLink)
			return false
		}
		w.mu.Lock()
		w.report.Loops++
		w.mu.Unlock()
		return false
	}
	w.mu.Lock()
	id := [2]uint64{d.dev, d.ino}
	w.visits[id]++
	n := w.visits[id]
	w.mu.Unlock()
	if n > maxVisits {
		w.fail(errs.New(errs.DatasetUnread, printable(join(w.root, t.rel)), "remove symbolic links that lead to one "+
			"folder over and over",
			"more than %d paths lead to the folder %q", maxVisits, join(w.root, t.rel)))
		return false
	}
	return true
}

// look stats names of a folder that may be samples, or links to folders.
func (w *walker) look(t walkTask) {
	files := make([]walkedFile, 0, len(t.names))
	var tasks []walkTask
	var ignored kinds
	irregular, rootImg := 0, 0
	w.mu.Lock()
	chain := w.chains[t.dir]
	w.mu.Unlock()
	dir := join(w.root, t.rel)
	for i, n := range t.names {
		if i%64 == 63 && w.isStopped() {
			return
		}
		var st unix.Stat_t
		path := join(dir, n.name)
		if err := w.stat(n, path, &st); err != nil {
			var lst unix.Stat_t
			switch {
			case !errors.Is(err, unix.ENOENT):
				w.unreadable(path, err)
			case n.symlink && unix.Lstat(path, &lst) == nil:
				if isImageName(n.name) { // torchvision lists it and fails while training
					w.unreadable(path, errors.New("symbolic link to nothing"))
				} else {
					ignored.add(n.name)
				}
			default: // removed while we walked; the folder is racy now, so the next check walks again
			}
			continue
		}
		switch {
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			tasks = append(tasks, walkTask{rel: below(t.rel, n.name), above: chain, isClass: t.rel == ""})
		case !isImageName(n.name):
			ignored.add(n.name)
		case st.Mode&unix.S_IFMT != unix.S_IFREG:
			irregular++
		case t.rel == "":
			rootImg++
		default:
			files = append(files, walkedFile{n.name, fileMeta{dev: st.Dev, ino: st.Ino, size: st.Size, mtime: st.Mtim.Nano()}})
		}
	}
	w.progress.add(Indexed{Samples: int64(len(files))})
	w.mu.Lock()
	defer w.mu.Unlock()
	t.dir.files = append(t.dir.files, files...)
	w.ignore(ignored)
	w.report.Irregular += irregular
	w.rootImg += rootImg
	w.stack = append(w.stack, tasks...)
	w.wake.Broadcast()
}

func statRetry(path string, st *unix.Stat_t) error {
	for {
		if err := unix.Stat(path, st); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// unchangedDirs reports whether every folder is still as it was when it was listed. A folder that cannot be looked at
// counts as changed: the walk that follows says what is wrong.
func unchangedDirs(ctx context.Context, root string, dirs []dirRow) (bool, error) {
	var next atomic.Int64
	var changed atomic.Bool
	var wg sync.WaitGroup
	for range min(walkers, 1+len(dirs)/8) {
		wg.Go(func() {
			for !changed.Load() && ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(dirs) {
					return
				}
				d := &dirs[i]
				if !d.live {
					continue
				}
				var st unix.Stat_t
				if d.mtime == 0 || statRetry(join(root, d.rel), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR ||
					st.Mtim.Nano() != d.mtime || st.Dev != d.dev || st.Ino != d.ino {
					changed.Store(true)
				}
			}
		})
	}
	wg.Wait()
	return !changed.Load(), ctx.Err()
}
