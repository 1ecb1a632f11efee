package archtest

import (
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/go/packages"

	"larder/internal/testenv"
)

// pure rooms decide; they may import only what is listed, of this module and of others.
var pure = map[string][]string{
	"larder/internal/ident":     {"larder/internal/xrand", "github.com/cespare/xxhash/v2"},
	"larder/internal/bits":      {},
	"larder/internal/xrand":     {},
	"larder/internal/invariant": {},
	"larder/internal/errs":      {},
	"larder/internal/units":     {},
	"larder/internal/nearest":   {},
	"larder/dsa": {"larder/internal/ident", "larder/internal/bits", "larder/internal/xrand",
		"larder/internal/invariant", "larder/internal/errs", "larder/internal/units", "larder/internal/nearest",
		"github.com/google/btree"},
	"larder/dsa/baseline": {"larder/dsa", "larder/internal/ident", "larder/internal/bits",
		"larder/internal/xrand", "larder/internal/invariant", "larder/internal/errs", "larder/internal/units",
		"larder/internal/nearest"},
	"larder/bench/bound": {},
	"larder/cachepolicy": {"larder/internal/ident", "larder/internal/bits", "larder/internal/xrand",
		"larder/internal/invariant", "larder/internal/errs", "larder/internal/nearest", "github.com/google/btree"},
	"larder/cachepolicy/partition": {"larder/internal/ident", "larder/internal/errs", "larder/internal/units",
		"larder/internal/nearest"},
	"larder/jobs": {"larder/internal/ident", "larder/internal/bits", "larder/internal/invariant",
		"larder/internal/errs", "larder/internal/units", "larder/internal/nearest", "github.com/google/btree"},
	"larder/tiers/residency": {"larder/internal/ident", "larder/internal/bits", "larder/internal/invariant",
		"larder/internal/errs", "larder/internal/units", "larder/internal/nearest", "github.com/google/btree"},
	"larder/internal/coordinator": {"larder/internal/ident", "larder/internal/bits", "larder/internal/xrand",
		"larder/internal/invariant", "larder/internal/errs", "larder/internal/units", "larder/internal/nearest",
		"larder/dsa", "larder/cachepolicy", "larder/cachepolicy/partition", "larder/jobs", "larder/tiers/residency",
		"github.com/google/btree"},
}

// what a pure room must not touch in the standard library, and why.
var impure = map[string]string{
	"net": "I/O belongs to engine, rpc and session", "net/http": "I/O belongs to engine, rpc and session",
	"os": "I/O belongs to source, tiers and shm", "io": "I/O belongs to source, tiers and shm", "os/exec": "I/O",
	"math/rand": "randomness comes from an injected xrand.Rand", "math/rand/v2": "randomness comes from an injected " +
		"xrand.Rand",
	"crypto/rand": "randomness comes from an injected xrand.Rand", "sync": "Loop owns the pure rooms: they need no locks",
	"sync/atomic": "Loop owns the pure rooms: they need no locks", "syscall": "I/O",
	"unsafe": "pure rooms hold plain values", "log/slog": "report through an Effect",
}

// loop.go is the one place where the coordinator meets goroutines and time.
var shell = []string{"internal/coordinator/loop.go"}

