package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"pgregory.net/rapid"

	"larder/internal/errs"
)

const gib = int64(1) << 30

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse("larder.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDefaultsRunOnTwoGiB(t *testing.T) {
	r, err := Default().Resolve(Machine{CPUs: 2, RAM: 2 * gib})
	if err != nil {
		t.Fatal(err)
	}
	if r.Memory != gib || r.Workers != 2 || r.Total != gib/2 || r.Decoded != r.Total || r.Encoded != 0 {
		t.Errorf("resolved to %+v", r)
	}
	if used := r.Total + r.MaxRing + r.Memory/8; used > r.Memory {
		t.Errorf("tiers %d + rings %d + own eighth exceed the limit %d", r.Total, r.MaxRing, r.Memory)
	}
	// One batch of 64 x 3 x 224 x 224 bytes in prefetch + 2 slots must fit.
	if need := int64(64 * 3 * 224 * 224 * 4); r.MaxRing < need {
		t.Errorf("a ring may have %d bytes, less than %d", r.MaxRing, need)
	}
}

func TestFileSetsAndOrigins(t *testing.T) {
	file := filepath.Join(t.TempDir(), "larder.yaml")
	text := "socket: /run/a.sock\ntiers:\n  decoded: 2GiB\n  encoded: 1GiB\njobs: {lease: 5m, max: 7}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(file, []string{"LARDER_TIERS__DECODED=3GiB", "LARDER_SOCKET=/run/b.sock", "LARDER_TESTDATA=x",
		"HOME=/root"},
		map[string]string{"socket": "/run/c.sock", "log.level": "debug"})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string][2]string{
		"socket":        {"/run/c.sock", "flag --socket"},
		"tiers.decoded": {"3GiB", "env LARDER_TIERS__DECODED"},
		"tiers.encoded": {"1GiB", "file " + file + ":4:12"},
		"jobs.lease":    {"5m", "file " + file + ":5:15"},
		"jobs.max":      {"7", "file " + file + ":5:24"},
		"log.level":     {"debug", "flag --set log.level"},
		"http":          {"", "default"},
	} {
		got, ok := c.Get(key)
		if !ok || got != want[0] || c.Origin(key).String() != want[1] {
			t.Errorf("%s = %q from %q, want %q from %q", key, got, c.Origin(key), want[0], want[1])
		}
	}
}

