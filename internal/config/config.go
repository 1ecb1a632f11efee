package config

import (
	"strings"
	"time"
)

// Config is the whole configuration. Default gives one that runs on 2 cores and 2 GiB; fields that are auto get their
// value from Resolve.
type Config struct {
	Socket string // path of the Unix socket; empty = the user's default
	// SocketGroup is the group, by name or number, whose members may use the socket too; empty = no group's.
	SocketGroup string
	HTTP        HTTP
	GRPC        GRPC
	Memory      Memory
	Tiers       Tiers
	Prep        Prep
	Workers     Workers
	Source      Source
	State       State
	Jobs        Jobs
	Sampler     Sampler
	Log         Log

	Datasets []DatasetConfig // those with a floor, a cap or strata, by name
	Stores   []StoreConfig   // kinds of stores and places that have settings, by name

	scratch StoreSettings // of a Config that lives while the value of one store is read or written

	origins map[string]Origin // keys that were set; a key that is not in here has its default
}

// HTTP is the server of metrics and health.
type HTTP struct {
	Listen string // host:port; empty = off
	Hosts  string // further names that it answers to, separated by commas
}

// Names are the further names that the server answers to.
func (h HTTP) Names() (out []string) {
	for name := range strings.SplitSeq(h.Hosts, ",") {
		if name = strings.TrimSpace(name); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// GRPC is the gRPC server on TCP. Without Listen there is none; the Unix socket always serves gRPC.
type GRPC struct {
	Listen   string // host:port
	TLSCert  string // PEM file
	TLSKey   string // PEM file
	Insecure bool   // no TLS; only for a loopback address
	// Who may call: with a token of TokenFile, or with a certificate of an authority in TLSClientCA; one of them is
	// needed.
	TokenFile, TLSClientCA string
}

// Memory is what the daemon may use in all.
type Memory struct {
	Limit Size // auto = 50 % of the cgroup limit, or of RAM
}

// Tiers sizes the caches. A percentage of Total is of the cgroup limit, or of RAM; one of the others is of Total.
type Tiers struct {
	Total, Encoded, Decoded, Augmented Size
	Policy                             Policy
	Model                              string  // that splits what is auto: bottleneck | seneca | simple
	Fairness                           float64 // part of its fair share that the model leaves every job, 0 to 1
	VerifyEvery                        int     // checksum on every n-th read of an entry, at least 1
	Disk                               Disk
}

// Disk is the disk tier: stored bytes of samples that lie behind a network, on a local disk.
type Disk struct {
	Dir  string // "" = there is none
	Size Size   // bytes; needed where Dir is set
}

// Policy names the eviction policy of each tier.
type Policy struct{ Encoded, Decoded, Augmented string }

// Prep is the preparation of samples.
type Prep struct {
	Workers   int   // goroutines that decode and augment; 0 = auto = one per core
	MaxPixels int64 // an image with more is refused before memory is taken
	MaxScans  int   // of a JPEG image
	// bytes that one image may take, stored, and while it is decoded; auto = 1 GiB, or the daemon's own part if that is
	// less
	MaxMemory Size
	// DecodeTimeout is the processor time that decoding one image may take; 0 = any.
	DecodeTimeout time.Duration
	OnCorrupt     string // JPEG images that libjpeg warns about: error | skip | accept
	Isolation     string // where images are decoded: none = in the daemon, process = in guarded processes
}

// Workers bounds worker processes of clients, which make samples of Python datasets.
type Workers struct {
	Window    int  // samples that one worker may have at once
	MaxRecord Size // bytes of the largest sample; auto = 256 MiB, or an eighth of the limit if that is less
}

// Source is the reading of storage.
type Source struct {
	IndexDir     string // folder of saved indexes; auto = in the user's cache folder; empty = none is saved
	StorageLimit int64  // bytes a second, 0 = no limit
	StorageIOPS  int    // reads a second, 0 = no limit
	Readers      int    // reads at once where storage is slow; 0 = auto = 16
	// OutageTimeout is how long next() waits for storage that fails as a whole; 0 = for ever.
	OutageTimeout time.Duration
}

// State is what survives the daemon.
type State struct {
	Dir    string // auto = the user's own; none = nothing survives
	Orders Size   // of the orders of epochs that are over; auto = 1 GiB
}

// Jobs bounds jobs.
type Jobs struct {
	Lease time.Duration // how long a vanished rank may come back before its job is dead
	// IdleTimeout is how long a client may do nothing before it loses its rank; 0 = forever.
	IdleTimeout time.Duration
	Max         int  // live jobs
	MaxRing     Size // bytes of shared memory of all rings together
}

// Sampler chooses samples.
type Sampler struct {
	Seed uint64 // of everything drawn that no job's own seed fixes
}

// Log is the daemon's log.
type Log struct {
	Level, Format string
	File          string // empty = standard error
	MaxSize       Size   // at which File becomes File.1; auto = LogSize
}

// LogSize is log.max_size where it is auto: the log of a daemon that a client starts lies in memory, so it and the one
// before it take 8 MiB there.
const LogSize = 4 << 20

// leastLog is the least log.max_size: a start and a few registrations.
const leastLog = 16 << 10

// Origin says where a value came from.
type Origin struct {
	Kind  string // default | file | env | flag
	Where string // larder.yaml:3:11, LARDER_TIERS__DECODED, --set
}

// String prints the origin on one line.
func (o Origin) String() string {
	if o.Where == "" {
		return o.Kind
	}
	return o.Kind + " " + o.Where
}

// Default returns the configuration of a machine about which nothing is known.
func Default() *Config {
	return &Config{
		Tiers: Tiers{
			Policy:      Policy{Encoded: "need", Decoded: "need", Augmented: "need"},
			VerifyEvery: 64, Model: "bottleneck", Fairness: 1,
		},
		Prep: Prep{MaxPixels: 89_478_485, MaxScans: 500, MaxMemory: Auto, DecodeTimeout: 10 * time.Second,
			OnCorrupt: "accept", Isolation: "none"},
		Workers: Workers{Window: 2, MaxRecord: Auto},
		Source:  Source{IndexDir: "auto", OutageTimeout: 30 * time.Minute},
		State:   State{Dir: "auto"},
		Jobs:    Jobs{Lease: 30 * time.Second, Max: MostJobs},
		Sampler: Sampler{Seed: 1},
		Log:     Log{Level: "info", Format: "text"},
	}
}

// Origin returns where the value of a key came from; an unknown key has kind "".
func (c *Config) Origin(key string) Origin {
	if lookup(key) == nil {
		return Origin{}
	}
	if o, ok := c.origins[key]; ok {
		return o
	}
	return Origin{Kind: "default"}
}

// Get returns the value of a key as it would stand in the file, and whether the key exists.
func (c *Config) Get(key string) (string, bool) {
	k := lookup(key)
	if k == nil {
		return "", false
	}
	return k.get(c), true
}

// Set changes one key, checking only that key; Validate checks the whole. Unknown keys and bad values are
// *errs.Error of reason CONFIG_INVALID that name the nearest key or what is allowed.
func (c *Config) Set(key, value string, from Origin) error {
	k := lookup(key)
	if k == nil {
		return unknownKey(key, from)
	}
	if err := k.set(c, value); err != nil {
		return badValue(key, from, err)
	}
	if c.origins == nil {
		c.origins = map[string]Origin{}
	}
	c.origins[key] = from
	return nil
}
