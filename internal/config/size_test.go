package config

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/errs"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"8GiB": 8 << 30, "512MB": 512e6, "1.5GiB": 3 << 29, "1048576": 1 << 20, "0": 0, " 2 gib ": 2 << 30, "1_000": 1000,
		"10k": 10e3, "3Ti": 3 << 40, "7B": 7, "0.5KiB": 512,
	} {
		s, err := ParseSize(in)
		if err != nil || s.IsAuto() || s.IsPercent() || s.Of(1) != want {
			t.Errorf("ParseSize(%q) = %v, %v; want %d bytes", in, s, err, want)
		}
	}
	if s, err := ParseSize("30%"); err != nil || s.Of(1000) != 300 {
		t.Errorf("30%% of 1000 = %d, %v", s.Of(1000), err)
	}
	if s, err := ParseSize("AUTO"); err != nil || !s.IsAuto() || s != Auto {
		t.Errorf("AUTO = %v, %v", s, err)
	}
	for in, part := range map[string]string{
		"": "empty", "-3GiB": "negative", "8GiBB": "unknown unit", "101%": "at most 100%", "0%": "above 0%",
		"GiB": "does not begin",
		"1e3": "unknown unit", "1__0": "not a number", "99999999999GiB": "larger than", "1.2.3": "not a number",
		"999999999999.5TiB": "larger than", "99999999999999999999": "larger than", "NaN": "does not begin",
		"5 %%": "unknown unit", "0.5": "as in 0.5GiB or 50%", "1.5": "as in 1.5GiB", "0.5B": "0.5GiB", ".5": "give the unit",
	} {
		_, err := ParseSize(in)
		if !errs.Is(err, errs.ConfigInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("ParseSize(%q): %v; want it to say %q", in, err, part)
		}
	}
}

func TestSizeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Bytes(rapid.Int64Range(0, maxBytes).Draw(t, "bytes"))
		if rapid.Bool().Draw(t, "percent") {
			s = Size{kind: sizePercent, percent: float64(rapid.IntRange(1, 10000).Draw(t, "hundredths")) / 100}
		}
		got, err := ParseSize(s.String())
		if err != nil || got != s {
			t.Fatalf("%v was read back as %v, %v", s, got, err)
		}
	})
}

// TestSizesReadWell: of the units that divide a size, it is written in the one that leaves the smallest number.
func TestSizesReadWell(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 1: "1", 1000: "1kB", 1023: "1023", 1024: "1KiB", 16e6: "16MB",
		8e9: "8GB", 512 << 20: "512MiB",
		1024_000: "1000KiB", 1 << 40: "1TiB", 3 << 29: "1536MiB", maxBytes: "65536TiB"} {
		if got := FormatBytes(n); got != want {
			t.Errorf("%d bytes are written %s, want %s", n, got, want)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"8GiB", "30%", "auto", "1.5MB", "-1", "", "99999999999999999999", "1_0k"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		s, err := ParseSize(in)
		if err != nil {
			return
		}
		if n := s.Of(1 << 40); n < 0 || n > maxBytes {
			t.Fatalf("%q is %d bytes", in, n)
		}
		if back, err := ParseSize(s.String()); err != nil || back != s {
			t.Fatalf("%q = %v, read back as %v, %v", in, s, back, err)
		}
	})
}