// mistakes is what is wrong in a file, and what its error says.
var mistakes = map[string]struct {
	text string
	want []string
}{
	"typo": {"tiers:\n  decodd: 1GiB\n", []string{"larder.yaml:2:3", `"tiers.decodd"`,
		"did you mean tiers.decoded?"}},
	"typo top":    {"sokcet: x\n", []string{"larder.yaml:1:1", "did you mean socket?"}},
	"wrong place": {"decoded: 1GiB\n", []string{"did you mean tiers.decoded?"}},
	"far":         {"zzzzzzzz: 1\n", []string{"larder config default"}},
	"several": {"log: {level: lod, format: xml}\nprep: {workers: -1}\njobs: {max: many}\n",
		[]string{"larder.yaml:1:14", "log.level", "log.format", "prep.workers", "jobs.max"}},
	"on corrupt":     {"prep: {on_corrupt: skp}\n", []string{"prep.on_corrupt", "did you mean skip?"}},
	"value hint":     {"log: {level: inof}\n", []string{"did you mean info?"}},
	"duplicate":      {"http: a:1\nhttp: b:2\n", []string{"larder.yaml:2:1", "set already at larder.yaml:1:1"}},
	"list":           {"socket: [a]\n", []string{"larder.yaml:1:9", "takes one value"}},
	"section scalar": {"tiers: 3\n", []string{"larder.yaml:1:8", "tiers must hold keys"}},
	"root list":      {"- a\n", []string{"the file must hold keys"}},
	"alias":          {"socket: &a x\nhttp: *a\n", []string{"aliases are not supported"}},
	"two documents":  {"http: \"\"\n---\nhttp: \"\"\n", []string{"more than one YAML document"}},
	"yaml":           {"tiers: {\n", []string{"larder.yaml:1: "}},
	"percent":        {"tiers: {decoded: 120%}\n", []string{"at most 100%", "larder.yaml:1:18"}},
	"percent of total": {"tiers: {total: 1GiB, decoded: 10%, encoded: 1000MiB}\n",
		[]string{"tiers.encoded 1000MiB + tiers.decoded 10% (= 102MiB) exceed tiers.total 1GiB"}},
	"percent sum": {"tiers: {decoded: 70%, encoded: 50%}\n",
		[]string{"tiers.encoded 50% + tiers.decoded 70%", "more than 100%"}},
	"negative": {"tiers: {decoded: -1GiB}\n", []string{"negative"}},
	"disk without a size": {"tiers: {disk: {dir: /nvme}}\n",
		[]string{"tiers.disk.size is not set", "/nvme", "write bytes like 200GiB"}},
	"disk without a directory": {"tiers: {disk: {size: 1GiB}}\n",
		[]string{"tiers.disk.dir is not set"}},
	"disk in percent": {"tiers: {disk: {dir: /nvme, size: 10%}}\n",
		[]string{"tiers.disk.size 10%", "says nothing of a disk"}},
	"small disk": {"tiers: {disk: {dir: /nvme, size: 1kB}}\n", []string{"tiers.disk.size 1kB", "less than 1MiB"}},
	"exceed total": {"tiers: {total: 16GiB, decoded: 12GiB, augmented: 8GiB}\n",
		[]string{"tiers.decoded 12GiB + tiers.augmented 8GiB", "exceed tiers.total 16GiB", "raise tiers.total"}},
	"exceed limit": {"memory: {limit: 4GiB}\ntiers: {decoded: 5GiB}\n",
		[]string{"tiers.decoded 5GiB", "exceeds memory.limit 4GiB", "raise memory.limit"}},
	"total and limit": {"memory: {limit: 4GiB}\ntiers: {total: 5GiB}\n",
		[]string{"tiers.total 5GiB", "memory.limit 4GiB"}},
	"limit too small": {"memory: {limit: 1MiB}\n", []string{"memory.limit 1MiB", "64MiB"}},
	"policy":          {"tiers: {policy: {decoded: lrru}}\n", []string{"did you mean lru?", "larder.yaml:1:27"}},
	"future policy": {"tiers: {policy: {decoded: belady}}\n",
		[]string{"tiers.policy.decoded", "needs to know everything that will be asked for", "larder.yaml:1:27"}},
	"tcp plain": {"grpc: {listen: \"0.0.0.0:7000\"}\n", []string{"without TLS", "grpc.tls_cert"}},
	"tcp open":  {"grpc: {listen: \"0.0.0.0:7000\", insecure: true}\n", []string{"loopback"}},
	"tcp for all": {"grpc: {listen: \"127.0.0.1:7000\", insecure: true}\n",
		[]string{"grpc.listen 127.0.0.1:7000 would admit every caller that can reach it", "--token-file"}},
	"tls for all": {"grpc: {listen: \"0.0.0.0:7000\", tls_cert: a, tls_key: b}\n",
		[]string{"grpc.listen 0.0.0.0:7000 would admit every caller that can reach it", "grpc.tls_client_ca"}},
	"client ca plain": {"grpc: {listen: \"127.0.0.1:7000\", insecure: true, tls_client_ca: a}\n",
		[]string{"grpc.tls_client_ca) need TLS"}},
	"token alone": {"grpc: {token_file: a}\n", []string{"does not listen"}},
	"tls half":    {"grpc: {listen: \"0.0.0.0:7000\", tls_cert: a.pem}\n", []string{"only one of them"}},
	"tls alone":   {"grpc: {tls_cert: a.pem, tls_key: b.pem}\n", []string{"does not listen"}},
	"address":     {"http: \"9464\"\n", []string{"host:port"}},
	"port":        {"http: \"a:99999\"\n", []string{"65535"}},
	"lease":       {"jobs: {lease: 30}\n", []string{"duration like 30s"}},
	"read limit": {"source: {storage_limit: 30%}\n",
		[]string{"bytes a second, or empty", "write bytes a second such as 20MB/s"}},
	"read limit unit": {"source: {storage_limit: 20Zs}\n",
		[]string{"unknown unit", "write bytes a second such as 20MB/s"}},
	"tab": {"tiers:\n\tdecoded: 1GiB\n", []string{"larder.yaml:2: ", "no tabs"}},
	"unclosed": {"jobs: {max: 3}\ntiers: {decoded: 1GiB\n",
		[]string{"larder.yaml:1: ", "check indentation and quotes"}},
	"one policy": {"tiers: {policy: lru}\n", []string{"tiers.policy must hold keys",
		"e.g. policy: {encoded: need}"}},
	"read limit 0": {"source: {storage_limit: 0}\n", []string{"read nothing"}},
	"seed":         {"sampler: {seed: -1}\n", []string{"sampler.seed"}},
	"bool":         {"grpc: {insecure: maybe}\n", []string{"neither true nor false"}},
	"fairness NaN": {"tiers: {fairness: .nan}\n", []string{"number from 0 to 1", "larder.yaml:1:19"}},
	"fairness 2":   {"tiers: {fairness: 2}\n", []string{"number from 0 to 1"}},
	"model":        {"tiers: {model: senecca}\n", []string{"did you mean seneca?"}},
	"attribute": {"datasets: {a.b: {flor: 1GiB}}\n",
		[]string{"did you mean datasets.a.b.floor?", "larder.yaml:1:18"}},
	"no attributes":   {"datasets: {a: 1GiB}\n", []string{"datasets.a must hold keys", "write key: value lines"}},
	"list of sets":    {"datasets: [a]\n", []string{"datasets must hold keys", "e.g. datasets: {train"}},
	"floor auto":      {"datasets: {a: {floor: auto}}\n", []string{"bytes or a percentage"}},
	"floor 101%":      {"datasets: {a: {floor: 101%}}\n", []string{"at most 100%"}},
	"floors":          {"datasets: {a: {floor: 60%}, b: {floor: 50%}}\n", []string{"110% of the machine"}},
	"floor above cap": {"datasets: {a: {floor: 2GiB, cap: 1GiB}}\n", []string{"floor 2GiB exceeds cap 1GiB"}},
	"floor negative":  {"datasets: {a: {floor: -1}}\n", []string{"negative"}},
	"cap auto":        {"datasets: {a: {cap: auto}}\n", []string{"a percentage, or none"}},
	"strata":          {"datasets: {a: {strata: sizes}}\n", []string{"did you mean size?"}},
	"set twice":       {"datasets: {a: {cap: 1GiB}, a: {cap: 2GiB}}\n", []string{"set already"}},
	"hosts":           {"http_hosts: 'node7, node8:9464'\n", []string{"leave out :9464"}},
	"a host's url":    {"http_hosts: http://node7\n", []string{"not a host name"}},
	"part of a byte":  {"tiers: {total: 0.5}\n", []string{"0.5GiB", "50%", "tiers.total", "larder.yaml:1:16"}},
	"ring 0":          {"jobs: {max_ring: 0}\n", []string{"no room"}},
}

