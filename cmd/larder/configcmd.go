package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/internal/config"
	"larder/internal/daemon"
	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

func newConfig(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Check, show, write and apply configurations",
		Example: "  larder config check larder.yaml",
		Args:    noArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(newConfigCheck(), newConfigShow(), newConfigDefault(), newConfigApply(g))
	return cmd
}

func newConfigCheck() *cobra.Command {
	var flags configFlags
	cmd := &cobra.Command{
		Use:     "check [FILE]",
		Short:   "Validate a configuration for this machine",
		Long:    "Validate a file, with the environment and --set, and show its sizes on this machine.",
		Example: "  larder config check larder.yaml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("e.g. larder config check larder.yaml", "larder config check takes one file, but got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				flags.file = args[0]
			}
			cfg, err := flags.load(nil)
			if err != nil {
				return err
			}
			m := config.DetectMachine()
			r, err := cfg.Resolve(m)
			if err != nil {
				return err
			}
			return tableTo(cmd.OutOrStdout(), func(t *tabwriter.Writer) {
				row(t, "good; on this machine:")
				row(t, "  machine", fmt.Sprintf("%s (%s), %d cores", units.Size(r.Machine), m.Source(), m.CPUs))
				row(t, "  memory.limit", units.Size(r.Memory))
				row(t, "  tiers.total", units.Size(r.Total))
				for _, x := range []struct {
					key  string
					n    int64
					auto bool
				}{{"  tiers.encoded", r.Encoded, r.EncodedAuto}, {"  tiers.decoded", r.Decoded, r.DecodedAuto},
					{"  tiers.augmented", r.Augmented, r.AugmentedAuto}} {
					if x.auto {
						row(t, x.key, "auto, "+units.Size(x.n)+" at first")
					} else {
						row(t, x.key, units.Size(x.n))
					}
				}
				row(t, "  jobs.max_ring", units.Size(r.MaxRing))
				row(t, "  own part", units.Size(r.Own)+" for heap, indexes and samples in work")
				row(t, "  prep.workers", r.Workers)
				if r.StorageLimit > 0 {
					row(t, "  source.storage_limit", units.Size(r.StorageLimit)+"/s")
				}
				if r.StateDir != "" && !r.StateAuto {
					row(t, "  state.dir", printable(r.StateDir))
				}
				for _, q := range r.Quotas {
					limit := "no cap"
					if q.Cap >= 0 {
						limit = "cap " + units.Size(q.Cap)
					}
					row(t, "  datasets."+printable(q.Dataset), "floor "+units.Size(q.Floor)+", "+limit)
				}
				warnings := append(r.Warnings(), daemon.PolicyWarnings(cfg.Tiers)...)
				if http := cfg.HTTP.Listen; http != "" && !config.Loopback(http) {
					warnings = append(warnings, "http "+http+" can be reached from other machines and has no password")
				}
				for _, w := range warnings {
					row(t, "warning: "+w)
				}
			})
		},
	}
	flags.register(cmd)
	return cmd
}

func newConfigApply(g *globals) *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:   "apply [FILE]",
		Short: "Apply a whole configuration to the running daemon, all of it or nothing",
		Long: `Make the running daemon read its configuration file again, or use FILE instead of it, with the daemon's own
environment and flags. The whole file is validated; then every difference is applied, or none is. The command prints
what changed. Tiers change their sizes without a flush, and batches continue meanwhile. A change that needs a restart is
refused. SIGHUP does the same without FILE.`,
		Example: "  larder config apply\n  larder config apply night.yaml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("e.g. larder config apply larder.yaml", "larder config apply takes one file, but got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			req := &larderv1.ApplyConfigRequest{}
			if len(args) == 1 {
				var err error
				if req.Content, err = config.ReadFile(args[0]); err != nil {
					return err
				}
				req.Name = args[0]
			}
			return g.call(cmd.Context(), shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.ApplyConfig(ctx, req)
				if err != nil {
					return err
				}
				return out.message(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) {
					if len(r.GetChanges()) == 0 {
						row(t, "nothing differs from what the daemon has")
						return
					}
					row(t, "KEY", "OLD", "NEW", "APPLIES")
					for _, x := range r.GetChanges() {
						when := "at once"
						if x.GetApplies() == string(config.NewJobs) {
							when = "to new jobs"
						}
						row(t, printable(x.GetKey()), printable(x.GetOld()), printable(x.GetNew()), when)
					}
				})
			})
		},
	}
	out.register(cmd)
	return cmd
}

func newConfigShow() *cobra.Command {
	var flags configFlags
	var out outputFlag
	var origin bool
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Print the configuration that a daemon would have",
		Example: "  larder config show --config larder.yaml --origin",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			cfg, err := flags.load(nil)
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			if out.form == "yaml" {
				c := config.NoComments
				if origin {
					c = config.Origins
				}
				_, err := w.Write(cfg.Marshal(c))
				return err
			}
			type entry struct {
				Key    string `json:"key"`
				Value  string `json:"value"`
				Origin string `json:"origin"`
			}
			var list []entry
			for _, k := range cfg.Keys() {
				v, _ := cfg.Get(k.Name)
				list = append(list, entry{k.Name, v, cfg.Origin(k.Name).String()})
			}
			return out.value(w, list, func(t *tabwriter.Writer) {
				for _, e := range list {
					if origin {
						row(t, e.Key, e.Value, e.Origin)
					} else {
						row(t, e.Key, e.Value)
					}
				}
			})
		},
	}
	flags.register(cmd)
	out.register(cmd)
	out.form = "yaml"
	cmd.Flags().Lookup("output").DefValue = "yaml"
	cmd.Flags().BoolVar(&origin, "origin", false, "also show where each value came from")
	return cmd
}

func newConfigDefault() *cobra.Command {
	return &cobra.Command{
		Use:     "default",
		Short:   "Print a file with every key, its default and what it means",
		Example: "  larder config default > larder.yaml",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.Default().Marshal(config.Docs))
			return err
		},
	}
}