// beside the pure side: what each of these may import of this module.
var allowed = map[string][]string{
	"larder/internal/shm": {"larder/internal/errs", "larder/internal/units", "larder/internal/nearest",
		"larder/internal/invariant"},
	"larder/internal/gpu": {"larder/internal/errs", "larder/internal/units", "larder/internal/nearest",
		"larder/proto/larder/v1"},
	"larder/internal/telemetry": {"larder/internal/errs", "larder/internal/units", "larder/internal/nearest",
		"larder/proto/larder/v1"},
	// it must not share the mistakes of those it audits
	"larder/internal/audit": {"larder/internal/errs", "larder/internal/units", "larder/internal/nearest"},
	"larder/internal/journal": {"larder/internal/errs", "larder/internal/units", "larder/internal/nearest",
		"larder/internal/clock", "larder/internal/ident", "larder/internal/invariant", "larder/internal/proc"},
	"larder/internal/proc":          {},
	"larder/internal/clock":         {},
	"larder/internal/clock/stepped": {"larder/internal/clock"},
	"larder/internal/prep/sandbox": {"larder/internal/errs", "larder/internal/prep", "larder/internal/proc",
		"larder/internal/shm", "larder/internal/units"}, // it knows no jobs, datasets or tiers
	"larder/internal/engine/crashguard": {"larder/internal/ident", "larder/internal/proc",
		"larder/internal/prep"}, // it knows no jobs, journals or coordinator
	"larder/internal/engine/record": {"larder/internal/coordinator", "larder/internal/errs", "larder/internal/ident",
		"larder/internal/journal", "larder/proto/larder/v1"},
	"larder/internal/engine/restore": {"larder/dsa", "larder/internal/bits", "larder/internal/coordinator",
		"larder/internal/engine/record", "larder/internal/errs", "larder/internal/ident", "larder/internal/journal",
		"larder/jobs"},
	"larder/internal/engine/ring": {"larder/internal/coordinator", "larder/internal/errs", "larder/internal/ident",
		"larder/internal/prep", "larder/internal/record", "larder/internal/session", "larder/internal/session/wire",
		"larder/internal/shm", "larder/internal/units", "larder/jobs", "larder/proto/larder/v1"},
	"larder/internal/engine/trace": {"larder/internal/coordinator", "larder/internal/engine/ring",
		"larder/internal/engine/work", "larder/internal/errs", "larder/internal/ident", "larder/internal/invariant",
		"larder/internal/prep", "larder/jobs", "larder/proto/larder/v1"},
	"larder/internal/engine/work": {"larder/internal/coordinator", "larder/internal/engine/crashguard",
		"larder/internal/engine/ring", "larder/internal/errs", "larder/internal/heap", "larder/internal/ident",
		"larder/internal/prep", "larder/internal/prep/fields", "larder/internal/record", "larder/internal/source",
		"larder/jobs", "larder/tiers"},
	"larder/internal/engine/crew": {"larder/internal/coordinator", "larder/internal/engine/ring",
		"larder/internal/engine/work", "larder/internal/errs", "larder/internal/heap", "larder/internal/ident",
		"larder/internal/prep", "larder/internal/record", "larder/internal/session", "larder/internal/session/wire",
		"larder/internal/shm", "larder/internal/units", "larder/tiers"},
	"larder/internal/resume": {"larder/internal/errs", "larder/internal/units", "larder/internal/nearest"},
	"larder/internal/source": {"larder/internal/clock",
		"larder/internal/errs", "larder/internal/units", "larder/internal/nearest",
		"larder/internal/ident", "larder/internal/bits", "larder/internal/xrand", "larder/internal/invariant",
		"larder/internal/raster", "larder/internal/source/subset", "larder/internal/source/packed",
		"larder/internal/record", "larder/internal/spool", "larder/internal/store", "larder/tiers/disk"},
	"larder/internal/spool": {},
	"larder/tiers/disk": {"larder/internal/errs", "larder/internal/units", "larder/internal/invariant",
		"larder/internal/spool"},
	"larder/internal/store": {"larder/internal/clock", "larder/internal/errs", "larder/internal/nearest",
		"larder/internal/xrand"},
	"larder/internal/prep": {"larder/internal/errs", "larder/internal/units", "larder/internal/nearest",
		"larder/internal/ident", "larder/internal/xrand", "larder/internal/invariant", "larder/internal/raster",
		"larder/internal/record", "larder/internal/prep/kernel"},
	"larder/internal/prep/fields": {"larder/internal/errs", "larder/internal/nearest", "larder/internal/prep",
		"larder/internal/record", "larder/internal/units", "larder/proto/larder/v1"},
	"larder/internal/raster": {},
	"larder/internal/record": {"larder/internal/errs", "larder/internal/units", "larder/proto/larder/v1"},
	"larder/tiers": {"larder/internal/errs", "larder/internal/units", "larder/internal/nearest",
		"larder/internal/ident", "larder/internal/invariant", "larder/internal/shm", "larder/tiers/arena",
		"larder/tiers/encoded"},
}

// only these may use the libraries that the owner fixed for a place.
var homes = map[string][]string{
	"github.com/dgraph-io/ristretto/v2":  {"larder/tiers/encoded", "larder/tiers/tinylfu", "larder/internal/source"},
	"github.com/NVIDIA/go-nvml/pkg/nvml": {"larder/internal/gpu"},
	"github.com/minio/minio-go/v7":       {"larder/internal/store"},
	// A daemon that users run must not have a clock that others stop: it is compiled in with -tags failpoints only.
	"larder/internal/clock/stepped": {},
}