// Every mistake is named at once, with its place and the fix.
func TestMistakes(t *testing.T) {
	for name, tc := range mistakes {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("larder.yaml", []byte(tc.text))
			if err == nil {
				t.Fatalf("accepted:\n%s", tc.text)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v\ndoes not say %q", err, w)
				}
			}
			var f *errs.Error
			if !errors.As(err, &f) || f.Hint == "" || f.Reason != errs.ConfigInvalid && f.Reason != errs.ResourceExceeded {
				t.Errorf("not a fault with a hint: %#v", f)
			}
		})
	}
}

func TestEnvAndFlagMistakes(t *testing.T) {
	_, err := Load("", []string{"LARDER_TIER__DECODED=1GiB", "LARDER_JOBS__MAX=x", "LARDER_ANYTHING=1"},
		map[string]string{"tiers.totl": "1GiB", "tiers.policy.decoded": "ned"})
	for _, w := range []string{`--set tiers.policy.decoded: "ned" is not a policy`, "LARDER_TIER__DECODED",
		"did you mean tiers.decoded?", "LARDER_JOBS__MAX", "--set tiers.totl", "did you mean tiers.total?"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v\ndoes not say %q", err, w)
		}
	}
	if err != nil && strings.Contains(err.Error(), "--set tiers.policy.decoded: tiers") {
		t.Errorf("a flag says its key twice: %v", err)
	}
	if err != nil && strings.Contains(err.Error(), "ANYTHING") {
		t.Error("a variable that is no key was refused")
	}
}

