package pack

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"larder/internal/xrand"
)

// TestVerifyFindsDamage: a flipped byte anywhere in a shard, a lost shard and a foreign one are found, and named.
func TestVerifyFindsDamage(t *testing.T) {
	root := photos(t, 10, 6)
	for _, format := range []string{WDS, MDS} {
		cfg := Config{URI: "imagefolder:" + root, To: to(t, format), disk: disk{sync: unsynced},
			ShardSize: 16 << 10, Verify: true}
		must(t, cfg)
		m, err := readManifest(cfg.To.Dir)
		if err != nil {
			t.Fatal(err)
		}
		r := xrand.New(1, 3)
		for range 200 {
			s := m.Shards[r.IntN(len(m.Shards))]
			path := filepath.Join(cfg.To.Dir, s.Name)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			at := r.IntN(len(b))
			flipped := bytes.Clone(b)
			flipped[at] ^= 1 << r.IntN(8)
			for what, damaged := range map[string][]byte{"flipped": flipped, "cut": b[:at]} {
				put(t, path, damaged)
				got, err := Run(t.Context(), cfg)
				if err != nil || len(got.Bad) != 1 || got.Bad[0].Shard != s.Name {
					t.Fatalf("%s: %s %s at byte %d: %+v, %v", format, s.Name, what, at, got, err)
				}
			}
			put(t, path, b)
		}
		must(t, cfg)
		if format == WDS {
			put(t, filepath.Join(cfg.To.Dir, "zz.tar"), []byte(tree(t, cfg.To.Dir)[m.Shards[0].Name]))
		} else if err := os.Remove(filepath.Join(cfg.To.Dir, indexName)); err != nil {
			t.Fatal(err)
		}
		if got, err := Run(t.Context(), cfg); err != nil || len(got.Bad) != 1 || got.Bad[0].Shard != cfg.To.URI() {
			t.Errorf("%s: a foreign shard, or no index: %+v, %v", format, got, err)
		}
	}
}

func put(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
