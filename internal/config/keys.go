package config

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

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
	Doc   string // what it means, as half a sentence; "empty = …" and the like say what special values mean
	See   string // the page of docs that says more; "" = none
	Apply Apply
	path  []string // of a key whose parts may hold dots; nil = Name at its dots
	value
}

// Env is the environment variable that sets the key: LARDER_TIERS__DECODED for tiers.decoded.
func (k Key) Env() string { return EnvPrefix + strings.ToUpper(strings.ReplaceAll(k.Name, ".", "__")) }

// Policies lists the eviction policies that a tier may name. A test of cmd/larder compares it with those that exist.
var Policies = []string{
	"need", "refcount", "minio", "minio-preselect", "minio-partitioned", "lru", "fifo", "random", "2-random", "w-tinylfu",
	"s3-fifo", "sieve", "tinylfu",
}

// MostJobs is how many jobs a daemon can have at once. A test of internal/daemon compares it with what the sampler can
// distinguish.
const MostJobs = 64

// Models lists what can split memory, the default first. A test of internal/daemon compares it with the models that
// exist.
var Models = []string{"bottleneck", "seneca", "simple"}

// Keys lists every key, in the order of the file.
func Keys() []Key { return slices.Clone(keys) }

func lookup(name string) *Key {
	if i, ok := byName[name]; ok {
		return &keys[i]
	}
	if k := datasetKey(name); k != nil {
		return k
	}
	return storeKey(name)
}

var byName = func() map[string]int {
	m := map[string]int{}
	for i, k := range keys {
		m[k.Name] = i
	}
	return m
}()