func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, "none.yaml"), nil, nil); !errs.Is(err, errs.NotFound) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := Load(dir, nil, nil); !errs.Is(err, errs.ConfigInvalid) {
		t.Errorf("a folder: %v", err)
	}
	big := filepath.Join(dir, "big.yaml")
	if err := os.WriteFile(big, bytes.Repeat([]byte("#\n"), maxFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(big, nil, nil); !errs.Is(err, errs.ConfigInvalid) || !strings.Contains(err.Error(), "smaller than") {
		t.Errorf("huge file: %v", err)
	}
	if c := mustParse(t, ""); len(Diff(c, Default())) != 0 {
		t.Error("an empty file is not the defaults")
	}
	if c := mustParse(t, "tiers:\nsocket:\nhttp: null\n"); len(Diff(c, Default())) != 0 {
		t.Error("empty keys are not the defaults")
	}
}

func TestResolve(t *testing.T) {
	m := Machine{CPUs: 8, RAM: 64 * gib, Cgroup: 16 * gib, CgroupFile: "/sys/fs/cgroup/memory.max",
		IndexDir: "/cache/larder"}
	r, err := mustParse(t, "memory: {limit: 75%}\ntiers: {decoded: 30%, encoded: 1GiB}\nprep: {workers: 3}\n").Resolve(m)
	if err != nil {
		t.Fatal(err)
	}
	if r.Memory != 12*gib || r.Total != 6*gib || r.Decoded != 6*gib*3/10 || r.Encoded != gib || r.Workers != 3 ||
		r.IndexDir != "/cache/larder" {
		t.Errorf("resolved to %+v", r)
	}
	if r.DecodedAuto || r.EncodedAuto || !r.AugmentedAuto || !r.TotalAuto || r.Augmented != r.Total-r.Decoded-r.Encoded {
		t.Errorf("auto flags: %+v", r)
	}
	// The percentage of a tier is of tiers.total, whatever that is of, and a total that is auto has room for what is fixed
	// beside it.
	for text, want := range map[string][3]int64{ // total, decoded, encoded
		"tiers: {total: 1GiB, decoded: 30%}\n":           {gib, gib * 3 / 10, gib - gib*3/10},
		"tiers: {total: 25%, decoded: 50%}\n":            {4 * gib, 2 * gib, 2 * gib},
		"tiers: {decoded: 30%}\n":                        {4 * gib, 4 * gib * 3 / 10, 4*gib - 4*gib*3/10},
		"tiers: {decoded: 50%, encoded: 3GiB}\n":         {6 * gib, 3 * gib, 3 * gib},
		"tiers: {total: 1GiB, decoded: 100%}\n":          {gib, gib, 0},
		"tiers: {total: 0, decoded: 100%, encoded: 0}\n": {0, 0, 0},
	} {
		if r, err := mustParse(t, text).Resolve(m); err != nil || r.Total != want[0] || r.Decoded != want[1] ||
			r.Encoded != want[2] {
			t.Errorf("%s: total %d, decoded %d, encoded %d, %v; want %v", text, r.Total, r.Decoded, r.Encoded, err, want)
		}
	}
	// A fixed tier may exceed the automatic total, not the limit.
	r, err = mustParse(t, "tiers: {decoded: 6GiB}\n").Resolve(m)
	if err != nil || r.Total != 6*gib || r.MaxRing != gib || r.Own != gib || r.Memory != 8*gib {
		t.Errorf("fixed tier: %+v, %v", r, err)
	}
	for text, want := range map[string]string{
		"memory: {limit: 20GiB}\n": "memory.limit 20GiB exceeds the 16GiB of this machine (cgroup " +
			"limit, /sys/fs/cgroup/memory.max)",
		"tiers: {decoded: 9GiB}\n": "tiers.decoded 9GiB exceeds memory.limit auto (= 8GiB) (lower " +
			"a tier",
		"tiers: {total: 60%}\n":  "tiers.total 60% (= 9.6GiB) exceeds memory.limit auto (= 8GiB)",
		"tiers: {total: 9GiB}\n": "tiers.total 9GiB exceeds memory.limit auto (= 8GiB)",
		"tiers: {decoded: 100%, encoded: 1MiB}\n": "tiers.decoded take all of tiers.total, which leaves no room " +
			"for tiers of 1MiB",
		"jobs: {max_ring: 9GiB}\n": "jobs.max_ring 9GiB exceeds memory.limit auto (= 8GiB)",
		"tiers: {total: 7GiB}\n": "tiers of 7GiB, at least 512MiB for rings and 1GiB for the " +
			"daemon itself and the samples that 8 workers have in work, together 8.5GiB, exceed memory.limit auto (= 8GiB)",
		"tiers: {total: 3GiB}\nprep: {workers: 1000}\n":  "that 1000 workers have in work, together 11.3GiB",
		"jobs: {max_ring: 6GiB}\ntiers: {total: 2GiB}\n": "tiers of 2GiB, jobs.max_ring 6GiB and 1GiB for the daemon itself",
		"datasets: {a: {floor: 3GiB}, b: {floor: 10%}}\n": "the floors of datasets together, 4.6GiB, exceed tiers.total " +
			"auto (= 4GiB)",
		"datasets: {a: {floor: 20%, cap: 3GiB}}\n": "dataset a: floor 20% (= 3.2GiB) exceeds cap 3GiB",
		"tiers: {decoded: 5GiB, encoded: 4GiB}": "tiers.encoded 4GiB + tiers.decoded 5GiB exceed memory.limit " +
			"auto (= 8GiB) (9GiB against 8GiB)",
	} {
		_, err := mustParse(t, text).Resolve(m)
		if !errs.Is(err, errs.ResourceExceeded) && !strings.Contains(want, "cap") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %q", text, err, want)
		}
	}
	if _, err := Default().Resolve(Machine{}); err == nil {
		t.Error("a machine without memory was accepted")
	}
}

