package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"larder/internal/errs"
	"larder/internal/nearest"
)

// Apply says when a changed value takes effect in a running daemon.
type Apply string

// The ways a change can take effect.
const (
	Live    Apply = "live"    // at once
	NewJobs Apply = "new"     // for jobs that register afterwards
	Restart Apply = "restart" // when the daemon starts again
)

// Key describes one key of the configuration.
type Key struct {
	Name  string // dotted, e.g. tiers.decoded
	Kind  string // what a value looks like, for people
	Doc   string // one sentence
	Apply Apply
	path  []string // of a key whose parts may hold dots; nil = Name at its dots
	set   func(*Config, string) error
	get   func(*Config) string
}

// Policies lists the eviction policies a tier may name; a test of the command holds it equal to the policies that exist.
var Policies = []string{"need", "refcount", "minio", "minio-preselect", "minio-partitioned", "lru", "fifo", "random", "2-random", "w-tinylfu",
	"s3-fifo", "sieve", "tinylfu"}

// MostJobs is how many jobs a daemon can have at once; a test of the command holds it equal to what the sampler can tell apart.
const MostJobs = 64

// Models lists what can split memory, the default first; a test of the command holds it equal to the models that exist.
var Models = []string{"bottleneck", "seneca", "simple"}

// onePolicy is oneOf of Policies, and has an answer for those that exist but not in a daemon.
func onePolicy(s string) error {
	if s == "belady" || strings.HasPrefix(s, "clairvoyant-") {
		return errs.New(errs.ConfigInvalid, "", "use need, which goes by what is known of it; larder bench sampler can use this one",
			"%.40q needs to know everything that will be asked for", s)
	}
	return oneOf("a policy", Policies...)(s)
}

// Keys lists every key, in the order of the file.
func Keys() []Key { return slices.Clone(keys) }

func lookup(name string) *Key {
	if i, ok := byName[name]; ok {
		return &keys[i]
	}
	return datasetKey(name)
}

var byName = func() map[string]int {
	m := map[string]int{}
	for i, k := range keys {
		m[k.Name] = i
	}
	return m
}()

