package telemetry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sample() *larderv1.Stats {
	counters := func(k uint64) *larderv1.Counters {
		return &larderv1.Counters{SourceReads: k, SourceBytes: 1000 * k, Decodes: k + 1, Augments: k + 2,
			SamplesDelivered: k + 3,
			BatchesDelivered: k + 4, Hits: map[string]uint64{"decoded": k + 5}, Evictions: map[string]uint64{"encoded": k + 6},
			Quarantined: k + 7, WaitSeconds: float64(k) / 2}
	}
	return &larderv1.Stats{
		Version: "1.2.3", Pid: 7, Uptime: durationpb.New(90 * time.Second), Totals: counters(100), RssBytes: 5 << 20,
		MemoryLimit: 8 << 30,
		Parity:      true, Decoder: "libjpeg-turbo",
		Tiers: []*larderv1.Tier{{Form: "encoded", Budget: 10, Used: 3, Entries: 1},
			{Form: "decoded", Budget: 20, Used: 19, Entries: 2}},
		Jobs: []*larderv1.Job{
			{Id: 1, Spec: &larderv1.JobSpec{Name: "lr"}, State: larderv1.JobState_JOB_STATE_DEAD, Counters: counters(1)},
			{Id: 4, Spec: &larderv1.JobSpec{Name: "lr"}, State: larderv1.JobState_JOB_STATE_LIVE, Counters: counters(10),
				SubsetSize: 700,
				Ranks:      []*larderv1.RankInfo{{Attached: true, Epoch: 2, RingBytes: 64}, {Rank: 1, Epoch: 3, RingBytes: 64}},
				Epochs:     []*larderv1.EpochAccount{{State: "complete"}, {State: "violated"}}},
			{Id: 2, Spec: &larderv1.JobSpec{Name: "<b>\"other\"\\"}, State: larderv1.JobState_JOB_STATE_JOINING},
		},
		Datasets: []*larderv1.DatasetStats{
			{Dataset: &larderv1.Dataset{Name: "well"}},
			{Dataset: &larderv1.Dataset{Name: "ill"}, Outages: 2, OutageSeconds: 7.5, JobsWaiting: 3},
		},
		Devices: []*larderv1.Device{{Name: "NVIDIA H100", Uuid: "GPU-1", MemoryBytes: 80, MemoryUsed: 8, Utilization: 50}},
	}
}

