package profile

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/cespare/xxhash/v2"

	"larder/internal/config"
	"larder/internal/prep"
	"larder/internal/units"
)

// Machine is what the rates of a profile depend on, and by which a profile of another machine is recognised.
type Machine struct {
	CPU         string `json:"cpu"` // model name, "" = unknown
	Cores       int    `json:"cores"`
	Memory      int64  `json:"memory_bytes"` // the cgroup limit, or RAM
	Platform    string `json:"platform"`
	Decoder     string `json:"decoder"`
	Fingerprint string `json:"fingerprint"` // of all of these; memory rounded to GiB
}

// ThisMachine looks at the machine of this process.
func ThisMachine() Machine {
	m := config.DetectMachine()
	out := Machine{CPU: cpuModel(), Cores: m.CPUs, Memory: m.Memory(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Decoder: prep.DecoderName()}
	out.Fingerprint = out.fingerprint()
	return out
}

func (m Machine) fingerprint() string {
	text := fmt.Sprintf("%s|%d|%d|%s|%s", m.CPU, m.Cores, (m.Memory+1<<29)>>30, m.Platform, m.Decoder)
	return fmt.Sprintf("%016x", xxhash.Sum64String(text))
}

// Differs says in words how m, of a profile, is another machine than here; "" when it is not.
func (m Machine) Differs(here Machine) string {
	if m.Fingerprint == here.Fingerprint && m.fingerprint() == here.fingerprint() {
		return ""
	}
	text := func(m Machine) string {
		cpu := m.CPU
		if cpu == "" {
			cpu = "an unknown CPU"
		}
		return fmt.Sprintf("%s, %d cores, %s, %s, decoder %s", cpu, m.Cores, units.Size(max(m.Memory, 0)), m.Platform,
			m.Decoder)
	}
	return fmt.Sprintf("measured on %s; this is %s", text(m), text(here))
}

func cpuModel() string {
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	sc := bufio.NewScanner(bytes.NewReader(raw))
	for sc.Scan() {
		k, v, ok := strings.Cut(sc.Text(), ":")
		if ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