// Whatever is accepted never promises more than there is.
func TestResolveBounds(t *testing.T) {
	sizes := rapid.Custom(func(t *rapid.T) string {
		return rapid.OneOf(rapid.Just("auto"),
			rapid.Map(rapid.IntRange(1, 100), func(p int) string { return strconv.Itoa(p) + "%" }),
			rapid.Map(rapid.IntRange(0, 8192), func(n int) string { return strconv.Itoa(n) + "MiB" })).Draw(t, "size")
	})
	rapid.Check(t, func(t *rapid.T) {
		c := Default()
		for _, k := range []string{"memory.limit", "tiers.total", "tiers.encoded", "tiers.decoded", "tiers.augmented",
			"jobs.max_ring"} {
			if err := c.Set(k, sizes.Draw(t, k), Origin{}); err != nil {
				t.Fatal(err)
			}
		}
		m := Machine{CPUs: 2, RAM: rapid.Int64Range(256<<20, 16<<30).Draw(t, "ram")}
		r, err := c.Resolve(m)
		if err != nil {
			if f := errs.From(err); f.Hint == "" || f.Reason == errs.Internal {
				t.Fatalf("error without a fix: %v", err)
			}
			return
		}
		if r.Memory > m.RAM || r.Total > r.Memory || r.Encoded+r.Decoded+r.Augmented > r.Total || r.MaxRing > r.Memory ||
			r.Total+r.MaxRing+r.Own > r.Memory || r.Encoded < 0 || r.Decoded < 0 || r.Augmented < 0 || r.MaxRing <= 0 {
			t.Fatalf("%s\nresolved to %+v", c.Marshal(NoComments), r)
		}
	})
}

