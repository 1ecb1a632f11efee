package trace

import (
	"bufio"
	"encoding/binary"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"larder/internal/errs"
	"larder/internal/nearest"
	"larder/internal/units"
)

// Formats lists what Import and Export know: larder's own, and those of other simulators.
func Formats() []string { return []string{"larder", "oracleGeneral", "csv"} }

// FormatOf guesses a format from the name of a file; larder's own when nothing speaks for another.
func FormatOf(path string) string {
	p := strings.ToLower(path)
	switch {
	case strings.HasSuffix(p, ".csv"):
		return "csv"
	case strings.HasSuffix(p, ".oraclegeneral") || strings.HasSuffix(p, ".oraclegeneral.bin"):
		return "oracleGeneral"
	}
	return "larder"
}

func unknownFormat(format string) error {
	return errs.New(errs.Invalid, "format", nearest.DidYouMean(format, Formats()), "unknown format %.40q of traces",
		format)
}

// Export writes a trace in a format. oracleGeneral and CSV hold the picks and sizes; jobs' names, subsets and costs are
// lost in both, which job took a sample and its epochs in oracleGeneral.
func Export(w io.Writer, t *Trace, format string) error {
	switch format {
	case "larder":
		return Write(w, t)
	case "oracleGeneral":
		return exportOracle(w, t)
	case "csv":
		return exportCSV(w, t)
	}
	return unknownFormat(format)
}

// Import reads a trace in a format; name is what to call it, maxMemory as in Read. Errors name the offset or the line.
func Import(r io.Reader, name, format string, maxMemory uint64) (*Trace, error) {
	switch format {
	case "larder":
		return Read(bufio.NewReaderSize(r, 1<<20), name, maxMemory)
	case "oracleGeneral":
		return importOracle(r, name, maxMemory)
	case "csv":
		return importCSV(r, name, maxMemory)
	}
	return nil, unknownFormat(format)
}

// walk calls each for every pick, with when it was taken.
func (t *Trace) walk(each func(i, job, epoch int, at time.Duration) error) error {
	taken, epoch := make([]int, len(t.Jobs)), make([]int, len(t.Jobs))
	for i, j := range t.Pick.Job {
		k := int(j & JobMask)
		if j&Begins != 0 {
			epoch[k]++
		}
		if err := each(i, k, epoch[k]-1, t.Jobs[k].TimeAt(taken[k])); err != nil {
			return err
		}
		taken[k]++
	}
	return nil
}

// An oracleGeneral record, as libCacheSim reads it
// (libCacheSim/traceReader/customizedReader/oracle/oracleGeneralBin.h): packed, little-endian: u32 seconds, u64 object,
// u32 size, i64 number of the request that asks for it next, from 0; -1 = none.
const oracleRecord = 24

func exportOracle(w io.Writer, t *Trace) error {
	next := NextUse(t)
	b := bufio.NewWriterSize(w, 1<<20)
	err := t.walk(func(i, _, _ int, at time.Duration) error {
		var rec [oracleRecord]byte
		x := t.Pick.Object[i]
		binary.LittleEndian.PutUint32(rec[0:], uint32(min(at/time.Second, 1<<32-1)))
		binary.LittleEndian.PutUint64(rec[4:], uint64(x))
		binary.LittleEndian.PutUint32(rec[12:], uint32(t.Size(x)))
		n := int64(next[i]) - 1
		binary.LittleEndian.PutUint64(rec[16:], uint64(n))
		_, err := b.Write(rec[:])
		return err
	})
	if err == nil {
		err = b.Flush()
	}
	if err != nil {
		return fmt.Errorf("export a trace: %w", err)
	}
	return nil
}

// NextUse is, for each pick, the number of the next pick of its object, from 1; 0 = none.
func NextUse(t *Trace) []uint32 {
	next, at := make([]uint32, t.Pick.Len()), make([]uint32, t.Objects)
	for i := t.Pick.Len() - 1; i >= 0; i-- {
		x := t.Pick.Object[i]
		next[i] = at[x]
		at[x] = uint32(i + 1)
	}
	return next
}

// builder gathers the requests of a foreign trace under dense ids, in the order of their first occurrence.
type builder struct {
	t     *Trace
	ids   map[string]uint32 // lookups only
	nums  map[uint64]uint32
	jobs  map[string]int
	sized bool
}

