package reproductions

import (
	"fmt"
	"math"

	"larder/bench/policysim"
	"larder/bench/systems"
	"larder/bench/trace"
)

var closedForms = Reproduction{
	Name: "closed-forms", Title: "LRU and MinIO on shuffled epochs",
	Source: "one job, a fresh uniform order each epoch: LRU hits c + (1-c)ln(1-c), MinIO (Mohan et al., VLDB 2021) and " +
		"Belady c; measured tables of N = 100,000 for four jobs",
	Method: "`larder bench policy` on 100,000 samples, 6 epochs of which 2 are warm-up.",
	run: func() ([]Row, error) {
		var rows []Row
		replay := func(jobs int, policies []string, caches []int64) (*policysim.Report, error) {
			t, err := trace.Generate(trace.Spec{Family: "aligned", Samples: 100_000, Jobs: jobs, Epochs: 6, Seed: 1}, 0)
			if err != nil {
				return nil, err
			}
			return policysim.Run(t, policysim.Config{Policies: policies, Caches: caches, Warm: 2}, nil)
		}
		r, err := replay(1, []string{"lru", "minio"}, []int64{20_000, 50_000, 80_000})
		if err != nil {
			return nil, err
		}
		for _, cache := range []int64{20_000, 50_000, 80_000} {
			c := float64(cache) / 100_000
			rows = append(rows, within(fmt.Sprintf("LRU, one job, %.0f %%", 100*c), c+(1-c)*math.Log(1-c),
				r.Find("lru", cache).HitRatio, .02, "of chance"),
				within(fmt.Sprintf("MinIO, one job, %.0f %%", 100*c), c, r.Find("minio", cache).HitRatio, .02, "of chance"))
		}
		if r, err = replay(4, []string{"lru", "minio", "belady"}, []int64{10_000, 35_000, 65_000}); err != nil {
			return nil, err
		}
		for p, want := range [][]float64{{.076, .280, .558}, {.100, .350, .650}, {.369, .660, .856}} {
			name := []string{"lru", "minio", "belady"}[p]
			for i, cache := range []int64{10_000, 35_000, 65_000} {
				rows = append(rows, within(fmt.Sprintf("%s, four jobs, %d %%", name, cache/1000), want[i],
					r.Find(name, cache).HitRatio, .02, "of chance"))
			}
		}
		return rows, nil
	},
}

var lockStep = Reproduction{
	Name: "lock-step", Title: "CoorDL and TensorSocket beside one slow job",
	Source: "CoorDL's released code (K loaders in turn) and TensorSocket's (every message queued by all before the " +
		"next); TensorSocket's measured on two cores: 10,552 batches in 10 s alone, 435 beside a consumer of 20 ms a " +
		"batch, 0 batches with less than 1,600 batches an epoch; Joader, Fig 6: ResNet18 4 times faster than with CoorDL",
	Method: "Two jobs on 20,000 samples, batches of 10, one step time and five times that; storage and workers cost " +
		"nothing. Speed of the fast job against alone.",
	run: func() ([]Row, error) {
		var rows []Row
		w := twins(20_000, 2000, 10, 1, 1, 5)
		ideal := 2000.0
		for _, c := range []struct {
			system string
			want   float64
			why    string
		}{{"coordl", .2, ""}, {"tensorsocket-fixed", .2, ""}, {"independent", 1, ""}, {"joader", 1, ""}, {"window", 1,
			""}, {"larder", 1, ""}} {
			r, err := systems.Run(c.system, w)
			if err != nil {
				return nil, err
			}
			rows = append(rows, within(c.system+": speed of the fast job beside one of a fifth", c.want, ideal/r.Jobs[0].End,
				.03, "of what queues hold"))
			if c.system == "coordl" {
				rows = append(rows, Row{"fast job, larder over CoorDL", "4 (ResNet18 beside four larger ResNets)", 0, ""})
			}
			if c.system == "larder" {
				for i := range rows {
					if rows[i].What == "fast job, larder over CoorDL" {
						rows[i].Ours, rows[i].Verdict = ideal/r.Jobs[0].End/rows[0].Ours, differs+"the ratio is that of the slowest "+
							"job's step, which is 5 here"
					}
				}
			}
		}
		small := twins(15_990, 0, 10, 1, 1, 1) // 1,599 batches
		r, err := systems.Run("tensorsocket", small)
		if err != nil {
			return nil, err
		}
		rows = append(rows, within("TensorSocket as released, 1,599 batches an epoch: batches delivered", 0,
			float64(r.Jobs[0].Delivered)/10, 0, "of an error here"))
		dead := twins(20_000, 2000, 10, 1, 1, 1)
		dead.Jobs[1].Kill = 100
		r, err = systems.Run("coordl", dead)
		if err != nil {
			return nil, err
		}
		rows = append(rows, Row{"CoorDL as released, one of two jobs dies after 100 of 2,000 batches: batches of the other",
			"about 100: no job takes over", float64(r.Jobs[0].Delivered) / 10, reproduced})
		r, err = systems.Run("larder", dead)
		if err != nil {
			return nil, err
		}
		rows = append(rows, Row{"larder, the same", "-", float64(r.Jobs[0].Delivered) / 10, none})
		return rows, nil
	},
}