// TestWarnings: sizes that are allowed but make no sense cause warnings.
func TestWarnings(t *testing.T) {
	for text, want := range map[string]string{
		"{}": "",
		"tiers: {total: 1GiB, encoded: 200MiB, decoded: 300MiB, augmented: 0}": "524MiB of tiers.total 1GiB belong " +
			"to no tier",
		"tiers: {total: 1GiB, encoded: 200MiB, decoded: 300MiB}": "",
		"tiers: {encoded: 1MiB, decoded: 1MiB, augmented: 0}":    "",
		"tiers: {decoded: 30}":                                   "tiers.decoded of 30B holds not one sample",
		"tiers: {decoded: 0}":                                    "",
		"tiers: {total: 50KiB}":                                  "tiers.total of 50KiB holds next to nothing",
		"tiers: {total: 0}":                                      "",
		"jobs: {max_ring: 1KiB}":                                 "jobs.max_ring of 1KiB has no room",
		"source: {storage_limit: 20}":                            "20B a second is less than a photograph a second",
		"source: {storage_limit: 1MB/s}":                         "",
	} {
		c, err := Parse("f", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Resolve(Machine{CPUs: 2, RAM: 16 << 30})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(r.Warnings(), "; "); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestMarshalRoundTrip(t *testing.T) {
	for _, comments := range []Comments{NoComments, Docs, Origins} {
		c := Default()
		for key, v := range map[string]string{
			"socket": "/tmp/with space: and # hash/é.sock", "tiers.decoded": "30%", "prep.workers": "4",
			"source.storage_limit": "200MB",
			"http":                 "[::1]:9464",
			"sampler.seed":         "18446744073709551615", "jobs.lease": "1h30m", "source.index_dir": "null",
		} {
			if err := c.Set(key, v, Origin{Kind: "flag"}); err != nil {
				t.Fatal(err)
			}
		}
		back, err := Parse("x", c.Marshal(comments))
		if err != nil {
			t.Fatalf("%v\n%s", err, c.Marshal(comments))
		}
		if d := Diff(c, back); len(d) != 0 {
			t.Errorf("comments %d: %v\n%s", comments, d, c.Marshal(comments))
		}
	}
	d := Diff(Default(), mustParse(t, "tiers: {decoded: 1GiB}\nsocket: /a\n"))
	if len(d) != 2 || d[0].Key != "socket" || d[0].Apply != Restart ||
		d[1].String() != `tiers.decoded: "auto" -> "1GiB" (live)` {
		t.Errorf("diff: %v", d)
	}
}

func TestCloneIsSeparate(t *testing.T) {
	a := mustParse(t, "tiers: {decoded: 1GiB}\n")
	b := a.Clone()
	if err := b.Set("tiers.decoded", "2GiB", Origin{Kind: "flag"}); err != nil {
		t.Fatal(err)
	}
	if v, _ := a.Get("tiers.decoded"); v != "1GiB" || a.Origin("tiers.decoded").Kind != "file" {
		t.Errorf("the original became %s from %s", v, a.Origin("tiers.decoded"))
	}
	if err := b.Set("nonsense", "1", Origin{}); !errs.Is(err, errs.ConfigInvalid) {
		t.Errorf("unknown key: %v", err)
	}
	if b.Origin("nonsense").Kind != "" {
		t.Error("an unknown key has an origin")
	}
}

func TestDetect(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	meminfo := file("MemFree: 1 kB\nMemTotal:       4194304 kB\n")
	for name, tc := range map[string]struct {
		fs    fstest.MapFS
		limit int64
		file  string
	}{
		"v2 own": {fstest.MapFS{"proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/a/b/memory.max": file("1073741824\n"),
			"sys/fs/cgroup/a/memory.max": file("max\n")},
			gib, "/sys/fs/cgroup/a/b/memory.max"},
		"v2 parent binds": {fstest.MapFS{"proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/a/b/memory.max": file("max\n"),
			"sys/fs/cgroup/a/memory.max": file("2147483648")},
			2 * gib, "/sys/fs/cgroup/a/memory.max"},
		"v2 container": {fstest.MapFS{"proc/self/cgroup": file("0::/../x\n"),
			"sys/fs/cgroup/memory.max": file("1073741824\n")}, gib, "/sys/fs/cgroup/memory.max"},
		"v1": {fstest.MapFS{"proc/self/cgroup": file("9:cpu,memory:/j\n0::/\n"),
			"sys/fs/cgroup/memory/j/memory.limit_in_bytes": file("1073741824\n")}, gib,
			"/sys/fs/cgroup/memory/j/memory.limit_in_bytes"},
		"v1 none": {fstest.MapFS{"proc/self/cgroup": file("9:memory:/\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n")}, 0, ""},
		"garbage": {fstest.MapFS{"proc/self/cgroup": file("x\n0::/\n"), "sys/fs/cgroup/memory.max": file("-5")}, 0, ""},
	} {
		tc.fs["proc/meminfo"] = meminfo
		m := detect(tc.fs)
		if m.RAM != 4*gib || m.Cgroup != tc.limit || m.CgroupFile != tc.file {
			t.Errorf("%s: %+v", name, m)
		}
		if want := tc.limit; want == 0 && m.Memory() != 4*gib || want != 0 && m.Memory() != want {
			t.Errorf("%s: memory %d", name, m.Memory())
		}
	}
	if m := detect(fstest.MapFS{"proc/meminfo": file("MemTotal: 99999999999999999999 kB\n")}); m.RAM != 0 {
		t.Errorf("absurd memory: %d", m.RAM)
	}
	if m := DetectMachine(); m.Memory() <= 0 || m.CPUs < 1 {
		t.Errorf("this machine: %+v", m)
	}
}

func TestNearest(t *testing.T) {
	words := []string{"decoded", "encoded", "augmented", "total"}
	for in, want := range map[string]string{"decodde": "decoded", "DECODED": "decoded", "totl": "total", "xyz": "",
		"argumented": "augmented", "": ""} {
		if got := Nearest(in, words); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
	keys := []string{"tiers.decoded", "tiers.total", "http"}
	for in, want := range map[string]string{"decoded": "tiers.decoded", "tier.decoded": "tiers.decoded",
		"tiers.decodd": "tiers.decoded", "htp": "http", "xyz.abc": ""} {
		if got := Nearest(in, keys); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
}

// docs/configuration.md speaks of every key and of its default, and of nothing that does not exist.
func TestConfigurationDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	def := Default()
	for _, k := range Keys() {
		row := "| `" + k.Name + "` |"
		i := strings.Index(string(doc), row)
		if i < 0 {
			t.Errorf("docs/configuration.md has no row %s", row)
			continue
		}
		line, _, _ := strings.Cut(string(doc)[i:], "\n")
		if v, _ := def.Get(k.Name); v != "" && !strings.Contains(line, "`"+v+"`") {
			t.Errorf("docs/configuration.md: the row of %s does not give its default %s: %s", k.Name, v, line)
		}
	}
	for line := range strings.SplitSeq(string(doc), "\n") {
		if name, ok := strings.CutPrefix(line, "| `"); ok {
			name, _, _ = strings.Cut(name, "`")
			if lookup(name) == nil {
				t.Errorf("docs/configuration.md has a row for %s, which is no key", name)
			}
		}
	}
	text := string(doc)
	if i, j := strings.Index(text, "```yaml\n"), strings.Index(text, "\n```\n"); i < 0 || j < i {
		t.Error("docs/configuration.md has no YAML example")
	} else if _, err := Parse("example", []byte(text[i+8:j+1])); err != nil {
		t.Errorf("the example of docs/configuration.md: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("tiers: {decoded: 2GiB}\n"))
	f.Add(Default().Marshal(Docs))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("? {a: b}\n: c\n"))
	f.Add([]byte("<<: {socket: x}\n"))
	f.Add([]byte("socket: !!binary aGk=\njobs:\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("fuzz", data)
		if err != nil {
			if f := errs.From(err); f.Reason == errs.Internal {
				t.Fatalf("not a configuration error: %v", err)
			}
			return
		}
		back, err := Parse("again", c.Marshal(NoComments))
		if err != nil {
			t.Fatalf("its own form is refused: %v\n%s", err, c.Marshal(NoComments))
		}
		if d := Diff(c, back); len(d) > 0 {
			t.Fatalf("read back differently: %v", d)
		}
	})
}

// TestDatasets: what is configured for datasets is read, shown, compared and read back, whatever they are called.
func TestDatasets(t *testing.T) {
	text := "datasets:\n  \"imagefolder:/data/a.b: c\": {floor: 1GiB, cap: 30%}\n  train: {strata: label}\n  plain: " +
		"{floor: 0, cap: none, strata: off}\n"
	c := mustParse(t, text)
	if len(c.Datasets) != 2 || !c.Quotas() {
		t.Fatalf("%+v", c.Datasets)
	}
	again := mustParse(t, string(c.Marshal(Docs)))
	if d := Diff(c, again); len(d) > 0 {
		t.Errorf("read back: %v\n%s", d, c.Marshal(NoComments))
	}
	if d := c.Dataset("x", "imagefolder:/data/a.b: c"); d.Floor != Bytes(gib) || d.Cap.String() != "30%" ||
		d.Strata != "off" {
		t.Errorf("%+v", d)
	}
	if d := c.Dataset("none"); d.Floor != Bytes(0) || !d.Cap.IsAuto() || d.Strata != "off" {
		t.Errorf("%+v", d)
	}
	if d := Diff(Default(), mustParse(t, "datasets: {train: {strata: size}}\n")); len(d) != 1 ||
		d[0].Key != "datasets.train.strata" || d[0].Old != "off" || d[0].Apply != NewJobs {
		t.Errorf("%v", d)
	}
	e, err := Load("", []string{"LARDER_DATASETS__TRAIN__CAP=2GiB"}, map[string]string{"datasets.train.floor": "1GiB"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Resolve(Machine{CPUs: 2, RAM: 16 * gib})
	if err != nil || len(r.Quotas) != 1 || r.Quotas[0] != (Quota{"train", gib, 2 * gib}) {
		t.Errorf("%+v %v", r.Quotas, err)
	}
	if v, _ := e.Get("datasets.train.cap"); v != "2GiB" || e.Origin("datasets.train.cap").Kind != "env" {
		t.Errorf("%s from %s", v, e.Origin("datasets.train.cap"))
	}
	clone := e.Clone()
	if err := clone.Set("datasets.train.floor", "0", Origin{}); err != nil || e.Dataset("train").Floor != Bytes(gib) {
		t.Errorf("a clone is tied to its origin: %v %+v", err, e.Datasets)
	}
}

// TestWorkersFit: auto workers are no more than memory is there for.
func TestWorkersFit(t *testing.T) {
	r, err := Default().Resolve(Machine{CPUs: 96, RAM: 2 * gib})
	if err != nil || r.Workers != 16 || r.Own != 128<<20 {
		t.Errorf("%+v %v", r, err)
	}
	r, err = Default().Resolve(Machine{CPUs: 96, RAM: 64 * gib})
	if err != nil || r.Workers != 96 {
		t.Errorf("%+v %v", r, err)
	}
	c := Default()
	c.Prep.Isolation = "process" // each has a process, too
	r, err = c.Resolve(Machine{CPUs: 96, RAM: 2 * gib})
	if err != nil || r.Workers != 5 || r.Own != 128<<20 {
		t.Errorf("%+v %v", r, err)
	}
	c.Prep.Workers = 8
	r, err = c.Resolve(Machine{CPUs: 96, RAM: 2 * gib})
	if err != nil || r.Own != 8*24<<20 {
		t.Errorf("%+v %v", r, err)
	}
}