var keys = []Key{
	text("socket", "path", "Unix socket of sessions and gRPC; empty = the user's default", Restart,
		func(c *Config) *string { return &c.Socket }, checkPath),
	text("socket_group", "group", "name or number of a group whose members may use the socket too; empty = the daemon's user and root alone", Restart,
		func(c *Config) *string { return &c.SocketGroup }, checkGroup),
	text("http", "host:port", "address of /metrics, health and JSON; empty = off", Restart,
		func(c *Config) *string { return &c.HTTP }, checkAddr),
	text("grpc.listen", "host:port", "gRPC on TCP; empty = off", Restart,
		func(c *Config) *string { return &c.GRPC.Listen }, checkAddr),
	text("grpc.tls_cert", "path", "PEM certificate of the TCP listener", Restart,
		func(c *Config) *string { return &c.GRPC.TLSCert }, checkPath),
	text("grpc.tls_key", "path", "PEM key of the TCP listener", Restart,
		func(c *Config) *string { return &c.GRPC.TLSKey }, checkPath),
	text("grpc.tls_client_ca", "path", "PEM authorities: TCP callers must show a certificate of one of them", Restart,
		func(c *Config) *string { return &c.GRPC.TLSClientCA }, checkPath),
	text("grpc.token_file", "path", "tokens of TCP callers, one a line; read again at every call", Restart,
		func(c *Config) *string { return &c.GRPC.TokenFile }, checkPath),
	boolean("grpc.insecure", "TCP without TLS; loopback addresses only, and with a token", Restart,
		func(c *Config) *bool { return &c.GRPC.Insecure }),
	size("memory.limit", "memory the daemon may use; auto = 50 % of the cgroup limit, or of RAM", Restart,
		func(c *Config) *Size { return &c.Memory.Limit }),
	size("tiers.total", "memory of all tiers; auto = half of memory.limit", Live,
		func(c *Config) *Size { return &c.Tiers.Total }),
	size("tiers.encoded", "memory of the stored bytes; auto = larder decides", Live,
		func(c *Config) *Size { return &c.Tiers.Encoded }),
	size("tiers.decoded", "memory of decoded samples; auto = larder decides", Live,
		func(c *Config) *Size { return &c.Tiers.Decoded }),
	size("tiers.augmented", "memory of augmented samples; auto = larder decides", Live,
		func(c *Config) *Size { return &c.Tiers.Augmented }),
	text("tiers.policy.encoded", "policy", "eviction policy of the encoded tier", Restart,
		func(c *Config) *string { return &c.Tiers.Policy.Encoded }, onePolicy),
	text("tiers.policy.decoded", "policy", "eviction policy of the decoded tier", Restart,
		func(c *Config) *string { return &c.Tiers.Policy.Decoded }, onePolicy),
	text("tiers.policy.augmented", "policy", "eviction policy of the augmented tier", Restart,
		func(c *Config) *string { return &c.Tiers.Policy.Augmented }, onePolicy),
	text("tiers.model", strings.Join(Models, " | "), "what splits the memory of tiers that are auto", Live,
		func(c *Config) *string { return &c.Tiers.Model }, oneOf("a model", Models...)),
	{Name: "tiers.fairness", Kind: "0 to 1", Doc: "part of its fair share that the model leaves every job; 0 looks at the sum alone", Apply: Live,
		set: func(c *Config, s string) error {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil || !(v >= 0 && v <= 1) {
				return errors.New("it is not a number from 0 to 1")
			}
			c.Tiers.Fairness = v
			return nil
		},
		get: func(c *Config) string { return strconv.FormatFloat(c.Tiers.Fairness, 'f', -1, 64) }},
	number("tiers.verify_every", "checksum a cached sample on every n-th read; 1 = always", Restart, 1, 1<<30, false,
		func(c *Config) *int { return &c.Tiers.VerifyEvery }),
	number("prep.workers", "goroutines that prepare samples; auto = one per core", Restart, 1, 4096, true,
		func(c *Config) *int { return &c.Prep.Workers }),
	{Name: "prep.max_pixels", Kind: "number", Doc: "larger images are refused before memory is taken", Apply: Restart,
		set: func(c *Config, s string) error {
			n, err := parseInt(s, 1, math.MaxInt32)
			if err == nil {
				c.Prep.MaxPixels = n
			}
			return err
		},
		get: func(c *Config) string { return strconv.FormatInt(c.Prep.MaxPixels, 10) }},
	number("prep.max_scans", "scans of a JPEG image; large ones may have fewer", Restart, 1, 1<<20, false,
		func(c *Config) *int { return &c.Prep.MaxScans }),
	size("prep.max_memory", "memory one image may take, stored, and while it is decoded; auto = 1 GiB, or an eighth of memory.limit if that is less", Restart,
		func(c *Config) *Size { return &c.Prep.MaxMemory }),
	duration("prep.decode_timeout", "processor time that decoding one image may take; 0 = any", Restart, 10*time.Millisecond, time.Hour,
		func(c *Config) *time.Duration { return &c.Prep.DecodeTimeout }),
	text("prep.on_corrupt", "error | skip | accept", "JPEG images that libjpeg warns about: bad samples, left out without a word, or decoded as far as they go", Restart,
		func(c *Config) *string { return &c.Prep.OnCorrupt }, oneOf("an answer", "error", "skip", "accept")),
	text("source.index_dir", "path | auto", "folder of saved indexes; auto = in the user's cache folder; empty = none is saved", Restart,
		func(c *Config) *string { return &c.Source.IndexDir }, checkPath),
	{Name: "source.storage_limit", Kind: "bytes/s", Doc: "bytes read from storage a second, all reads together; empty = no limit", Apply: Live,
		set: setStorageLimit,
		get: func(c *Config) string {
			if c.Source.StorageLimit == 0 {
				return ""
			}
			return FormatBytes(c.Source.StorageLimit) + "/s"
		}},
	number("source.storage_iops", "reads from storage a second, all together; 0 = no limit", Live, 0, 1e9, false,
		func(c *Config) *int { return &c.Source.StorageIOPS }),
	text("state.dir", "path | auto | none", "folder of what survives the daemon: jobs, where they are, their orders; auto = the user's own; none = memory only", Restart,
		func(c *Config) *string { return &c.State.Dir }, checkPath),
	size("state.orders", "disk for the orders of epochs that are over; auto = 1 GiB", Restart,
		func(c *Config) *Size { return &c.State.Orders }),
	{Name: "jobs.lease", Kind: "duration", Doc: "how long a rank that vanished may come back", Apply: Restart,
		set: func(c *Config, s string) error {
			d, err := time.ParseDuration(s)
			if err != nil {
				return errors.New("it is not a duration like 30s or 5m")
			}
			if d < time.Second || d > 7*24*time.Hour {
				return errors.New("it must be between 1s and 168h")
			}
			c.Jobs.Lease = d
			return nil
		},
		get: func(c *Config) string { return formatDuration(c.Jobs.Lease) }},
	duration("jobs.idle_timeout", "how long a client may leave its batches alone before it loses its rank and the memory of its ring; 0 = for ever", Restart,
		time.Second, 30*24*time.Hour, func(c *Config) *time.Duration { return &c.Jobs.IdleTimeout }),
	number("jobs.max", "live jobs; more are refused", Restart, 1, MostJobs, false, func(c *Config) *int { return &c.Jobs.Max }),
	size("jobs.max_ring", "shared memory of all rings together; auto = what memory.limit leaves beside the tiers", NewJobs,
		func(c *Config) *Size { return &c.Jobs.MaxRing }),
	{Name: "sampler.seed", Kind: "number", Doc: "seed of every draw that no job's own seed fixes", Apply: Restart,
		set: func(c *Config, s string) error {
			n, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				return errors.New("it is not a whole number from 0 to 18446744073709551615")
			}
			c.Sampler.Seed = n
			return nil
		},
		get: func(c *Config) string { return strconv.FormatUint(c.Sampler.Seed, 10) }},
	text("log.level", "debug | info | warn | error", "least level that is logged", Live,
		func(c *Config) *string { return &c.Log.Level }, oneOf("a level", "debug", "info", "warn", "error")),
	text("log.format", "text | json", "form of log lines", Restart,
		func(c *Config) *string { return &c.Log.Format }, oneOf("a format", "text", "json")),
	text("log.file", "path", "file of the log; empty = standard error", Restart,
		func(c *Config) *string { return &c.Log.File }, checkPath),
	size("log.max_size", "bytes at which log.file becomes FILE.1 and a new one begins: both together have at most twice this; auto = 4 MiB", Restart,
		func(c *Config) *Size { return &c.Log.MaxSize }),
}

