package store

import (
	"context"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"

	"larder/internal/clock"
)

// Config says how to build Stores. The zero value works: every place has the Default settings.
type Config struct {
	// Settings are those of a place, by its scheme and its name, such as s3 and s3://bucket; nil = Default for all.
	Settings func(scheme, name string) Settings
	Log      *slog.Logger // nil = slog.Default()
	Clock    clock.Clock  // of tries, their pauses and requests that stall; nil = the real one
}

// Stores hands out one Store for each place, so that all readers of a place share its connections, its limits and its
// counters. Safe for concurrent use.
type Stores struct {
	cfg Config

	mu   sync.Mutex // guards what follows
	open map[string]*remote
}

// New returns Stores that have opened nothing. Close them to end idle connections.
func New(cfg Config) *Stores {
	if cfg.Settings == nil {
		cfg.Settings = func(string, string) Settings { return Default() }
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	cfg.Clock = clock.Or(cfg.Clock)
	return &Stores{cfg: cfg, open: map[string]*remote{}}
}

// Open returns the store of a URI, and what of it is the key, or the beginning of keys. It may ask AWS for the region
// of a bucket, and nothing else. Errors are *errs.Error: INVALID_ARGUMENT or UNSUPPORTED for the URI, CONFIG_INVALID
// for the settings of the place.
func (s *Stores) Open(ctx context.Context, uri string) (st Store, key string, err error) {
	l, err := Parse(uri)
	if err != nil {
		return nil, "", err
	}
	if l.Scheme == schemeFile {
		return Files{}, l.Prefix, nil
	}
	s.mu.Lock()
	r := s.open[l.name()]
	s.mu.Unlock()
	if r == nil {
		if r, err = s.add(ctx, l); err != nil {
			return nil, "", err
		}
	}
	return r, l.Prefix, nil
}

func (s *Stores) add(ctx context.Context, l Location) (*remote, error) {
	set := s.cfg.Settings(l.Scheme, l.name())
	if err := set.check(l.name()); err != nil {
		return nil, err
	}
	count := &counters{}
	var b backend
	var err error
	switch l.Scheme {
	case schemeS3, schemeGS:
		b, err = openBucket(ctx, l, set, count)
	case schemeAZ:
		b, err = openAzure(l, set, count)
	default:
		b, err = openWeb(l, set, count)
	}
	if err != nil {
		return nil, err
	}
	made := newRemote(l.name(), b, set, count, s.cfg.Log, s.cfg.Clock)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.open[l.name()]; r != nil { // another was faster
		b.close()
		return r, nil
	}
	s.open[l.name()] = made
	return made, nil
}

// Identity names the place of a uri and the server that it is on, for what outlives this process. It asks nobody.
func (s *Stores) Identity(uri string) string {
	l, err := Parse(uri)
	if err != nil {
		return uri
	}
	if l.Scheme == schemeS3 || l.Scheme == schemeGS {
		if u, err := endpoint(l, s.cfg.Settings(l.Scheme, l.name())); err == nil {
			return l.name() + " of " + u.Host
		}
	}
	if l.Scheme == schemeAZ { // containers of two accounts may have one name
		if text, _ := azureAddress(s.cfg.Settings(l.Scheme, l.name())); text != "" {
			if u, err := url.Parse(text); err == nil {
				return l.name() + " of " + u.Host + strings.TrimRight(u.Path, "/")
			}
		}
	}
	return l.name()
}

// Counters are those of every place that was opened, by name.
func (s *Stores) Counters() []Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Counters, 0, len(s.open))
	for _, r := range s.open { // order-free: sorted below
		out = append(out, r.Counters())
	}
	slices.SortFunc(out, func(a, b Counters) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Close ends idle connections. Nothing may be read any more.
func (s *Stores) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.open { // order-free: each by itself
		r.b.close()
	}
}
