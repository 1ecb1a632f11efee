package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"larder/internal/gpu"
	"larder/internal/prep"
	"larder/internal/release"
	"larder/internal/units"
)

// commit is set by the Makefile through -ldflags "-X main.commit=…".
var commit = ""

// version names this build: the number of the release, and the commit where it is known.
var version = release.Build(release.Commit(commit))

type buildInfo struct {
	Version  string            `json:"version"`
	Commit   string            `json:"commit"`
	Modified bool              `json:"modified"`
	Go       string            `json:"go"`
	Platform string            `json:"platform"`
	Decoder  string            `json:"decoder"`
	Parity   bool              `json:"parity"`
	GPU      string            `json:"gpu"`     // what the driver said
	Devices  []json.RawMessage `json:"devices"` // larder.v1 Device
}

func build() buildInfo {
	b := buildInfo{
		Version: version, Commit: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Decoder: prep.DecoderName(), Parity: prep.Parity(), Devices: []json.RawMessage{},
	}
	if c, modified := release.Commit(commit); c != "" {
		b.Commit, b.Modified = c, modified
	}
	return b
}

func newVersion() *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print version, build and the GPUs found",
		Long:    "Print the version, what this binary was built from and with, and the GPUs that it finds on this machine.",
		Example: "  larder version -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			b := build()
			probe := gpu.Open()
			defer probe.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), 5*time.Second)
			defer cancel()
			devices, err := probe.Devices(ctx)
			b.GPU = probe.Status()
			if err != nil {
				b.GPU = err.Error()
			}
			for _, d := range devices {
				raw, err := protoJSON.Marshal(d)
				if err != nil {
					return fmt.Errorf("write device %d: %w", d.GetIndex(), err)
				}
				b.Devices = append(b.Devices, raw)
			}
			return out.value(cmd.OutOrStdout(), b, func(t *tabwriter.Writer) {
				row(t, "larder", b.Version)
				row(t, "commit", b.Commit)
				row(t, "go", b.Go+" "+b.Platform)
				row(t, "decoder", decoderLine(b.Decoder, b.Parity))
				row(t, "gpu", b.GPU)
				for _, d := range devices {
					row(t, fmt.Sprintf("  %d", d.GetIndex()), fmt.Sprintf("%s, %s", d.GetName(), units.Size(d.GetMemoryBytes())))
				}
			})
		},
	}
	out.register(cmd)
	return cmd
}

// decoderLine says which decoder a build has, and whether its bits are torchvision's.
func decoderLine(name string, parity bool) string {
	if parity {
		return name + ", bit-equal to torchvision"
	}
	return name + ", not bit-equal to torchvision (parity: false)"
}