func text(name, kind, doc string, apply Apply, at func(*Config) *string, check func(string) error) Key {
	return Key{Name: name, Kind: kind, Doc: doc, Apply: apply,
		set: func(c *Config, s string) error {
			if err := check(s); err != nil {
				return err
			}
			*at(c) = s
			return nil
		},
		get: func(c *Config) string { return *at(c) }}
}

func size(name, doc string, apply Apply, at func(*Config) *Size) Key {
	return Key{Name: name, Kind: "size", Doc: doc, Apply: apply,
		set: func(c *Config, s string) error {
			v, err := ParseSize(s)
			if err != nil {
				return err
			}
			*at(c) = v
			return nil
		},
		get: func(c *Config) string { return at(c).String() }}
}

// duration is a length of time from lo to hi, or 0.
func duration(name, doc string, apply Apply, lo, hi time.Duration, at func(*Config) *time.Duration) Key {
	return Key{Name: name, Kind: "duration", Doc: doc, Apply: apply,
		set: func(c *Config, s string) error {
			d, err := time.ParseDuration(s)
			if err != nil {
				return errors.New("it is not a duration like 30s or 1h30m")
			}
			if d != 0 && (d < lo || d > hi) {
				return fmt.Errorf("it must be 0, or between %s and %s", formatDuration(lo), formatDuration(hi))
			}
			*at(c) = d
			return nil
		},
		get: func(c *Config) string { return formatDuration(*at(c)) }}
}

func boolean(name, doc string, apply Apply, at func(*Config) *bool) Key {
	return Key{Name: name, Kind: "true | false", Doc: doc, Apply: apply,
		set: func(c *Config, s string) error {
			switch strings.ToLower(s) {
			case "true", "1", "yes", "on":
				*at(c) = true
			case "false", "0", "no", "off":
				*at(c) = false
			default:
				return errors.New("it is neither true nor false")
			}
			return nil
		},
		get: func(c *Config) string { return strconv.FormatBool(*at(c)) }}
}

// number is a whole number; with auto, the word auto is kept as 0.
func number(name, doc string, apply Apply, lo, hi int64, auto bool, at func(*Config) *int) Key {
	kind := "number"
	if auto {
		kind = "number | auto"
	}
	return Key{Name: name, Kind: kind, Doc: doc, Apply: apply,
		set: func(c *Config, s string) error {
			if auto && strings.EqualFold(s, "auto") {
				*at(c) = 0
				return nil
			}
			n, err := parseInt(s, lo, hi)
			if err == nil {
				*at(c) = int(n)
			}
			return err
		},
		get: func(c *Config) string {
			if n := *at(c); n != 0 || !auto {
				return strconv.Itoa(n)
			}
			return "auto"
		}}
}

func parseInt(s string, lo, hi int64) (int64, error) {
	n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("it is not a whole number from %d to %d", lo, hi)
	}
	if n < lo || n > hi {
		return 0, fmt.Errorf("it must be from %d to %d", lo, hi)
	}
	return n, nil
}

