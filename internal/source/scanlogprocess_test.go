package source

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"larder/internal/store"
)

// Variables of a process that indexes for a test: where indexes are saved, what it indexes, the server, and after how
// many files it says so.
const (
	indexerDir  = "LARDER_TEST_INDEXER"
	indexerURI  = "LARDER_TEST_INDEXER_URI"
	indexerURL  = "LARDER_TEST_INDEXER_URL"
	indexerTell = "LARDER_TEST_INDEXER_TELL"
)

// indexer is that process. It says "told", and then how many samples there are; it is cancelled when its input ends.
func indexer(dir string) int {
	tell, err := strconv.ParseInt(os.Getenv(indexerTell), 10, 64)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	stores := store.New(store.Config{Log: slog.New(slog.DiscardHandler), Settings: func(string, string) store.Settings {
		s := store.Default()
		s.Endpoint, s.Region, s.Anonymous, s.Hedge = os.Getenv(indexerURL), "us-east-1", true, 0
		return s
	}})
	defer stores.Close()
	c, err := OpenCatalog(CatalogConfig{IndexDir: dir, Stores: stores, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it
		cancel()
	}()
	told := make(chan struct{}, 1)
	var p *Progress
	p = NewProgress(func() {
		if p.Now().Files != tell {
			return
		}
		select {
		case told <- struct{}{}:
			fmt.Println("told")
		default:
		}
	})
	d, err := c.Add(WithProgress(ctx, p), "", os.Getenv(indexerURI))
	if err != nil {
		fmt.Println("failed")
		return 0
	}
	fmt.Println(d.LiveCount(), "samples")
	return 0
}

// indexing is such a process, as the test sees it.
type indexing struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Scanner
}

// startIndexing starts one that is not answered for the files that held names, until it ends.
func startIndexing(t *testing.T, b *bucketOf, index, uri string, tell int, held func(name string) bool) *indexing {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := filepath.Base(r.URL.Path); filepath.Ext(name) == ".tar" && held(name) {
			<-r.Context().Done()
			return
		}
		b.next.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	self, err := os.Executable()
	must(t, err)
	p := &indexing{cmd: exec.Command(self)}
	p.cmd.Env = append(os.Environ(), indexerDir+"="+index, indexerURI+"="+uri, indexerURL+"="+srv.URL,
		indexerTell+"="+strconv.Itoa(tell))
	p.cmd.Stderr = os.Stderr
	p.stdin, err = p.cmd.StdinPipe()
	must(t, err)
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	p.out = bufio.NewScanner(out)
	must(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended, unless the test failed
		_ = p.cmd.Wait()
	})
	return p
}

// says waits for a line of the process.
func (p *indexing) says(t *testing.T, want string) {
	t.Helper()
	if !p.out.Scan() || p.out.Text() != want {
		t.Fatalf("it said %q, not %q: %v", p.out.Text(), want, p.out.Err())
	}
}

// cancel ends the scan.
func (p *indexing) cancel(t *testing.T) {
	t.Helper()
	must(t, p.stdin.Close())
	p.says(t, "failed")
	must(t, p.cmd.Wait())
}

// logsOf counts the scan logs in a folder of indexes.
func logsOf(t *testing.T, index string) int {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(index, "*"+logSuffix))
	must(t, err)
	return len(all)
}

// tarsInABucket is a bucket of n tars, and their address.
func tarsInABucket(t *testing.T, n int) (b *bucketOf, uri string) {
	t.Helper()
	b = newBucket(t)
	for i, s := range shards(t, n) {
		b.put(t, fmt.Sprintf("%02d.tar", i), s)
	}
	return b, fmt.Sprintf("wds:s3://data/{00..%02d}.tar", n-1)
}

// TestTheFirstToFinishLeavesTheOthersScanLog: of two processes that index the same files, one is done while the other
// one still scans. What that has found stays.
func TestTheFirstToFinishLeavesTheOthersScanLog(t *testing.T) {
	const n, found = 30, 20
	b, uri := tarsInABucket(t, n)
	index := t.TempDir()
	slow := startIndexing(t, b, index, uri, found, func(name string) bool { return name >= "20.tar" })
	slow.says(t, "told")
	quick := startIndexing(t, b, index, uri, n, func(string) bool { return false })
	quick.says(t, "told")
	quick.says(t, fmt.Sprint(2*n, " samples"))
	must(t, quick.cmd.Wait())
	slow.cancel(t)
	if got := logsOf(t, index); got != 1 {
		t.Fatalf("%d scan logs are left, not that of the slow one", got)
	}
	saved, err := filepath.Glob(filepath.Join(index, "*"+indexSuffix))
	must(t, err)
	if len(saved) != 1 {
		t.Fatalf("indexes %q", saved)
	}
	must(t, os.Remove(saved[0]))
	reads := b.reads.Load()
	p := NewProgress(nil)
	d, err := b.open(t, index).Add(WithProgress(t.Context(), p), "", uri)
	must(t, err)
	if p.Now().KeptFiles != found || d.LiveCount() != 2*n || logsOf(t, index) != 0 {
		t.Errorf("%d of %d files were kept, %d samples, %d logs", p.Now().KeptFiles, found, d.LiveCount(), logsOf(t, index))
	}
	if r := b.reads.Load() - reads; r != n-found {
		t.Errorf("%d reads for %d files, %d of them kept", r, n, found)
	}
}

// TestScanLogsOfTwoProcessesAreMerged: both are stopped, each with files of its own; the next scan reads neither's.
func TestScanLogsOfTwoProcessesAreMerged(t *testing.T) {
	const n = 30
	b, uri := tarsInABucket(t, n)
	index := t.TempDir()
	one := startIndexing(t, b, index, uri, 20, func(name string) bool { return name >= "20.tar" })
	one.says(t, "told")
	two := startIndexing(t, b, index, uri, 26, func(name string) bool { return name >= "26.tar" })
	two.says(t, "told")
	one.cancel(t)
	two.cancel(t)
	if got := logsOf(t, index); got != 2 {
		t.Fatalf("%d scan logs of two processes", got)
	}
	three := startIndexing(t, b, index, uri, 28, func(name string) bool { return name >= "28.tar" })
	three.says(t, "told")
	three.cancel(t)
	if got := logsOf(t, index); got != 1 {
		t.Errorf("%d scan logs are left; the third process takes over both", got)
	}
	c, p := b.open(t, index), NewProgress(nil)
	d, err := c.Add(WithProgress(t.Context(), p), "", uri)
	must(t, err)
	if p.Now().KeptFiles != 28 || logsOf(t, index) != 0 {
		t.Errorf("%d files were kept, %d logs are left", p.Now().KeptFiles, logsOf(t, index))
	}
	fresh, err := b.open(t, "").Add(t.Context(), "", uri)
	must(t, err)
	if got, want := listing(t, c, d), listing(t, fresh.cat, fresh); !slices.Equal(got, want) ||
		d.Fingerprint() != fresh.Fingerprint() || strings.Join(d.Notes(), " ") != strings.Join(fresh.Notes(), " ") {
		t.Errorf("%q, not %q", got, want)
	}
}
