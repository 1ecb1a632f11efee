package config

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"larder/internal/errs"
	"larder/internal/units"
)

// Resolved is a configuration in plain numbers for one machine.
type Resolved struct {
	Machine int64 // memory percentages refer to: the cgroup limit, or RAM
	Memory  int64 // memory.limit in bytes
	MaxRing int64 // bytes all rings together may take
	// MaxRecord is the bytes of the largest sample of a worker process.
	MaxRecord int64
	Own       int64 // bytes of Memory that are neither tiers nor rings: heap, indexes, samples in work

	Total, Encoded, Decoded, Augmented                 int64 // bytes; auto tiers get a first split that the model replaces
	TotalAuto, EncodedAuto, DecodedAuto, AugmentedAuto bool  // the setting was auto

	Workers                   int
	MaxMemory                 int64  // bytes one image may take
	StorageLimit, StorageIOPS int64  // bytes and reads a second, 0 = no limit
	IndexDir                  string // "" = indexes are not saved
	DiskDir                   string // "" = no disk tier
	DiskSize                  int64  // bytes of it
	StateDir                  string // "" = nothing survives the daemon
	StateAuto                 bool   // it was not configured: the daemon may do without
	Orders                    int64  // bytes of the orders of epochs that are over

	Quotas []Quota // of datasets, by name
}

// Quota is a dataset's floor and cap in bytes; a negative cap is none.
type Quota struct {
	Dataset    string
	Floor, Cap int64
}

// Validate checks everything that can be checked without knowing the machine. All mistakes are in the error.
func (c *Config) Validate() error {
	var problems []error
	bad := func(key, hint, format string, args ...any) {
		problems = append(problems, errs.New(errs.ConfigInvalid, key, hint, "%s", fmt.Sprintf(format, args...)))
	}
	c.validateTCP(bad)
	fixed := func(s Size) bool { return !s.IsAuto() && !s.IsPercent() }
	// What compares bytes with bytes is wrong on every machine; with percentages Resolve decides.
	t := c.Tiers
	if fixed(c.Memory.Limit) && c.Memory.Limit.Of(0) < minMemory {
		bad("memory.limit", "raise it, or leave it at auto", "memory.limit %s is less than the %s the daemon itself needs",
			c.Memory.Limit, FormatBytes(minMemory))
	}
	percent := 0.0
	var parts []string
	for _, p := range tierSizes(t) {
		if p.size.IsPercent() {
			percent += p.size.percent
			parts = append(parts, fmt.Sprintf("%s %s", p.key, p.size))
		}
	}
	if percent > 100 {
		bad("tiers", "lower one of them", "%s are more than 100%% of tiers.total", strings.Join(parts, " + "))
	}
	if err := checkTiers(c, 0, func(s Size) (int64, bool) { return s.Of(0), fixed(s) }); err != nil {
		problems = append(problems, err)
	}
	c.validateDisk(bad)
	floors := 0.0
	for _, d := range c.Datasets {
		floors += d.Floor.percent
		if f, l := d.Floor, d.Cap; !l.IsAuto() && f.IsPercent() == l.IsPercent() &&
			(f.percent > l.percent || f.bytes > l.bytes) {
			bad(datasetsKey+"."+d.Name, "raise the cap or lower the floor", "dataset %s: floor %s exceeds cap %s", d.Name, f, l)
		}
	}
	if floors > 100 {
		bad(datasetsKey, "lower one of them", "the floors of datasets are %g%% of the machine together", floors)
	}
	if fixed(c.Jobs.MaxRing) && c.Jobs.MaxRing.Of(0) == 0 {
		bad("jobs.max_ring", "raise it, or leave it at auto", "jobs.max_ring 0 leaves no room for a batch")
	}
	if fixed(c.Prep.MaxMemory) && c.Prep.MaxMemory.Of(0) == 0 {
		bad("prep.max_memory", "raise it, or leave it at auto", "prep.max_memory 0 leaves no room for an image")
	}
	if s := c.Log.MaxSize; s.IsPercent() || fixed(s) && s.Of(0) < leastLog {
		bad("log.max_size", "write bytes like 4MiB, or leave it at auto",
			"log.max_size %s: it must be bytes, %s at the least", s, FormatBytes(leastLog))
	}
	return errors.Join(problems...)
}

