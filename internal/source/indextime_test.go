package source

import (
	"archive/tar"
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	pq "github.com/parquet-go/parquet-go"
	"golang.org/x/sys/unix"
)

// benchRow is a row of the lists and tables of BenchmarkIndex: what a dataset of images has, with images of 64 bytes.
type benchRow struct {
	Image struct {
		Bytes []byte `parquet:"bytes"`
		Path  string `parquet:"path"`
	} `parquet:"image"`
	Label  int64  `parquet:"label"`
	Source string `parquet:"source"`
}

const benchFiles = 16 // that rows are spread over, where the format has several

func benchPath(i int) string { return fmt.Sprintf("n%08d/n%08d_%d.JPEG", i%1000, i%1000, i) }

// BenchmarkIndex measures how long the index of LARDER_BENCH_FILES samples (default 20,000) takes, by the clock and in
// time of processors, and the memory and the file that it leaves: for tars, lists of images with a label and a column
// more (every image is looked at), tables of lines, and Parquet files with a page index. Files are in the page cache.
func BenchmarkIndex(b *testing.B) {
	n := 20_000
	if s := os.Getenv("LARDER_BENCH_FILES"); s != "" {
		if _, err := fmt.Sscan(s, &n); err != nil {
			b.Fatal(err)
		}
	}
	images := b.TempDir()
	for i := range n {
		p := filepath.Join(images, benchPath(i))
		if i < 1000 {
			must(b, os.Mkdir(filepath.Dir(p), 0o755))
		}
		must(b, os.WriteFile(p, nil, 0o644))
	}
	lines := func(f func(w io.Writer, i int)) func(io.Writer, int, int) error {
		return func(w io.Writer, from, to int) error {
			for i := from; i < to; i++ {
				f(w, i)
			}
			return nil
		}
	}
	csv := lines(func(w io.Writer, i int) {
		if i == 0 {
			fmt.Fprintln(w, "path,label,source")
		}
		fmt.Fprintf(w, "%s,%d,camera-%d\n", benchPath(i), i%1000, i%7)
	})
	jsonl := lines(func(w io.Writer, i int) {
		fmt.Fprintf(w, `{"path": "%s", "label": %d, "source": "camera-%d"}`+"\n", benchPath(i), i%1000, i%7)
	})
	for _, c := range []struct {
		name, uri, file string
		files           int
		write           func(w io.Writer, from, to int) error
	}{
		{"wds", "wds:", "train-%03d.tar", benchFiles, benchTar},
		{"imagefiles-csv", "imagefiles:", "list-%d.csv", 1, csv},
		{"imagefiles-jsonl", "imagefiles:", "list-%d.jsonl", 1, jsonl},
		{"csv", "csv:", "table-%d.csv", 1, csv},
		{"jsonl", "jsonl:", "table-%d.jsonl", 1, jsonl},
		{"parquet", "parquet:", "train-%03d.parquet", benchFiles, benchParquet},
	} {
		b.Run(c.name, func(b *testing.B) {
			dir := images
			if c.uri != "imagefiles:" {
				dir = b.TempDir()
			}
			uri := c.uri + filepath.Join(dir, fmt.Sprintf(c.file, 0))
			if c.files > 1 {
				uri = c.uri + dir
			}
			for k := range c.files {
				f, err := os.Create(filepath.Join(dir, fmt.Sprintf(c.file, k)))
				must(b, err)
				w := bufio.NewWriterSize(f, 1<<20)
				must(b, c.write(w, n*k/c.files, n*(k+1)/c.files))
				must(b, w.Flush())
				must(b, f.Close())
			}
			benchIndex(b, uri, n)
		})
	}
}

// benchIndex indexes a dataset from nothing, again and again.
func benchIndex(b *testing.B, uri string, n int) {
	var heap, file int64
	var spent float64
	for b.Loop() {
		b.StopTimer()
		index, was := b.TempDir(), benchHeap()
		c, _ := open(b, index)
		cpu := benchTime(b)
		b.StartTimer()
		d, err := c.Add(b.Context(), "", uri)
		b.StopTimer()
		must(b, err)
		if d.Len() != n {
			b.Fatalf("%d samples", d.Len())
		}
		spent += benchTime(b) - cpu
		heap = benchHeap() - was
		runtime.KeepAlive(c)
		paths, err := filepath.Glob(index + "/*")
		must(b, err)
		for _, p := range paths {
			fi, err := os.Stat(p)
			must(b, err)
			file += fi.Size()
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/sample")
	b.ReportMetric(spent*1e9/float64(b.N)/float64(n), "cpu-ns/sample")
	b.ReportMetric(float64(heap)/float64(n), "B/sample")
	b.ReportMetric(float64(file)/float64(b.N)/float64(n), "fileB/sample")
}

// benchHeap is what is reachable.
func benchHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what finalizers and pools held
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// benchTime is the processor time of the process, in seconds.
func benchTime(b *testing.B) float64 {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func benchTar(w io.Writer, from, to int) error {
	t := tar.NewWriter(w)
	for i := from; i < to; i++ {
		body := fmt.Sprintf("%0*d", 64+i*i%2000, i) // members do not lie at equal distances
		err := t.WriteHeader(&tar.Header{Name: fmt.Sprintf("n%08d_%08d.jpg", i%1000, i), Size: int64(len(body)), Mode: 0o644})
		if err == nil {
			_, err = io.WriteString(t, body)
		}
		if err != nil {
			return err
		}
	}
	return t.Close()
}

func benchParquet(w io.Writer, from, to int) error {
	p := pq.NewGenericWriter[benchRow](w, pq.MaxRowsPerRowGroup(1000), pq.Compression(&pq.Snappy))
	for i := from; i < to; i++ {
		r := benchRow{Label: int64(i % 1000), Source: fmt.Sprint("camera-", i%7)}
		r.Image.Bytes, r.Image.Path = fmt.Appendf(nil, "%064d", i), benchPath(i)
		if _, err := p.Write([]benchRow{r}); err != nil {
			return err
		}
	}
	return p.Close()
}