func newBuilder(name string) *builder {
	return &builder{t: &Trace{Name: name}, ids: map[string]uint32{}, nums: map[uint64]uint32{}, jobs: map[string]int{}}
}

func (b *builder) object(size uint32) uint32 {
	x := uint32(b.t.Objects)
	b.t.Objects++
	b.t.Sizes = append(b.t.Sizes, max(1, size))
	if size > 1 {
		b.sized = true
	}
	return x
}

func (b *builder) done(name string) (*Trace, error) {
	if b.t.Pick.Len() == 0 {
		return nil, errs.New(errs.Invalid, name, "name a trace with requests in it", "%s: at byte 0: the trace is empty",
			name)
	}
	if !b.sized {
		b.t.Sizes = nil
	}
	return b.t, b.t.Check()
}

// fits reports whether another request fits the memory; the tables of ids count too.
func (b *builder) fits(name string, at int64, maxMemory uint64) error {
	need := Memory(uint64(b.t.Pick.Len()), uint64(b.t.Objects), true) + 80*uint64(b.t.Objects)
	if b.t.Objects > MaxObjects || maxMemory > 0 && need > maxMemory {
		return errs.New(errs.ResourceExceeded, name, "cut the trace into shorter ones, or raise --max-memory",
			"%s: at byte %d: %d requests for %d objects need about %s of memory, the limit is %s", name, at, b.t.Pick.Len(),
			b.t.Objects, units.Size(need), units.Size(maxMemory))
	}
	return nil
}

func importOracle(r io.Reader, name string, maxMemory uint64) (*Trace, error) {
	in := bufio.NewReaderSize(r, 1<<20)
	b := newBuilder(name)
	b.t.Jobs = []Job{{Name: "all"}}
	for at := int64(0); ; at += oracleRecord {
		var rec [oracleRecord]byte
		n, err := io.ReadFull(in, rec[:])
		if errors.Is(err, io.EOF) {
			return b.done(name)
		}
		if err != nil {
			return nil, errs.New(errs.Invalid, name, "a record of oracleGeneral has 24 bytes; was all of the file copied?",
				"%s: at byte %d: a record is cut off", name, at+int64(n)).Because(err)
		}
		id, next := binary.LittleEndian.Uint64(rec[4:]), int64(binary.LittleEndian.Uint64(rec[16:]))
		if next < -1 {
			return nil, errs.New(errs.Invalid, name, "name a file of libCacheSim's oracleGeneral, uncompressed",
				"%s: at byte %d: the next request is number %d", name, at, next)
		}
		x, ok := b.nums[id]
		if !ok {
			if err := b.fits(name, at, maxMemory); err != nil {
				return nil, err
			}
			x = b.object(binary.LittleEndian.Uint32(rec[12:]))
			b.nums[id] = x
		} else if b.t.Pick.Len()&(1<<16-1) == 0 {
			if err := b.fits(name, at, maxMemory); err != nil {
				return nil, err
			}
		}
		b.t.Pick.Add(0, x, b.t.Pick.Len() == 0)
	}
}

// csvColumns are what a CSV may have; object is needed.
var csvColumns = []string{"time", "object", "size", "job", "epoch"}

func exportCSV(w io.Writer, t *Trace) error {
	b := bufio.NewWriterSize(w, 1<<20)
	fmt.Fprintln(b, strings.Join(csvColumns, ","))
	names := make([]string, len(t.Jobs))
	for i := range names {
		names[i] = csvField(t.Jobs[i].Name)
	}
	err := t.walk(func(i, job, epoch int, at time.Duration) error {
		x := t.Pick.Object[i]
		_, err := fmt.Fprintf(b, "%.6f,%d,%d,%s,%d\n", at.Seconds(), x, t.Size(x), names[job], epoch)
		return err
	})
	if err == nil {
		err = b.Flush()
	}
	if err != nil {
		return fmt.Errorf("export a trace: %w", err)
	}
	return nil
}

// csvField quotes what must be.
func csvField(s string) string {
	if strings.ContainsAny(s, "\",\r\n") || s == "" || strings.TrimSpace(s) != s {
		return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
	}
	return s
}