var loaded = sync.OnceValues(func() ([]*packages.Package, error) {
	return packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedImports | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo |
			packages.NeedFiles | packages.NeedExportFile,
		Dir:        "../..",
		BuildFlags: []string{"-tags=" + testenv.Tags()}, // with others, everything would be compiled once more
	}, "larder/...")
})

func load(t *testing.T) []*packages.Package {
	t.Helper()
	all, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		for _, e := range p.Errors {
			t.Fatalf("%s: %v", p.PkgPath, e)
		}
	}
	return all
}

func TestRoomsImportOnlyWhatTheyMay(t *testing.T) {
	seen := 0
	for _, p := range load(t) {
		may, isPure := pure[p.PkgPath]
		if !isPure {
			may = allowed[p.PkgPath]
		}
		for path := range p.Imports {
			if rooms, ok := homes[path]; ok && !slices.Contains(rooms, p.PkgPath) {
				t.Errorf("%s imports %s, whose only homes are %v", p.PkgPath, path, rooms)
			}
			ours, foreign := strings.HasPrefix(path, "larder/"), strings.Contains(strings.Split(path, "/")[0], ".")
			if isPure {
				if why, bad := impure[path]; bad {
					t.Errorf("%s imports %s: %s", p.PkgPath, path, why)
				}
				if (ours || foreign) && !slices.Contains(may, path) {
					t.Errorf("%s imports %s: a pure room may import only %v", p.PkgPath, path, may)
				}
			} else if may != nil && ours && !slices.Contains(may, path) {
				t.Errorf("%s imports %s: it may import only %v of larder", p.PkgPath, path, may)
			}
		}
		if isPure {
			seen++
		}
	}
	if seen != len(pure) {
		t.Errorf("%d of %d pure rooms were found: the rules are out of date", seen, len(pure))
	}
}

// TestPureRoomsOnlyDecide looks for clocks, goroutines, channels and map order in the pure rooms' code. A map may be
// ranged over only where a comment on that line says why its order cannot matter: "order-free: …".
func TestPureRoomsOnlyDecide(t *testing.T) {
	for _, p := range load(t) {
		if _, ok := pure[p.PkgPath]; !ok {
			continue
		}
		for _, file := range p.Syntax {
			name := p.Fset.Position(file.Pos()).Filename
			if slices.ContainsFunc(shell, func(s string) bool { return strings.HasSuffix(name, s) }) {
				continue
			}
			excused := map[int]bool{}
			for _, g := range file.Comments {
				for _, c := range g.List {
					if strings.Contains(c.Text, "order-free:") {
						excused[p.Fset.Position(c.Pos()).Line] = true
					}
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				at := func() token.Position { return p.Fset.Position(n.Pos()) }
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a pure room starts a goroutine", at())
				case *ast.SendStmt, *ast.SelectStmt:
					t.Errorf("%s: a pure room uses a channel", at())
				case *ast.RangeStmt:
					if _, isMap := p.TypesInfo.TypeOf(n.X).Underlying().(*types.Map); isMap && !excused[at().Line] {
						t.Errorf("%s: a pure room ranges over a map: its order would reach a decision", at())
					}
				case *ast.SelectorExpr:
					if f, ok := p.TypesInfo.Uses[n.Sel].(*types.Func); ok && f.Pkg() != nil && f.Pkg().Path() == "time" &&
						f.Signature().Recv() == nil {
						switch f.Name() {
						case "Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick":
							t.Errorf("%s: a pure room calls time.%s: time is an argument", at(), f.Name())
						}
					}
				}
				return true
			})
		}
	}
}

// TestPureRoomsAreListed compares the rules with the list by which the lanes of the Makefile choose: the race detector
// watches packages with goroutines, and pure ones run with invariants instead.
func TestPureRoomsAreListed(t *testing.T) {
	data, err := os.ReadFile("testdata/pure.txt")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			listed["larder/"+line] = true
		}
	}
	for room := range pure {
		if !listed[room] {
			t.Errorf("%s is pure and not in testdata/pure.txt", room)
		}
	}
	for room := range listed {
		if _, ok := pure[room]; !ok {
			t.Errorf("testdata/pure.txt lists %s, which has no rule here", room)
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range load(t) {
		if p.Name == "main" || strings.Contains(p.PkgPath, "/proto/") {
			continue
		}
		documented := slices.ContainsFunc(p.Syntax, func(f *ast.File) bool {
			return f.Doc != nil &&
				strings.HasPrefix(f.Doc.Text(), "Package "+p.Name)
		})
		if !documented {
			t.Errorf("%s has no package comment", p.PkgPath)
		}
	}
}
