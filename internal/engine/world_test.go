package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"larder/client"
	"larder/internal/audit"
	"larder/internal/audit/audittest"
	"larder/internal/coordinator"
	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/prep"
	"larder/internal/rpc"
	"larder/internal/session"
	"larder/internal/shm"
	"larder/internal/source"
	"larder/internal/testenv"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv("LARDER_TEST_TRAINEE"); socket != "" {
		trainee(socket, os.Getenv("LARDER_TEST_JOB"))
		return
	}
	if socket := os.Getenv("LARDER_TEST_REGISTRANT"); socket != "" {
		registrant(socket, os.Getenv("LARDER_TEST_JOB"), os.Getenv("LARDER_TEST_DIR"))
		return
	}
	if os.Getenv(trialEnv) != "" || os.Getenv(cleanEnv) != "" {
		tryPoison()
		return
	}
	goleak.VerifyTestMain(audittest.M(m, audit.Options{Silent: map[string]bool{"silent": true}}))
}

// draw writes an image of its own: blocks of colour, so that neighbours differ and a JPEG stays small.
func draw(t testing.TB, path string, w, h int, seed uint64) {
	t.Helper()
	r := xrand.New(seed)
	m := image.NewRGBA(image.Rect(0, 0, w, h))
	base := [3]int{r.IntN(200), r.IntN(200), r.IntN(200)}
	for y := range h {
		for x := range w {
			v := int(xrand.Hash(seed, uint64(x/7), uint64(y/5))&31) + x*20/w
			m.SetRGBA(x, y, color.RGBA{R: uint8(base[0] + v), G: uint8(base[1] + v), B: uint8(base[2] + v), A: 255})
		}
	}
	var b bytes.Buffer
	var err error
	if strings.HasSuffix(path, ".png") {
		err = png.Encode(&b, m)
	} else {
		err = jpeg.Encode(&b, m, &jpeg.Options{Quality: 90})
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, b.Bytes(), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// plain writes a PNG of one colour.
func plain(t testing.TB, path string, w, h int) {
	t.Helper()
	var b bytes.Buffer
	if err := errors.Join(png.Encode(&b, image.NewRGBA(image.Rect(0, 0, w, h))), os.WriteFile(path, b.Bytes(),
		0o600)); err != nil {
		t.Fatal(err)
	}
}

// folder draws n images in three classes, every fifth a PNG; ids are their numbers.
func folder(t testing.TB, n int) string {
	t.Helper()
	dir := t.TempDir()
	for i := range n {
		draw(t, file(dir, n, i), 24+i%17, 20+i%13, uint64(i))
	}
	return dir
}

func file(dir string, n, i int) string {
	ext := ".jpg"
	if i%5 == 4 {
		ext = ".png"
	}
	return filepath.Join(dir, fmt.Sprintf("c%d", i*3/n), fmt.Sprintf("%04d%s", i, ext))
}

// world is an engine behind a real socket. Its end checks that nothing stays behind.
type world struct {
	t       testing.TB
	engine  *engine.Engine
	store   *tiers.Store
	socket  string
	server  *session.Server
	catalog *source.Catalog
	ran     chan error
}

const mib = 1 << 20

func openFDs(t testing.TB) int {
	t.Helper()
	ents, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range ents { // the runtime opens its poller once
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:[event") {
			n++
		}
	}
	return n
}

func segments() int { n, _ := shm.Live(); return n }

func serve(t testing.TB, change ...func(*engine.Config)) *world {
	t.Helper()
	fds, segs := openFDs(t), segments()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	catalog, err := source.OpenCatalog(source.CatalogConfig{Logger: slog.New(slog.DiscardHandler)})
	must(err)
	store, err := tiers.Open(tiers.Config{VerifyEvery: 1})
	must(err)
	log := journal.OpenMemory(journal.Limits{})
	cfg := engine.Config{
		Version: "test", Seed: 1, Data: engine.DataConfig{Catalog: catalog, Store: store},
		Journal: engine.JournalConfig{Log: log}, Work: engine.WorkConfig{Workers: 2},
		Jobs: engine.JobConfig{Lease: time.Minute},
		Memory: engine.MemoryConfig{
			Limit: 256 * mib,
			Settings: engine.Settings{Tiers: coordinator.TierConfig{Total: 64 * mib,
				Sizes: [ident.NumForms]int64{ident.Decoded: 32 * mib, ident.Augmented: 16 * mib}}},
			ParseSize: func(s string, _ int64) (int64, bool, error) {
				if s == "auto" {
					return 0, true, nil
				}
				n, err := strconv.ParseInt(s, 10, 64)
				return n, false, err
			},
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	engine, err := engine.New(cfg)
	must(err)
	dir, err := os.MkdirTemp("", "larder-exec")
	must(err)
	w := &world{t: t, engine: engine, store: store, catalog: catalog, socket: filepath.Join(dir, "s"),
		ran: make(chan error, 1)}
	listener, err := session.Listen(w.socket)
	must(err)
	server := session.NewServer(session.Config{Engine: engine, Crew: engine, Service: rpc.Service(engine, nil)})
	w.server = server
	served := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() { served <- server.Serve(listener) }()
	go func() { w.ran <- engine.Run(ctx) }()
	t.Cleanup(func() {
		err := errors.Join(server.Close(), <-served)
		stop()
		if run := <-w.ran; run != nil && !strings.Contains(run.Error(), "planned") {
			err = errors.Join(err, run)
		}
		err = errors.Join(err, cfg.Journal.Log.Close(), log.Close(), store.Close(), catalog.Close(), listener.Close())
		if err != nil {
			t.Errorf("closing: %v", err)
		}
		_ = os.RemoveAll(dir)
		if n := segments(); n > segs { // fewer: one of the test before went late
			t.Errorf("%d segments before, %d after", segs, n)
		}
		// What a client sent last may still be on its way to be closed.
		eventually(t, "the descriptors are closed", func() bool { return openFDs(t) <= fds })
	})
	return w
}

// stats are the daemon's counters.
func (w *world) stats() *larderv1.Stats {
	w.t.Helper()
	r, err := w.engine.GetStats(w.t.Context(), &larderv1.GetStatsRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	return r.GetStats()
}

// eventually waits for what other goroutines are about to do.
var eventually = testenv.Eventually

func op(name string, args map[string]any) *larderv1.Op {
	s, err := structpb.NewStruct(args)
	if err != nil {
		panic(err)
	}
	return &larderv1.Op{Name: name, Args: s}
}

// crops is a recipe with a random suffix and outputs of one size.
var crops = []*larderv1.Op{op("RandomResizedCrop", map[string]any{"size": 16.0}), op("RandomHorizontalFlip", nil)}

func spec(name, dir string, batch uint32, change ...func(*larderv1.JobSpec)) *larderv1.JobSpec {
	s := &larderv1.JobSpec{Name: name, Dataset: "imagefolder:" + dir, BatchSize: batch, Shuffle: true}
	for _, f := range change {
		f(s)
	}
	return s
}

func subset(expr string) func(*larderv1.JobSpec) {
	return func(s *larderv1.JobSpec) { s.Subset = expr }
}

func recipe(ops ...*larderv1.Op) func(*larderv1.JobSpec) {
	return func(s *larderv1.JobSpec) { s.Transform = ops }
}

// trainer is one client: a connection with one attachment.
type trainer struct {
	t    testing.TB
	conn *client.Conn
	st   *client.Stream
}

func (w *world) dial() *client.Conn {
	w.t.Helper()
	c, err := client.Dial(w.t.Context(), w.socket)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

func register(c *client.Conn, s *larderv1.JobSpec) (*larderv1.RegisterJobResponse, error) {
	resp := new(larderv1.RegisterJobResponse)
	err := c.Call(context.Background(), "RegisterJob", &larderv1.RegisterJobRequest{Spec: proto.CloneOf(s)}, resp)
	return resp, err
}

// train registers a job, or finds it, and attaches a rank.
func (w *world) train(s *larderv1.JobSpec, rank uint32) *trainer {
	w.t.Helper()
	c := w.dial()
	if _, err := register(c, s); err != nil {
		w.t.Fatal(err)
	}
	st, err := c.Attach(w.t.Context(), &larderv1.AttachRequest{Job: s.GetName(), Rank: rank})
	if err != nil {
		w.t.Fatal(err)
	}
	return &trainer{t: w.t, conn: c, st: st}
}

// seen is what a client got of one epoch, by its own record.
type seen struct {
	ids    []int64
	labels map[int64]int64
	pixels map[int64][]byte
	sizes  map[int64][3]int
	rows   []int
	bad    []*larderv1.QuarantinedSample
	end    *larderv1.EpochEnd
}

func newSeen() *seen {
	return &seen{labels: map[int64]int64{}, pixels: map[int64][]byte{}, sizes: map[int64][3]int{}}
}

// epoch takes a whole epoch. Errors come back, so that it can run in any goroutine.
func (tr *trainer) epoch(n uint32) (*seen, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := tr.st.StartEpoch(ctx, n); err != nil {
		return nil, fmt.Errorf("epoch %d: %w", n, err)
	}
	s := newSeen()
	for {
		b, err := tr.st.Next(ctx)
		if errors.Is(err, io.EOF) {
			s.end = tr.st.End()
			return s, nil
		}
		if err != nil {
			return s, fmt.Errorf("epoch %d: %w", n, err)
		}
		tr.take(b, s)
		b.Release()
	}
}

// take notes what is in a batch.
func (tr *trainer) take(b *client.Batch, s *seen) {
	labels := b.Label()
	for i, id := range b.Index() {
		s.ids = append(s.ids, id)
		s.labels[id] = labels[i]
		pix, h, w, c := b.Image(i)
		s.pixels[id] = slices.Clone(pix)
		s.sizes[id] = [3]int{h, w, c}
	}
	s.rows = append(s.rows, b.Rows)
	s.bad = append(s.bad, b.Report()...)
}

func (tr *trainer) must(n uint32) *seen {
	tr.t.Helper()
	s, err := tr.epoch(n)
	if err != nil {
		tr.t.Fatal(err)
	}
	return s
}

func (tr *trainer) detach() {
	tr.t.Helper()
	if err := tr.st.Detach(context.Background()); err != nil {
		tr.t.Error(err)
	}
	_ = tr.conn.Close()
}

// exactly compares ids as a set with every one once.
func exactly(t testing.TB, what string, got, want []int64) {
	t.Helper()
	g := slices.Clone(got)
	slices.Sort(g)
	if !slices.Equal(g, want) {
		t.Errorf("%s: %d ids, %d of them distinct; want %d", what, len(got), len(slices.Compact(g)), len(want))
	}
}

func where(n int, f func(i int) bool) []int64 {
	var out []int64
	for i := range n {
		if f(i) {
			out = append(out, int64(i))
		}
	}
	return out
}

func all(n int) []int64 { return where(n, func(int) bool { return true }) }

// decode is the image of a file, straight from prep.
func decode(t testing.TB, path string) ([]byte, [3]int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := prep.ParseRecipe(nil)
	if err != nil {
		t.Fatal(err)
	}
	w := prep.NewWorker(prep.Limits{})
	defer w.Close()
	img, err := w.Decode(r, b, func(n int) ([]byte, error) { return make([]byte, n), nil })
	if err != nil {
		t.Fatal(err)
	}
	return img.Pix, [3]int{img.H, img.W, img.C}
}

func reasonOf(err error) errs.Reason {
	if f, ok := errors.AsType[*errs.Error](err); ok {
		return f.Reason
	}
	return ""
}
