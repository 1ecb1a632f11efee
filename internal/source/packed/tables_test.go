package packed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"larder/internal/record"
	"larder/internal/spool"
	"larder/internal/testenv/lane"
)

// fileSet are files in memory by path; others are read from the disk.
type fileSet map[string][]byte

func (s fileSet) open(path string) (Other, error) {
	if b, ok := s[path]; ok {
		return other{bytes.NewReader(b)}, nil
	}
	b, err := os.ReadFile(path)
	return other{bytes.NewReader(b)}, err
}

func (s fileSet) file(path string, schema *record.Schema) (File, error) {
	f, err := s.open(path)
	if err != nil {
		return File{}, err
	}
	return File{ReaderAt: f, Path: path, Size: f.Len(), Beside: s.open, Schema: schema, ID: path,
		Spool: spool.NewMemory(64 << 20)}, nil
}

// dataset is an address with what its format gave.
type dataset struct {
	Address
	format Records
	files  []string
	beside []string
	schema record.Schema
}

func describe(uri string, s fileSet) (dataset, error) {
	scheme, rest, _ := strings.Cut(uri, ":")
	a, err := ParseAddress(scheme, rest)
	if err != nil {
		return dataset{}, err
	}
	f, _ := ByScheme(scheme)
	d := dataset{Address: a, format: f.(Records)}
	if d.files, d.beside, err = d.format.Files(a); err != nil {
		return d, err
	}
	if d.schema, err = d.format.Schema(context.Background(), a, d.files, s.open); err != nil {
		return d, err
	}
	return d, d.schema.Check()
}

// each calls f for every sample and its record; blob is nil where bad says what is wrong with it. Samples and records
// that cannot be are misfits.
func (d *dataset) each(s fileSet, f func(x Sample, blob []byte, bad error) error) error {
	for _, path := range d.files {
		file, err := s.file(path, &d.schema)
		if err != nil {
			return err
		}
		var samples []Sample
		if _, err := d.format.Scan(context.Background(), d.Address, file, func(x Sample) error {
			if x.Size < 1 || x.Off < 0 || x.Label < -1 || strings.IndexByte(x.Key, 0) >= 0 {
				return misfit{fmt.Errorf("the scan gave %+v", x)}
			}
			samples = append(samples, x)
			return nil
		}); err != nil {
			return err
		}
		rows, err := d.format.Open(context.Background(), d.Address, file)
		if err != nil {
			return err
		}
		for _, x := range samples {
			blob, err := rows.Record(context.Background(), []byte("before"), x)
			if err == nil && !bytes.HasPrefix(blob, []byte("before")) {
				return misfit{fmt.Errorf("%s: the record was not appended", x.Key)}
			}
			if err == nil {
				blob = blob[len("before"):]
				if err = storedSchema(&d.schema).Validate(blob, 0); err != nil { // pixels are no files
					err = d.schema.Validate(blob, 0)
				}
				if err != nil {
					return misfit{fmt.Errorf("%s: a record that does not fit: %w", x.Key, err)}
				}
			}
			x.Key = filepath.Base(path) + "/" + x.Key
			if err := f(x, blob, err); err != nil {
				return err
			}
		}
		if err := rows.Close(); err != nil {
			return err
		}
	}
	return nil
}

// fields are the values of a record as table_files.py writes them.
func fields(s *record.Schema, blob []byte) (map[string]string, error) {
	v, err := record.Open(blob)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for i, x := range v.All {
		dtype := x.DType.String()
		if x.Kind == record.Bytes || x.Kind == record.Text {
			dtype = x.Kind.String()
		}
		sum := sha256.Sum256(x.Data)
		b, err := json.Marshal([]any{dtype, x.Dims(), hex.EncodeToString(sum[:])})
		if err != nil {
			return nil, err
		}
		out[s.Fields[i].Name] = string(b)
	}
	return out, nil
}

// root is that of the repository. Tests run in the folder of their package.
const root = "../../.."

// formatsPython is the interpreter that has the formats' own packages.
func formatsPython(t *testing.T) string {
	t.Helper()
	python := filepath.Join(root, ".venv-formats", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		if os.Getenv("LARDER_REQUIRE_FORMATS") != "" {
			t.Fatalf("%s is missing, and LARDER_REQUIRE_FORMATS is set", python)
		}
		t.Skipf("%s is missing (make setup-nightly makes it)", python)
	}
	return python
}

// written runs table_files.py for seeds and returns the uri of each dataset that it wrote, by SEED/NAME.
func written(t *testing.T, out, seeds string, which ...string) map[string]string {
	t.Helper()
	script := filepath.Join(root, "python", "tests", "table_files.py")
	cmd := exec.Command(formatsPython(t), append([]string{"-W", "ignore", script, out, seeds}, which...)...)
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "HF_HOME="+out+"/hf-home")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	uris := map[string]string{}
	found, err := filepath.Glob(filepath.Join(out, "*", "*.uri"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		uris[strings.TrimSuffix(strings.TrimPrefix(f, out+"/"), ".uri")] = string(b)
	}
	return uris
}

// sameCode are datasets that others of their kind are damaged for.
var sameCode = []string{"columns_plain", "columns_decimals", "columns_old", "columns_pandas", "columns_nulls",
	"columns_nulls_arrow", "columns_stream0", "sounds_raw", "sounds_bytes", "sounds_named", "sounds_chosen",
	"sounds_rated", "mds_sounds_bytes", "mds_sounds_chosen", "lmdb_sounds_bytes", "lmdb_sounds_rate",
	"tfrecord_sounds_raw", "tfrecord_sounds_chosen", "tfrecord_sounds_rates"}

// TestRecordsAreThoseOfTheFormatsOwnReaders compares every field of every sample, and then damages the files of the
// last seed.
func TestRecordsAreThoseOfTheFormatsOwnReaders(t *testing.T) {
	lane.OnlyNightly(t, "the golden files of python/tests, and the corpus")
	out := t.TempDir()
	for name, uri := range written(t, out, "1,2,3") {
		b, err := os.ReadFile(filepath.Join(out, name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var want []map[string]json.RawMessage
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		d, err := describe(uri, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		n := 0
		err = d.each(nil, func(x Sample, blob []byte, bad error) error {
			if bad != nil {
				return fmt.Errorf("sample %d, %s: %w", n, x.Key, bad)
			}
			if n++; n > len(want) {
				return nil
			}
			return equalFields(&d.schema, blob, want[n-1])
		})
		if err != nil || n != len(want) {
			t.Errorf("%s: %d samples, its own reader gives %d: %v", name, n, len(want), err)
			continue
		}
		t.Logf("%s: %d samples are equal", name, n)
		if strings.HasPrefix(name, "3/") && !slices.Contains(sameCode, name[2:]) {
			rule := tableRule(name[2:])
			if rule.flips == 0 {
				t.Errorf("no rule says how many flips are found in %s", name)
			}
			t.Run(name, func(t *testing.T) { damage(t, d, nil, d.files[0], rule) })
		}
	}
}

func equalFields(s *record.Schema, blob []byte, want map[string]json.RawMessage) error {
	got, err := fields(s, blob)
	if err != nil {
		return err
	}
	if len(got) != len(want) {
		return fmt.Errorf("fields %v, want %s", got, want)
	}
	for k, v := range want {
		var told []any
		if err := json.Unmarshal(v, &told); err != nil {
			return err
		}
		b, err := json.Marshal(told[:3]) // behind it come the pixels of an image
		if err != nil || got[k] != string(b) {
			return fmt.Errorf("field %q is %s, its own reader gives %s: %w", k, got[k], b, err)
		}
	}
	return nil
}