// validateDisk checks the disk tier: who names a directory says how large it may be.
func (c *Config) validateDisk(bad func(key, hint, format string, args ...any)) {
	switch d := c.Tiers.Disk; {
	case d.Size.IsPercent():
		bad("tiers.disk.size", "write bytes like 200GiB", "tiers.disk.size %s: a percentage of memory says nothing of a disk",
			d.Size)
	case d.Dir != "" && d.Size.IsAuto():
		bad("tiers.disk.size", "write bytes like 200GiB", "tiers.disk.dir is %s, and tiers.disk.size is not set",
			d.Dir)
	case d.Dir == "" && !d.Size.IsAuto():
		bad("tiers.disk.dir", "name a directory on a fast local disk", "tiers.disk.size is %s, and tiers.disk.dir is not set",
			d.Size)
	case d.Size.Of(0) > 0 && d.Size.Of(0) < leastDisk:
		bad("tiers.disk.size", "raise it; 0 keeps nothing", "tiers.disk.size %s is less than %s", d.Size,
			FormatBytes(leastDisk))
	}
}

// validateTCP checks what gRPC on TCP needs: who listens must say who may call.
func (c *Config) validateTCP(bad func(key, hint, format string, args ...any)) {
	g := c.GRPC
	switch {
	case g.Listen == "":
		if g.TLSCert != "" || g.TLSKey != "" || g.TLSClientCA != "" || g.TokenFile != "" {
			bad("grpc.listen", "set grpc.listen, or remove them",
				"files of TLS or a token file are set under grpc, but gRPC does not listen on TCP")
		}
		return
	case (g.TLSCert == "") != (g.TLSKey == ""):
		bad("grpc.tls_cert", "set both, or none of them", "TLS needs grpc.tls_cert and grpc.tls_key, only one of them is set")
	case g.TLSCert == "" && !g.Insecure:
		bad("grpc.listen", "set grpc.tls_cert and grpc.tls_key, or grpc.insecure: true on a loopback address",
			"grpc.listen %s without TLS", g.Listen)
	case g.TLSCert == "" && !Loopback(g.Listen):
		bad("grpc.insecure", "listen on 127.0.0.1, or set grpc.tls_cert and grpc.tls_key",
			"grpc.insecure is for loopback addresses only, %s can be reached from other machines", g.Listen)
	case g.TLSCert == "" && g.TLSClientCA != "":
		bad("grpc.tls_client_ca", "set grpc.tls_cert and grpc.tls_key too",
			"certificates of callers (grpc.tls_client_ca) need TLS")
	}
	if g.TokenFile == "" && g.TLSClientCA == "" {
		bad("grpc.token_file", "write a token with: (umask 077; openssl rand -hex 32 > FILE), and name the file with "+
			"--token-file or grpc.token_file; or set grpc.tls_client_ca",
			"grpc.listen %s would admit every caller that can reach it, at least every user of this machine", g.Listen)
	}
}

// minMemory is the least memory.limit: below it the runtime, the index and one small ring do not fit.
const minMemory = 64 << 20

// perWorker is what a worker has in work: what it read, what it decodes, and four decoded samples that no tier holds
// (docs/architecture.md), at 1 MiB each; a photograph of ImageNet has half of that.
const perWorker = 8 << 20

// perChild is what a worker takes beside that with prep.isolation process: a process that decodes, of which half is
// measured (docs/measurements/isolation.md), and photographs on their way to and from it.
const perChild = 16 << 20

// leastImage is what one image may take on the smallest machine, unless the configuration says less: a photograph of 20
// million pixels.
const leastImage = 64 << 20

type tierSize struct {
	key  string
	size Size
}

func tierSizes(t Tiers) []tierSize {
	return []tierSize{{"tiers.encoded", t.Encoded}, {"tiers.decoded", t.Decoded}, {"tiers.augmented", t.Augmented}}
}

