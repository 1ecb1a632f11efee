package config

import (
	"testing"
	"testing/fstest"
)

func TestCPUQuota(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  float64
	}{
		"none":     {map[string]string{"proc/self/cgroup": "0::/\n"}, 0},
		"half":     {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5},
		"no max":   {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 0},
		"nonsense": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1 0\n"}, 0},
		"a parent's": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
			"sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5},
		"v1": {map[string]string{"proc/self/cgroup": "3:cpu,cpuacct:/a\n", "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "25000\n",
			"sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, 0.25},
	} {
		root := fstest.MapFS{}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := detect(root).Quota; got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