func importCSV(r io.Reader, name string, maxMemory uint64) (*Trace, error) {
	in := &csvRequests{Reader: csv.NewReader(bufio.NewReaderSize(r, 1<<20)), name: name}
	in.ReuseRecord = true
	if err := in.head(); err != nil {
		return nil, err
	}
	b := newBuilder(name)
	epochs := []int{} // of the jobs: that of the last request
	for {
		rec, err := in.Read()
		if errors.Is(err, io.EOF) {
			return b.done(name)
		}
		if err != nil {
			return nil, in.syntax(err)
		}
		q, err := in.request(rec)
		if err != nil {
			return nil, err
		}
		job, ok := b.jobs[q.job]
		if !ok {
			if len(b.jobs) == MaxJobs {
				return nil, in.bad("merge jobs", "more than %d jobs", MaxJobs)
			}
			job = len(b.jobs)
			who := strings.Clone(q.job)
			b.jobs[who] = job
			b.t.Jobs = append(b.t.Jobs, Job{Name: who[:min(len(who), maxName)]})
			epochs = append(epochs, -1)
		}
		x, ok := b.ids[q.object]
		if !ok {
			if err := b.fits(name, in.InputOffset(), maxMemory); err != nil {
				return nil, err
			}
			x = b.object(q.size)
			b.ids[strings.Clone(q.object)] = x
		}
		b.t.Pick.Add(job, x, q.epoch != epochs[job])
		if q.epoch != epochs[job] {
			b.t.Jobs[job].Epochs++
			epochs[job] = q.epoch
		}
	}
}

// csvRequests reads requests from a CSV with a line of names.
type csvRequests struct {
	*csv.Reader
	name string
	at   map[string]int // the place of each column that is there
}

// csvRequest is one line. Its texts are valid until the next line is read.
type csvRequest struct {
	job, object string
	size        uint32
	epoch       int
}

// bad is an error of the line that was read last.
func (in *csvRequests) bad(hint, format string, args ...any) error {
	line, _ := in.FieldPos(0)
	return errs.New(errs.Invalid, in.name, hint, "%s:%d: %s (at byte %d)", in.name, line, fmt.Sprintf(format, args...),
		in.InputOffset())
}

// syntax is an error of the CSV itself.
func (in *csvRequests) syntax(err error) error {
	return errs.New(errs.Invalid, in.name, "a CSV of requests has a line of names and then one line each",
		"%s: at byte %d: the CSV cannot be read", in.name, in.InputOffset()).Because(err)
}

// head reads the names of the columns.
func (in *csvRequests) head() error {
	head, err := in.Read()
	if errors.Is(err, io.EOF) {
		return errs.New(errs.Invalid, in.name, "a CSV of requests begins with "+strings.Join(csvColumns, ","),
			"%s: at byte 0: the file is empty", in.name)
	}
	if err != nil {
		return in.syntax(err)
	}
	in.at = map[string]int{}
	for i, h := range head {
		h = strings.TrimSpace(strings.TrimPrefix(h, "\ufeff"))
		if !slices.Contains(csvColumns, h) {
			return in.bad(nearest.DidYouMean(h, csvColumns), "unknown column %.40q", h)
		}
		if _, twice := in.at[h]; twice {
			return in.bad("keep one of them", "column %q is there twice", h)
		}
		in.at[h] = i
	}
	if _, ok := in.at["object"]; !ok {
		return in.bad("name one column object", "there is no column of objects")
	}
	return nil
}

// request is what a line says.
func (in *csvRequests) request(rec []string) (csvRequest, error) {
	q := csvRequest{job: "all", object: rec[in.at["object"]], size: 1}
	if c, ok := in.at["job"]; ok {
		q.job = rec[c]
	}
	if c, ok := in.at["size"]; ok {
		size, err := strconv.ParseUint(rec[c], 10, 32)
		if err != nil {
			return q, in.bad("sizes are whole numbers of bytes below 4294967296", "size %.40q", rec[c])
		}
		q.size = uint32(size)
	}
	if c, ok := in.at["epoch"]; ok {
		epoch, err := strconv.Atoi(rec[c])
		if err != nil || epoch < 0 || epoch > 1<<30 {
			return q, in.bad("epochs are whole numbers from 0", "epoch %.40q", rec[c])
		}
		q.epoch = epoch
	}
	if c, ok := in.at["time"]; ok {
		if s, err := strconv.ParseFloat(rec[c], 64); err != nil || !(s >= 0) || s > 1e12 {
			return q, in.bad("times are seconds from 0", "time %.40q", rec[c])
		}
	}
	return q, nil
}