// checkTiers compares tiers with tiers.total and memory.limit, as far as value knows them. limit is memory.limit in
// bytes, 0 = ask value. A tier's percentage is of tiers.total, so it fits where that is auto.
func checkTiers(c *Config, limit int64, value func(Size) (int64, bool)) error {
	sum, parts := int64(0), []string(nil)
	total, totalKnown := value(c.Tiers.Total)
	totalKnown = totalKnown && !c.Tiers.Total.IsAuto()
	for _, p := range tierSizes(c.Tiers) {
		n, ok := value(p.size)
		if p.size.IsPercent() {
			n, ok = p.size.Of(total), totalKnown
		}
		if ok && !p.size.IsAuto() {
			sum += n
			parts = append(parts, fmt.Sprintf("%s %s", p.key, describe(p.size, n)))
		}
	}
	verb := "exceeds"
	if len(parts) > 1 {
		verb = "exceed"
	}
	what := strings.Join(parts, " + ")
	exceed := func(hint, over string, n int64) error {
		if len(parts) > 1 {
			over += fmt.Sprintf(" (%s against %s)", units.Size(sum), units.Size(n))
		}
		return errs.New(errs.ResourceExceeded, "tiers", hint, "%s %s %s", what, verb, over)
	}
	limitKnown, limitText := limit > 0, ""
	if !limitKnown {
		limit, limitKnown = value(c.Memory.Limit)
		limitKnown = limitKnown && !c.Memory.Limit.IsAuto()
	}
	limitText = "memory.limit " + describe(c.Memory.Limit, limit)
	if totalKnown && sum > total {
		return exceed("lower a tier or raise tiers.total", "tiers.total "+describe(c.Tiers.Total, total), total)
	}
	if totalKnown && limitKnown && total > limit {
		return errs.New(errs.ResourceExceeded, "tiers.total", "lower tiers.total or raise memory.limit",
			"tiers.total %s exceeds %s", describe(c.Tiers.Total, total), limitText)
	}
	if !totalKnown && limitKnown && sum > limit {
		return exceed("lower a tier or raise memory.limit", limitText, limit)
	}
	return nil
}

// needed is the total of which the fixed tiers are what the others' percentages leave.
func needed(t Tiers) (int64, error) {
	bytes, percent, whole := int64(0), 0.0, ""
	for _, p := range tierSizes(t) {
		bytes += p.size.bytes
		percent += p.size.percent
		if p.size.IsPercent() {
			whole += " " + p.key
		}
	}
	switch {
	case bytes == 0:
		return 0, nil
	case percent >= 100:
		return 0, errs.New(errs.ResourceExceeded, "tiers", "lower a percentage, or write it as bytes",
			"%s take all of tiers.total, which leaves no room for tiers of %s",
			strings.TrimSpace(whole), units.Size(bytes))
	}
	return min(int64(math.Ceil(float64(bytes)/(1-percent/100))), maxBytes), nil
}

// describe writes a size and, where that is not the same, its bytes: "30% (= 4.8GiB)".
func describe(s Size, n int64) string {
	if s.IsAuto() || s.IsPercent() {
		return fmt.Sprintf("%s (= %s)", s, units.Size(n))
	}
	return s.String()
}

// Resolve turns sizes into bytes on a machine. The configuration is validated first; sizes that exceed a limit are
// *errs.Error of reason RESOURCE_EXCEEDED that name both numbers and the fix.
func (c *Config) Resolve(m Machine) (Resolved, error) {
	if err := c.Validate(); err != nil {
		return Resolved{}, err
	}
	base := m.Memory()
	if base <= 0 {
		return Resolved{}, errs.New(errs.Internal, "memory.limit", "set memory.limit in bytes",
			"the size of this machine's memory is unknown")
	}
	r := Resolved{Machine: base, StorageLimit: c.Source.StorageLimit, StorageIOPS: int64(c.Source.StorageIOPS)}
	for _, step := range []func(*Config, Machine) error{r.limit, r.workers, r.rings, r.tiers, r.quotas} {
		if err := step(c, m); err != nil {
			return Resolved{}, err
		}
	}
	r.folders(c, m)
	return r, nil
}

// limit sets the memory of the daemon.
func (r *Resolved) limit(c *Config, m Machine) error {
	r.Memory = c.Memory.Limit.Of(r.Machine)
	if c.Memory.Limit.IsAuto() {
		r.Memory = r.Machine / 2
	}
	if r.Memory > r.Machine {
		return errs.New(errs.ResourceExceeded, "memory.limit", "lower memory.limit",
			"memory.limit %s exceeds the %s of this machine (%s)",
			describe(c.Memory.Limit, r.Memory), units.Size(r.Machine), m.Source())
	}
	return checkTiers(c, r.Memory, func(s Size) (int64, bool) { return s.Of(r.Machine), true })
}