var keys = []Key{
	{Name: "socket", Kind: "path", Apply: Restart,
		Doc:   "Unix socket of sessions and gRPC; empty = the user's default",
		value: textOf(func(c *Config) *string { return &c.Socket }, checkPath)},
	{Name: "socket_group", Kind: "group", Apply: Restart, See: "security.md",
		Doc:   "name or number of a group whose members may use the socket too; empty = only the daemon's user and root",
		value: textOf(func(c *Config) *string { return &c.SocketGroup }, checkGroup)},
	{Name: "http", Kind: "host:port", Apply: Restart, See: "metrics.md",
		Doc:   "address of metrics, health and JSON; empty = off",
		value: textOf(func(c *Config) *string { return &c.HTTP.Listen }, checkAddr)},
	{Name: "http_hosts", Kind: "names", Apply: Restart, See: "security.md",
		Doc: "host names, separated by commas, that HTTP answers to beside localhost, the host of http and the address " +
			"that a caller reached",
		value: textOf(func(c *Config) *string { return &c.HTTP.Hosts }, checkHosts)},
	{Name: "grpc.listen", Kind: "host:port", Apply: Restart, See: "security.md",
		Doc:   "address of gRPC over TCP; empty = off",
		value: textOf(func(c *Config) *string { return &c.GRPC.Listen }, checkAddr)},
	{Name: "grpc.tls_cert", Kind: "path", Apply: Restart,
		Doc:   "PEM certificate of the TCP listener",
		value: textOf(func(c *Config) *string { return &c.GRPC.TLSCert }, checkPath)},
	{Name: "grpc.tls_key", Kind: "path", Apply: Restart,
		Doc:   "PEM key of the TCP listener",
		value: textOf(func(c *Config) *string { return &c.GRPC.TLSKey }, checkPath)},
	{Name: "grpc.tls_client_ca", Kind: "path", Apply: Restart,
		Doc:   "PEM authorities; TCP callers must show a certificate of one of them",
		value: textOf(func(c *Config) *string { return &c.GRPC.TLSClientCA }, checkPath)},
	{Name: "grpc.token_file", Kind: "path", Apply: Restart,
		Doc:   "tokens of TCP callers, one per line; read again at every call",
		value: textOf(func(c *Config) *string { return &c.GRPC.TokenFile }, checkPath)},
	{Name: "grpc.insecure", Kind: "true | false", Apply: Restart,
		Doc:   "TCP without TLS; only on a loopback address, and with a token",
		value: boolOf(func(c *Config) *bool { return &c.GRPC.Insecure })},
	{Name: "memory.limit", Kind: "size", Apply: Restart,
		Doc:   "memory the daemon may use; auto = 50 % of the cgroup limit, or of RAM",
		value: sizeOf(func(c *Config) *Size { return &c.Memory.Limit })},
	{Name: "tiers.total", Kind: "size", Apply: Live,
		Doc:   "memory of all tiers; auto = half of memory.limit",
		value: sizeOf(func(c *Config) *Size { return &c.Tiers.Total })},
	{Name: "tiers.encoded", Kind: "size", Apply: Live,
		Doc:   "memory of encoded samples, the stored bytes; auto = the model decides",
		value: sizeOf(func(c *Config) *Size { return &c.Tiers.Encoded })},
	{Name: "tiers.decoded", Kind: "size", Apply: Live,
		Doc:   "memory of decoded samples; auto = the model decides",
		value: sizeOf(func(c *Config) *Size { return &c.Tiers.Decoded })},
	{Name: "tiers.augmented", Kind: "size", Apply: Live,
		Doc:   "memory of augmented samples; auto = the model decides",
		value: sizeOf(func(c *Config) *Size { return &c.Tiers.Augmented })},
	{Name: "tiers.policy.encoded", Kind: "policy", Apply: Restart, See: "policies.md",
		Doc:   "eviction policy of the encoded tier",
		value: textOf(func(c *Config) *string { return &c.Tiers.Policy.Encoded }, onePolicy)},
	{Name: "tiers.policy.decoded", Kind: "policy", Apply: Restart,
		Doc:   "eviction policy of the decoded tier",
		value: textOf(func(c *Config) *string { return &c.Tiers.Policy.Decoded }, onePolicy)},
	{Name: "tiers.policy.augmented", Kind: "policy", Apply: Restart,
		Doc:   "eviction policy of the augmented tier",
		value: textOf(func(c *Config) *string { return &c.Tiers.Policy.Augmented }, onePolicy)},
	{Name: "tiers.model", Kind: strings.Join(Models, " | "), Apply: Live, See: "tiers.md",
		Doc:   "model that splits the memory of auto tiers; simple = a rule of thumb",
		value: textOf(func(c *Config) *string { return &c.Tiers.Model }, oneOf("a model", Models...))},
	{Name: "tiers.fairness", Kind: "0 to 1", Apply: Live,
		Doc:   "part of its fair share that the model leaves every job; 0 = only the sum counts",
		value: value{setFairness, func(c *Config) string { return strconv.FormatFloat(c.Tiers.Fairness, 'f', -1, 64) }}},
	{Name: "tiers.verify_every", Kind: "number", Apply: Restart,
		Doc:   "verify the checksum of a cached sample on every n-th read; 1 = always",
		value: intOf(func(c *Config) *int { return &c.Tiers.VerifyEvery }, 1, 1<<30)},
	{Name: "tiers.disk.dir", Kind: "path", Apply: Restart, See: "guides/memory.md",
		Doc:   "directory of the disk tier, on a fast local disk; empty = none",
		value: textOf(func(c *Config) *string { return &c.Tiers.Disk.Dir }, checkPath)},
	{Name: "tiers.disk.size", Kind: "size", Apply: Live,
		Doc:   "bytes that the disk tier may have, such as 200GiB; needed with tiers.disk.dir",
		value: sizeOf(func(c *Config) *Size { return &c.Tiers.Disk.Size })},
	{Name: "prep.workers", Kind: "number | auto", Apply: Restart,
		Doc:   "goroutines that prepare samples; auto = one per core",
		value: orAuto(func(c *Config) *int { return &c.Prep.Workers }, 1, 4096)},
	{Name: "prep.max_pixels", Kind: "number", Apply: Restart,
		Doc:   "pixels of an image; a larger image is a bad sample, and takes no memory",
		value: intOf(func(c *Config) *int64 { return &c.Prep.MaxPixels }, 1, math.MaxInt32)},
	{Name: "prep.max_scans", Kind: "number", Apply: Restart,
		Doc:   "scans of a JPEG image; large images may have fewer",
		value: intOf(func(c *Config) *int { return &c.Prep.MaxScans }, 1, 1<<20)},
	{Name: "prep.max_memory", Kind: "size", Apply: Restart,
		Doc: "memory one image may take, stored or while it is decoded; " +
			"auto = 1 GiB, or an eighth of memory.limit if that is less",
		value: sizeOf(func(c *Config) *Size { return &c.Prep.MaxMemory })},
	{Name: "prep.decode_timeout", Kind: "duration", Apply: Restart,
		Doc:   "processor time that decoding one image may take; 0 = no limit",
		value: durationOf(func(c *Config) *time.Duration { return &c.Prep.DecodeTimeout }, 10*time.Millisecond, time.Hour)},
	{Name: "prep.on_corrupt", Kind: "error | skip | accept", Apply: Restart,
		Doc: "what becomes of JPEG images that libjpeg warns about: " +
			"error = a bad sample, skip = left out silently, accept = decoded as far as possible",
		value: textOf(func(c *Config) *string { return &c.Prep.OnCorrupt }, oneOf("an answer", "error", "skip", "accept"))},
	{Name: "prep.isolation", Kind: "none | process", Apply: Restart, See: "security.md#decoders-in-processes-of-their-own",
		Doc: "where images are decoded: none = in the daemon, process = in guarded processes of their own, " +
			"as many as prep.workers",
		value: textOf(func(c *Config) *string { return &c.Prep.Isolation }, oneOf("an isolation", "none", "process"))},
	{Name: "workers.window", Kind: "number", Apply: Restart, See: "protocol.md#workers",
		Doc:   "samples that a worker process of a client may have at once; quick ones are given up to 64 at a time",
		value: intOf(func(c *Config) *int { return &c.Workers.Window }, 1, 64)},
	{Name: "workers.max_record", Kind: "size", Apply: Restart,
		Doc: "bytes of the largest sample that a worker process may make; a larger one is a bad sample; " +
			"auto = 256 MiB, or an eighth of memory.limit if that is less",
		value: sizeOf(func(c *Config) *Size { return &c.Workers.MaxRecord })},
	{Name: "source.index_dir", Kind: "path | auto", Apply: Restart,
		Doc:   "folder of saved indexes; auto = in the user's cache folder; empty = no index is saved",
		value: textOf(func(c *Config) *string { return &c.Source.IndexDir }, checkPath)},
	{Name: "source.storage_limit", Kind: "bytes/s", Apply: Live,
		Doc:   "bytes read from storage per second, all reads together; empty = no limit",
		value: value{setStorageLimit, storageLimit}},
	{Name: "source.storage_iops", Kind: "number", Apply: Live,
		Doc:   "reads from storage per second, all together; 0 = no limit",
		value: intOf(func(c *Config) *int { return &c.Source.StorageIOPS }, 0, 1e9)},
	{Name: "source.readers", Kind: "number | auto", Apply: Restart, See: "guides/stores.md",
		Doc:   "reads under way at once where storage is slow; auto = 16, buckets want more",
		value: orAuto(func(c *Config) *int { return &c.Source.Readers }, 1, 1024)},
	{Name: "source.outage_timeout", Kind: "duration", Apply: Live, See: "guarantees.md#storage-that-fails",
		Doc: "how long next() waits for storage that fails as a whole, before it raises an error; 0 = for ever",
		value: durationOf(func(c *Config) *time.Duration { return &c.Source.OutageTimeout }, time.Second,
			30*24*time.Hour)},
	{Name: "state.dir", Kind: "path | auto | none", Apply: Restart, See: "guarantees.md",
		Doc: "folder of what survives the daemon: jobs, their positions, their orders; " +
			"auto = the user's own; none = memory only",
		value: textOf(func(c *Config) *string { return &c.State.Dir }, checkPath)},
	{Name: "state.orders", Kind: "size", Apply: Restart,
		Doc:   "disk space for the orders of finished epochs; auto = 1 GiB",
		value: sizeOf(func(c *Config) *Size { return &c.State.Orders })},
	{Name: "jobs.lease", Kind: "duration", Apply: Restart,
		Doc:   "how long the daemon keeps a rank whose process has ended",
		value: value{setLease, func(c *Config) string { return formatDuration(c.Jobs.Lease) }}},
	{Name: "jobs.idle_timeout", Kind: "duration", Apply: Restart,
		Doc:   "how long a client may take no batch before it loses its rank and the memory of its ring; 0 = no limit",
		value: durationOf(func(c *Config) *time.Duration { return &c.Jobs.IdleTimeout }, time.Second, 30*24*time.Hour)},
	{Name: "jobs.max", Kind: "number", Apply: Restart,
		Doc:   "live jobs; more are refused",
		value: intOf(func(c *Config) *int { return &c.Jobs.Max }, 1, MostJobs)},
	{Name: "jobs.max_ring", Kind: "size", Apply: NewJobs,
		Doc:   "shared memory of all rings together; auto = what memory.limit leaves beside the tiers",
		value: sizeOf(func(c *Config) *Size { return &c.Jobs.MaxRing })},
	{Name: "sampler.seed", Kind: "number", Apply: Restart,
		Doc:   "seed of every draw that no job's own seed fixes",
		value: value{setSeed, func(c *Config) string { return strconv.FormatUint(c.Sampler.Seed, 10) }}},
	{Name: "log.level", Kind: "debug | info | warn | error", Apply: Live,
		Doc:   "lowest level that is logged",
		value: textOf(func(c *Config) *string { return &c.Log.Level }, oneOf("a level", "debug", "info", "warn", "error"))},
	{Name: "log.format", Kind: "text | json", Apply: Restart,
		Doc:   "format of log lines",
		value: textOf(func(c *Config) *string { return &c.Log.Format }, oneOf("a format", "text", "json"))},
	{Name: "log.file", Kind: "path", Apply: Restart,
		Doc:   "file of the log; empty = standard error",
		value: textOf(func(c *Config) *string { return &c.Log.File }, checkPath)},
	{Name: "log.max_size", Kind: "size", Apply: Restart,
		Doc: "bytes at which log.file becomes FILE.1 and a new file begins, so both have at most twice this; " +
			"auto = 4 MiB",
		value: sizeOf(func(c *Config) *Size { return &c.Log.MaxSize })},
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
	if strings.HasPrefix(key, storesKey+".") {
		names = append(names, storeNames(key)...)
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
var articles = map[string]string{
	"number": "a whole number", "number | auto": "a whole number or auto", "size": "a size such as 8GiB",
	"bytes/s": "bytes a second such as 20MB/s", "duration": "a duration such as 30s", "path": "a path",
	"host:port": "an address such as 127.0.0.1:9464",
}

// Nearest is nearest.Word for dotted keys: when the whole key is near none, its last part counts alone, so that decoded
// or tier.decoded finds tiers.decoded.
func Nearest(typed string, keys []string) string {
	if k := nearest.Word(typed, keys); k != "" {
		return k
	}
	last := func(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }
	for _, k := range keys {
		if l := last(k); l != k && len(l) > 3 && nearest.Distance(strings.ToLower(last(typed[max(0, len(typed)-64):])),
			l) <= 1 {
			return k
		}
	}
	return ""
}
