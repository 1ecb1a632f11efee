package units

import "testing"

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0B", 512: "512B", 1536: "1.5KiB", 12_900_000: "12.3MiB", 3 << 30: "3GiB", 161061273600: "150GiB",
		25176801280: "23.4GiB",
		900 << 30:   "900GiB", 1<<40 + 1<<39: "1.5TiB", 1 << 62: "4194304TiB", -5: "-5B",
	} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %s, want %s", n, got, want)
		}
	}
}