// workers sets the number of workers and the daemon's own part of memory: an eighth of the limit, or what the workers
// need if that is more, for the heap, indexes and samples in work.
func (r *Resolved) workers(c *Config, m Machine) error {
	r.Workers = c.Prep.Workers
	each := int64(perWorker)
	if c.Prep.Isolation == "process" {
		each += perChild
	}
	if r.Workers == 0 { // as many as an eighth of the limit has room for
		r.Workers = int(max(1, min(int64(m.CPUs), r.Memory/8/each)))
	}
	r.Own = max(r.Memory/8, int64(r.Workers)*each)
	r.MaxMemory = c.Prep.MaxMemory.Of(r.Machine)
	r.MaxRecord = c.Workers.MaxRecord.Of(r.Machine)
	if c.Workers.MaxRecord.IsAuto() {
		r.MaxRecord = min(256<<20, max(r.Own, 1<<20))
	}
	if c.Prep.MaxMemory.IsAuto() {
		r.MaxMemory = min(1<<30, max(r.Own, leastImage))
	}
	return nil
}

// rings sets the memory of rings: at least a sixteenth of the limit, because a daemon that cannot deliver is useless.
// With auto, tiers raises it to what they leave.
func (r *Resolved) rings(c *Config, _ Machine) error {
	r.MaxRing = c.Jobs.MaxRing.Of(r.Machine)
	if c.Jobs.MaxRing.IsAuto() {
		r.MaxRing = r.Memory / 16
	}
	if r.MaxRing > r.Memory {
		return errs.New(errs.ResourceExceeded, "jobs.max_ring", "lower jobs.max_ring or raise memory.limit",
			"jobs.max_ring %s exceeds memory.limit %s",
			describe(c.Jobs.MaxRing, r.MaxRing), describe(c.Memory.Limit, r.Memory))
	}
	return nil
}

// tiers sets the memory of the tiers, and of rings that are auto.
func (r *Resolved) tiers(c *Config, _ Machine) error {
	t := c.Tiers
	r.TotalAuto, r.EncodedAuto = t.Total.IsAuto(), t.Encoded.IsAuto()
	r.DecodedAuto, r.AugmentedAuto = t.Decoded.IsAuto(), t.Augmented.IsAuto()
	r.Total = t.Total.Of(r.Machine)
	if r.TotalAuto {
		// Fixed tiers may ask for more than the automatic total, as far as there is room.
		need, err := needed(t)
		if err != nil {
			return err
		}
		r.Total = max(min(r.Memory/2, r.Memory-r.Own-r.MaxRing), need, 0)
	}
	r.Encoded, r.Decoded, r.Augmented = t.Encoded.Of(r.Total), t.Decoded.Of(r.Total), t.Augmented.Of(r.Total)
	fixed := r.Encoded + r.Decoded + r.Augmented
	if r.Total+r.MaxRing+r.Own > r.Memory {
		rings := "jobs.max_ring " + describe(c.Jobs.MaxRing, r.MaxRing)
		if c.Jobs.MaxRing.IsAuto() {
			rings = "at least " + units.Size(r.MaxRing) + " for rings"
		}
		return errs.New(errs.ResourceExceeded, "memory.limit",
			"lower tiers.total, jobs.max_ring or prep.workers, or raise memory.limit",
			"tiers of %s, %s and %s for the daemon itself and the samples that %d workers have in work, together %s, exceed "+
				"memory.limit %s",
			units.Size(r.Total), rings, units.Size(r.Own), r.Workers, units.Size(r.Total+r.MaxRing+r.Own),
			describe(c.Memory.Limit, r.Memory))
	}
	if c.Jobs.MaxRing.IsAuto() {
		r.MaxRing = r.Memory - r.Total - r.Own
	}
	// The first split of what is left: decoded saves most time per byte as long as nothing was measured.
	switch rest := r.Total - fixed; {
	case r.DecodedAuto:
		r.Decoded = rest
	case r.EncodedAuto:
		r.Encoded = rest
	case r.AugmentedAuto:
		r.Augmented = rest
	}
	return nil
}

