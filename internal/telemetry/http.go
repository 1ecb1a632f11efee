package telemetry

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/encoding/protojson"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// HTTPConfig says what the pages show. Stats must be set.
type HTTPConfig struct {
	Stats   StatsFunc
	Ready   func() error // nil error = ready for work; default: always ready
	Version string
	Log     *slog.Logger // default: nothing is logged
	Hosts   []string     // names that are answered, beside localhost and the address that was reached
}

// timeLimit bounds the answer to any request: a daemon that cannot count in that time is broken.
const timeLimit = 10 * time.Second

// NewHandler serves /metrics, /healthz, /readyz, /debug/vars and a page that links them. Everything is read-only.
func NewHandler(cfg HTTPConfig) http.Handler {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(NewRegistry(cfg.Stats), promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(cfg.Log.Handler(), slog.LevelError),
		MaxRequestsInFlight: 4, // a scrape is cheap; many at once are a mistake
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		plain(w, http.StatusOK, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if cfg.Ready != nil {
			if err := cfg.Ready(); err != nil {
				plain(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
				return
			}
		}
		plain(w, http.StatusOK, "ready")
	})
	mux.HandleFunc("GET /debug/vars", func(w http.ResponseWriter, _ *http.Request) {
		s := cfg.Stats()
		if s == nil {
			plain(w, http.StatusServiceUnavailable, "the daemon is starting or stopping")
			return
		}
		var b bytes.Buffer
		raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(s)
		if err == nil {
			err = json.Indent(&b, raw, "", "  ") // protojson varies its blanks on purpose
		}
		if err != nil {
			plain(w, http.StatusInternalServerError, err.Error())
			return
		}
		w.Header().Set("Content-Type", "application/json")
		b.WriteByte('\n')
		_, _ = w.Write(b.Bytes()) // a client that has left needs no answer
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if err := index.Execute(w, page(cfg.Version, cfg.Stats())); err != nil {
			cfg.Log.Debug("index page", "error", err)
		}
	})
	return http.TimeoutHandler(secure(named(cfg.Hosts, mux)), timeLimit, "the daemon did not answer in time\n")
}

func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text)
}

func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

type pageData struct {
	Version, Uptime string
	Jobs            []pageJob
}

type pageJob struct {
	Name, State                            string
	Samples, Batches, Decodes, Quarantined uint64
	Wait                                   string
}

func page(version string, s *larderv1.Stats) pageData {
	p := pageData{Version: version, Uptime: s.GetUptime().AsDuration().Round(time.Second).String()}
	for _, j := range s.GetJobs() {
		c := j.GetCounters()
		p.Jobs = append(p.Jobs, pageJob{
			Name: j.GetSpec().GetName(), State: stateLabel(j.GetState()), Samples: c.GetSamplesDelivered(),
			Batches: c.GetBatchesDelivered(), Decodes: c.GetDecodes(), Quarantined: c.GetQuarantined(),
			Wait: fmt.Sprintf("%.1f s", c.GetWaitSeconds()),
		})
	}
	return p
}

//go:embed index.html
var indexHTML string

var index = template.Must(template.New("index").Parse(indexHTML))

// HTTPServer serves the pages on one address.
type HTTPServer struct {
	l    net.Listener
	srv  *http.Server
	done chan error
}

// ListenHTTP binds host:port and serves until Close. An address that other machines can reach is allowed, with a
// warning in the log, for the pages have no password.
func ListenHTTP(addr string, cfg HTTPConfig) (*HTTPServer, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, errs.New(errs.ConfigInvalid, "http",
			"choose a free address of this machine, e.g. 127.0.0.1:0 for any port", "listen for HTTP on %s", addr).Because(err)
	}
	if host, ok := l.Addr().(*net.TCPAddr); ok && !host.IP.IsLoopback() {
		cfg.Log.Warn("HTTP can be reached from other machines and has no password; names of jobs and datasets are readable",
			"http", l.Addr().String(), "fix", "listen on 127.0.0.1, or put a proxy before it")
	}
	if host, _, err := net.SplitHostPort(addr); err == nil {
		cfg.Hosts = append([]string{host}, cfg.Hosts...)
	}
	s := &HTTPServer{l: l, done: make(chan error, 1), srv: &http.Server{
		Handler:           NewHandler(cfg),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      timeLimit + 20*time.Second, // the handler's limit, and a slow reader
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}}
	go func() {
		err := s.srv.Serve(l)
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		s.done <- err
	}()
	return s, nil
}

// Addr returns the address that was bound; a port of 0 has become the real one.
func (s *HTTPServer) Addr() string { return s.l.Addr().String() }

// Close lets running requests finish until ctx ends, then cuts them off, and waits for the server. Call it once.
func (s *HTTPServer) Close(ctx context.Context) error {
	err := s.srv.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.srv.Close())
	}
	return errors.Join(err, <-s.done)
}