func gather(t *testing.T, s *larderv1.Stats) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector(func() *larderv1.Stats { return s }))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += "," + l.GetName() + "=" + l.GetValue()
			}
			out[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	got := gather(t, sample())
	for key, want := range map[string]float64{
		"larder_up": 1, "larder_uptime_seconds": 90, "larder_rss_bytes": 5 << 20, "larder_memory_limit_bytes": 8 << 30,
		"larder_source_reads_total": 100, "larder_source_bytes_total": 100_000, "larder_decodes_total": 101,
		"larder_augments_total":          102,
		"larder_samples_delivered_total": 103, "larder_batches_delivered_total": 104, "larder_quarantined_total": 107,
		"larder_hits_total,form=decoded": 105, "larder_hits_total,form=augmented": 0,
		"larder_evictions_total,form=encoded": 106,
		"larder_wait_seconds_total,job=lr":    5, "larder_job_decodes_total,job=lr": 11,
		"larder_job_hits_total,form=decoded,job=lr": 15,
		"larder_tier_bytes,form=decoded":            19, "larder_tier_budget_bytes,form=encoded": 10,
		"larder_tier_entries,form=decoded": 2,
		"larder_jobs,state=live":           1, "larder_jobs,state=dead": 1, "larder_jobs,state=done": 0,
		"larder_job_ranks_attached,job=lr": 1, "larder_job_ring_bytes,job=lr": 128, "larder_job_epoch,job=lr": 3,
		"larder_job_epochs_violated,job=lr": 1, "larder_job_subset_samples,job=lr": 700,
		"larder_job_samples_delivered_total,job=<b>\"other\"\\": 0,
		"larder_dataset_storage_outages_total,dataset=ill":      2, "larder_dataset_jobs_waiting_for_storage,dataset=ill": 3,
		"larder_dataset_storage_outage_seconds_total,dataset=ill":  7.5,
		"larder_gpu_utilization_ratio,name=NVIDIA H100,uuid=GPU-1": .5,
	} {
		if v, ok := got[key]; !ok || v != want {
			t.Errorf("%s = %v (there: %v), want %v", key, v, ok, want)
		}
	}
	if _, ok := got["larder_dataset_storage_outages_total,dataset=well"]; ok {
		t.Error("a dataset whose storage never failed has a series")
	}
	for _, none := range []*larderv1.Stats{nil, {}, {Jobs: []*larderv1.Job{nil, {Spec: &larderv1.JobSpec{Name: "\xff"}}},
		Tiers: []*larderv1.Tier{{}, {}}, Devices: []*larderv1.Device{{}, {}}}} {
		if up := gather(t, none)["larder_up"]; (up == 1) != (none != nil) {
			t.Errorf("up = %v of %v", up, none)
		}
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	problems, err := testutil.CollectAndLint(NewCollector(sample))
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// Every field of Counters is a metric under its own name, so that nothing counted stays unseen.
func TestEveryCounterIsAMetric(t *testing.T) {
	got := gather(t, sample())
	fields := (&larderv1.Counters{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name := "larder_" + string(fields.Get(i).Name())
		found := false
		for key := range got {
			base, _, _ := strings.Cut(key, ",")
			found = found || base == name+"_total"
		}
		if !found {
			t.Errorf("no metric %s_total", name)
		}
	}
}

// docs/metrics.md lists exactly the metrics there are, with their labels.
func TestMetricsDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	row := regexp.MustCompile("(?m)^\\| `(larder_[a-z_]+)(\\{[a-z_, ]*\\})?` \\|")
	for _, m := range row.FindAllStringSubmatch(string(doc), -1) {
		listed[m[1]+m[2]] = true
	}
	ch := make(chan *prometheus.Desc, 100)
	NewCollector(sample).Describe(ch)
	close(ch)
	for d := range ch {
		m := regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`).FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("a descriptor is printed as %s", d)
		}
		name := m[1]
		if m[2] != "" {
			name += "{" + strings.Join(strings.Split(m[2], ","), ", ") + "}"
		}
		if !listed[name] {
			t.Errorf("docs/metrics.md does not list %s", name)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("docs/metrics.md lists %s, which there is not", name)
	}
}

func get(t *testing.T, h http.Handler, method, path string) (int, string, http.Header) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, "http://localhost"+path, nil))
	return w.Code, w.Body.String(), w.Header()
}

func TestPages(t *testing.T) {
	var ready error
	stats := sample()
	h := NewHandler(HTTPConfig{Stats: func() *larderv1.Stats { return stats }, Ready: func() error { return ready },
		Version: "1.2.3"})
	for path, want := range map[string]string{
		"/metrics": "larder_decodes_total 101\n", "/healthz": "ok\n", "/readyz": "ready\n", "/": "&lt;b&gt;&#34;other&#34;",
		"/debug/vars": `"1.2.3"`,
	} {
		code, body, head := get(t, h, "GET", path)
		if code != 200 || !strings.Contains(body, want) || head.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v\n%.400s\nwant %q", path, code, head, body, want)
		}
	}
	if _, body, _ := get(t, h, "GET", "/metrics"); !strings.Contains(body, "process_resident_memory_bytes") ||
		!strings.Contains(body, "go_goroutines") {
		t.Error("/metrics lacks the process or the runtime")
	}
	_, body, _ := get(t, h, "GET", "/debug/vars")
	var back larderv1.Stats
	if err := protojson.Unmarshal([]byte(body), &back); err != nil || !proto.Equal(&back, stats) {
		t.Errorf("/debug/vars is read back as %v, %v", &back, err)
	}
	if !strings.Contains(body, "\n    \"samples_delivered\": \"") {
		t.Errorf("/debug/vars does not name counters as everything else does:\n%.600s", body)
	}
	ready = errors.New("draining")
	if code, body, _ := get(t, h, "GET", "/readyz"); code != 503 || !strings.Contains(body, "draining") {
		t.Errorf("not ready: %d %s", code, body)
	}
	stats = nil
	if code, _, _ := get(t, h, "GET", "/debug/vars"); code != 503 {
		t.Errorf("/debug/vars without counters: %d", code)
	}
	if code, body, _ := get(t, h, "GET", "/metrics"); code != 200 || !strings.Contains(body, "larder_up 0") {
		t.Errorf("/metrics without counters: %d", code)
	}
	if code, body, _ := get(t, h, "GET", "/"); code != 200 || !strings.Contains(body, "No job") {
		t.Errorf("index without counters: %d", code)
	}
	for _, bad := range [][2]string{{"POST", "/metrics"}, {"DELETE", "/debug/vars"}} {
		if code, _, _ := get(t, h, bad[0], bad[1]); code != 405 {
			t.Errorf("%v: %d", bad, code)
		}
	}
	if code, _, _ := get(t, h, "GET", "/etc/passwd"); code != 404 {
		t.Errorf("an unknown page: %d", code)
	}
}

func TestListen(t *testing.T) {
	var log bytes.Buffer
	cfg := HTTPConfig{Stats: sample, Log: slog.New(slog.NewTextHandler(&log, nil))}
	s, err := ListenHTTP("127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	if log.Len() != 0 {
		t.Errorf("a warning about loopback: %s", log.String())
	}
	if _, err := ListenHTTP(s.Addr(), cfg); !errs.Is(err, errs.ConfigInvalid) ||
		!strings.Contains(err.Error(), "free address") {
		t.Errorf("a taken address: %v", err)
	}
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	r, err := c.Get("http://" + s.Addr() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || string(b) != "ok\n" {
		t.Errorf("%q, %v", b, err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := c.Get("http://" + s.Addr() + "/healthz"); err == nil {
		t.Error("still serving after Close")
	}
	open, err := ListenHTTP("0.0.0.0:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "no password") {
		t.Errorf("no warning: %s", log.String())
	}
	if err := open.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Close does not wait for a request that hangs longer than its context allows.
func TestCloseCutsOff(t *testing.T) {
	hang, entered := make(chan struct{}), make(chan struct{})
	s, err := ListenHTTP("127.0.0.1:0", HTTPConfig{Stats: func() *larderv1.Stats { close(entered); <-hang; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /debug/vars HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close: %v", err)
	}
	close(hang)
}

func TestLogger(t *testing.T) {
	var b bytes.Buffer
	log, level, err := NewLogger(&b, "warn", "json")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("hidden")
	log.Warn("seen", "n", 1)
	if err := SetLevel(level, "debug"); err != nil {
		t.Fatal(err)
	}
	log.Debug("now")
	if s := b.String(); strings.Contains(s, "hidden") || !strings.Contains(s, `"msg":"seen","n":1`) ||
		!strings.Contains(s, "now") {
		t.Errorf("log:\n%s", s)
	}
	for _, tc := range [][2]string{{"loud", "text"}, {"info", "xml"}} {
		if _, _, err := NewLogger(&b, tc[0], tc[1]); !errs.Is(err, errs.ConfigInvalid) {
			t.Errorf("%v: %v", tc, err)
		}
	}
	for _, l := range []string{"debug", "info", "warn", "error"} {
		if _, _, err := NewLogger(&b, l, "text"); err != nil {
			t.Errorf("%s: %v", l, err)
		}
	}
}
