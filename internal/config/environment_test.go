package config

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestUnknownEnv(t *testing.T) {
	for env, want := range map[string]string{
		"LARDER_SOKET=/x":                      "did you mean LARDER_SOCKET?",
		"LARDER_TIERS_TOTAL=1GiB":              "did you mean LARDER_TIERS__TOTAL? (two underscores stand for a dot)",
		"LARDER_STATE_DIR=/x":                  "did you mean LARDER_STATE__DIR?",
		"LARDER_LOG_LEVEL=debug":               "did you mean LARDER_LOG__LEVEL?",
		"LARDER_DECODED=2GiB":                  "did you mean LARDER_TIERS__DECODED?",
		"LARDER_STORAGE_LIMIT=2GiB":            "did you mean LARDER_SOURCE__STORAGE_LIMIT?",
		"LARDER_CONFG=x":                       "did you mean LARDER_CONFIG?",
		"LARDER_QUITE_SOMETHING_ELSE=1":        "larder config show --origin lists the keys",
		"LARDER_=1":                            "larder config show --origin lists the keys",
		"LARDER_" + strings.Repeat("X", 1<<16): "larder config show --origin lists the keys",
	} {
		got := UnknownEnv([]string{"PATH=/bin", env})
		name, _, _ := strings.Cut(env, "=")
		if len(got) != 1 || !strings.Contains(got[0], want) || !strings.Contains(got[0], name[:min(len(name), 60)]) ||
			len(got[0]) > 300 {
			t.Errorf("%.40s: %q, want %q", env, got, want)
		}
	}
	known := []string{"LARDER_SOCKET=x", "LARDER_TIERS__DECODED=1GiB", "LARDER_TIERS__DECODDED=1GiB", "LARDER_AUDIT_LOG=d",
		"LARDER_PORT_9464_TCP=tcp://10.0.0.1:9464",
		"LARDER_SERVICE_HOST=10.0.0.1", "LARDER_SIM_SEEDS=4", "LARDER_DATASETS__TRAIN__CAP=10%", "XLARDER_SOKET=x",
		"larder_soket=x"}
	if got := UnknownEnv(known); len(got) != 0 {
		t.Errorf("warned of known ones: %q", got)
	}
	if got := UnknownEnv([]string{"LARDER_SOKET=1", "LARDER_CONFG=2"}); len(got) != 2 ||
		!strings.Contains(got[0], "CONFG") {
		t.Errorf("%q", got)
	}
}

// TestEnvironmentIsComplete: every key has its variable in the list, and so has every name that the programs, tests and
// scripts of this repository have in quotes; nothing else is in it.
func TestEnvironmentIsComplete(t *testing.T) {
	for _, k := range keys {
		if !slices.Contains(knownEnv, EnvName(k.Name)) {
			t.Errorf("environment.txt lacks %s", EnvName(k.Name))
		}
	}
	root := "../.."
	quoted := regexp.MustCompile(`["'$({]LARDER_[A-Z0-9_]*[A-Z0-9]\b`)
	used := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if name := e.Name(); path != root && (name == "out" || name == "bin" || name == "shared" ||
				strings.HasPrefix(name, ".") && name != ".ci") {
				return fs.SkipDir
			}
			return nil
		}
		base := filepath.Base(path)
		if base == "environment_test.go" || base == "test_environment.py" || base == "env.txtar" || base == "docs_test.go" {
			return nil
		}
		if ext := filepath.Ext(path); ext != ".go" && ext != ".py" && ext != ".sh" && ext != ".txtar" && base != "Makefile" {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range quoted.FindAllString(string(text), -1) {
			name := m[1:]
			used[name] = true
			if !envKnown(name) && !strings.HasSuffix(base, "config_test.go") {
				t.Errorf("%s: %s is not in internal/config/environment.txt", path, name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range knownEnv {
		if strings.Contains(k, "__") || strings.Contains(k, "_PORT") || strings.Contains(k, "_SERVICE") || used[k] {
			continue
		}
		begin, open := strings.CutSuffix(k, "*")
		some := false
		for u := range used {
			some = some || open && strings.HasPrefix(u, begin)
		}
		if !some && lookup(strings.ToLower(strings.TrimPrefix(k, EnvPrefix))) == nil {
			t.Errorf("environment.txt has %s, which nothing uses", k)
		}
	}
}

// TestVariables: what is no key and meant for users is described.
func TestVariables(t *testing.T) {
	_, section, _ := strings.Cut(environment, "# clients and commands\n")
	section, _, _ = strings.Cut(section, "\n\n")
	var got []string
	for _, v := range Variables() {
		got = append(got, v.Name)
		if v.Doc == "" {
			t.Errorf("%s is not described", v.Name)
		}
	}
	slices.Sort(got)
	if want := strings.Fields(section); !slices.Equal(got, want) {
		t.Errorf("described are %v, environment.txt has %v", got, want)
	}
	for _, k := range Keys() {
		if !envKnown(k.Env()) {
			t.Errorf("environment.txt lacks %s", k.Env())
		}
	}
}