func setStorageLimit(c *Config, s string) error {
	if s == "" {
		c.Source.StorageLimit = 0
		return nil
	}
	v, err := ParseSize(strings.TrimSuffix(s, "/s"))
	if f, ok := errors.AsType[*errs.Error](err); ok {
		return errors.New(f.Message)
	}
	switch {
	case err != nil:
		return err
	case v.IsAuto() || v.IsPercent():
		return errors.New("it must be bytes a second, or empty for no limit")
	case v.Of(0) == 0:
		return errors.New("a limit of 0 would read nothing; leave it empty for no limit")
	}
	c.Source.StorageLimit = v.Of(0)
	return nil
}

func oneOf(what string, allowed ...string) func(string) error {
	return func(s string) error {
		if slices.Contains(allowed, s) {
			return nil
		}
		hint := "write one of them"
		if n := Nearest(s, allowed); n != "" {
			hint = fmt.Sprintf("did you mean %s?", n)
		}
		return errs.New(errs.ConfigInvalid, "", hint, "%.40q is not %s; allowed are %s", s, what, strings.Join(allowed, ", "))
	}
}

func checkPath(s string) error {
	if strings.ContainsRune(s, 0) || !utf8.ValidString(s) {
		return errors.New("a path must be UTF-8 without zero bytes")
	}
	return nil
}

// checkGroup does not ask whether the group exists: that is for the machine that serves.
func checkGroup(s string) error {
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == ':' || r == '/' || r == 0x7f }) || len(s) > 256 {
		return errors.New("it is not the name or number of a group")
	}
	return nil
}

func checkAddr(s string) error {
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("it is not host:port, e.g. 127.0.0.1:9464")
	}
	if _, err := parseInt(port, 0, 65535); err != nil {
		return fmt.Errorf("port %q: %w", port, err)
	}
	if strings.ContainsAny(host, " \t/\x00") {
		return fmt.Errorf("%q is not a host", host)
	}
	return nil
}

func formatDuration(d time.Duration) string {
	s := d.String() // 30m0s
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Loopback tells whether an address host:port can be reached from this machine only. A name counts only if it is
// localhost: what another name means can change after it was checked.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func at(from Origin) string {
	if from.Where == "" {
		return ""
	}
	return from.Where + ": "
}

func unknownKey(key string, from Origin) error {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.Name
		if strings.HasPrefix(k.Name, key+".") {
			return errs.New(errs.ConfigInvalid, key, "indent its keys below it",
				"%skey %q is a section, it cannot have a value of its own", at(from), key)
		}
	}
	if rest, ok := strings.CutPrefix(key, datasetsKey+"."); ok {
		name := rest
		if i := strings.LastIndexByte(rest, '.'); i > 0 {
			name = rest[:i]
		}
		for _, a := range datasetAttributes {
			names = append(names, datasetsKey+"."+name+"."+a)
		}
	}
	hint := "larder config default prints every key"
	if n := Nearest(key, names); n != "" {
		hint = "did you mean " + n + "?"
	}
	return errs.New(errs.ConfigInvalid, key, hint, "%sunknown key %q", at(from), key)
}

func badValue(key string, from Origin, err error) error {
	if f, ok := errors.AsType[*errs.Error](err); ok {
		return errs.New(errs.ConfigInvalid, key, f.Hint, "%s%s", named(key, from), f.Message)
	}
	k := lookup(key)
	kind := k.Kind
	if a, ok := articles[kind]; ok {
		kind = a
	}
	return errs.New(errs.ConfigInvalid, key, "write "+kind, "%s%s", named(key, from), err)
}

// named is at with the key, unless the place is the key already: "--set tiers.decoded: ".
func named(key string, from Origin) string {
	if strings.HasSuffix(from.Where, " "+key) {
		return at(from)
	}
	return at(from) + key + ": "
}

// articles makes the kinds of values words of a sentence.
var articles = map[string]string{"number": "a whole number", "number | auto": "a whole number or auto", "size": "a size such as 8GiB", "bytes/s": "bytes a second such as 20MB/s", "duration": "a duration such as 30s",
	"path": "a path", "host:port": "an address such as 127.0.0.1:9464"}

// Nearest is nearest.Word for dotted keys: when the whole key is near none, its last part counts alone, so that decoded
// or tier.decoded finds tiers.decoded.
func Nearest(typed string, keys []string) string {
	if k := nearest.Word(typed, keys); k != "" {
		return k
	}
	last := func(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }
	for _, k := range keys {
		if l := last(k); l != k && len(l) > 3 && nearest.Distance(strings.ToLower(last(typed[max(0, len(typed)-64):])), l) <= 1 {
			return k
		}
	}
	return ""
}

// expand makes a path absolute, so that the daemon and what it starts mean the same file.
func expand(path string) string {
	if path == "" {
		return ""
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
