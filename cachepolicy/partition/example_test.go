package partition_test

import (
	"fmt"
	"math"

	"larder/cachepolicy/partition"
	"larder/internal/units"
)

// One job reads 10,000 images of 100 kB from storage that delivers 20 MB a second. The budget of 2 GiB is
// split between their encoded and their decoded form.
func Example() {
	demand := partition.Demand{
		Budget:  2 << 30,
		Machine: partition.Machine{Nodes: 1, Cache: 3e10, NIC: math.Inf(1), PCIe: math.Inf(1), Storage: 20e6},
		Datasets: []partition.Dataset{{
			Name: "images", Samples: 10_000, Stored: 100e3, Encoded: 100e3,
			Recipes: []partition.Recipe{{
				Name: "crop", Decoded: 600e3, Augmented: 150e3,
				DecodeAugment: 1000, Augment: 8000, Finish: math.Inf(1),
				Sharers: 1, Degree: 1,
				Jobs: []partition.Job{{Ingest: math.Inf(1)}},
			}},
		}},
	}
	model, err := partition.New(partition.Bottleneck)
	if err != nil {
		fmt.Println(err)
		return
	}
	plan, err := model.Solve(demand)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("encoded", units.Size(plan.Split.Encoded), "decoded", units.Size(plan.Split.Decoded))
	fmt.Printf("%.0f samples/s, limited by %s\n", plan.Rate, plan.Binding)

	now := partition.Split{Decoded: demand.Budget}
	current, err := model.Predict(demand, now)
	if err != nil {
		fmt.Println(err)
		return
	}
	change, why := partition.Adopt(partition.Change{
		Now: now, Next: plan.Split, NowRate: current.Rate, NextRate: plan.Rate, Budget: demand.Budget, First: true,
	})
	fmt.Println(change, why)
	// Output:
	// encoded 558MiB decoded 1.46GiB
	// 1295 samples/s, limited by storage
	// true it gains 316 %
}