// quotas sets the floors and caps of datasets; the total of the tiers is known.
func (r *Resolved) quotas(c *Config, _ Machine) error {
	floors := int64(0)
	for _, d := range c.Datasets {
		q := Quota{Dataset: d.Name, Floor: d.Floor.Of(r.Machine), Cap: -1}
		if !d.Cap.IsAuto() {
			q.Cap = d.Cap.Of(r.Machine)
		}
		if q.Floor == 0 && q.Cap < 0 {
			continue
		}
		if q.Cap >= 0 && q.Floor > q.Cap {
			return errs.New(errs.ConfigInvalid, datasetsKey+"."+d.Name, "raise the cap or lower the floor",
				"dataset %s: floor %s exceeds cap %s", d.Name, describe(d.Floor, q.Floor), describe(d.Cap, q.Cap))
		}
		if floors += q.Floor; floors > r.Total {
			return errs.New(errs.ResourceExceeded, datasetsKey, "lower a floor or raise tiers.total",
				"the floors of datasets together, %s, exceed tiers.total %s",
				units.Size(floors), describe(c.Tiers.Total, r.Total))
		}
		r.Quotas = append(r.Quotas, q)
	}
	return nil
}

// folders sets where state and indexes are kept.
func (r *Resolved) folders(c *Config, m Machine) {
	switch r.Orders = 1 << 30; c.State.Dir {
	case "auto":
		r.StateDir, r.StateAuto = m.StateDir, true
	case "none", "":
	default:
		r.StateDir = expand(c.State.Dir)
	}
	if !c.State.Orders.IsAuto() {
		r.Orders = c.State.Orders.Of(r.Machine)
	}
	switch c.Source.IndexDir {
	case "auto":
		r.IndexDir = m.IndexDir
	default:
		r.IndexDir = expand(c.Source.IndexDir)
	}
	r.DiskDir, r.DiskSize = expand(c.Tiers.Disk.Dir), c.Tiers.Disk.Size.Of(0)
}

const (
	leastEntry = 4096    // what the smallest entry of a tier takes: a page
	leastTotal = 1 << 20 // some photographs; below it every tier is in vain
	leastDisk  = 1 << 20 // some photographs
	leastRing  = 1 << 20 // a batch of two photographs of 224 x 224 in float32; a ring has several slots
	leastRate  = 100_000 // a photograph a second
)

// Warnings say which sizes are allowed and probably not meant.
func (r *Resolved) Warnings() []string {
	var out []string
	if r.Total > 0 && r.Total < leastTotal {
		out = append(out, fmt.Sprintf("tiers.total of %s holds next to nothing; 0 turns the tiers off, 8GiB and 30%% are "+
			"sizes", units.Size(r.Total)))
	}
	if r.MaxRing < leastRing {
		out = append(out, fmt.Sprintf("jobs.max_ring of %s has no room for the batches of most jobs, which will be refused",
			units.Size(r.MaxRing)))
	}
	if r.StorageLimit > 0 && r.StorageLimit < leastRate {
		out = append(out, fmt.Sprintf("source.storage_limit of %s a second is less than a photograph a second; 20MB/s is "+
			"a limit", units.Size(r.StorageLimit)))
	}
	fixed := int64(0)
	for _, t := range []struct {
		key   string
		bytes int64
		auto  bool
	}{{"tiers.encoded", r.Encoded, r.EncodedAuto}, {"tiers.decoded", r.Decoded, r.DecodedAuto},
		{"tiers.augmented", r.Augmented, r.AugmentedAuto}} {
		if !t.auto && t.bytes > 0 && t.bytes < leastEntry {
			out = append(out, fmt.Sprintf("%s of %s holds not one sample; 0 turns a tier off, 8GiB and 30%% are sizes", t.key,
				units.Size(t.bytes)))
		}
		fixed += t.bytes
	}
	if left := r.Total - fixed; !r.TotalAuto && !r.EncodedAuto && !r.DecodedAuto && !r.AugmentedAuto && left > 0 {
		out = append(out, fmt.Sprintf("%s of tiers.total %s belong to no tier: make one of them auto, or lower the total",
			units.Size(left), units.Size(r.Total)))
	}
	return out
}
